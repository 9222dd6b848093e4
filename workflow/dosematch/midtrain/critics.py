"""Critics: a backbone of their own under a value head, fitted to observed returns (t5-spec 3.1)."""

import copy
from collections.abc import Iterator

import numpy as np
import torch
from transformers import PreTrainedModel

from dosematch.midtrain.rollouts import Batch
from dosematch.midtrain.settings import T5Training
from dosematch.midtrain.thoughts import STUDY, chunks, thought_states
from dosematch.optimizer import MasterAdamW
from dosematch.sampling import philox_key

HEAD_STD = 0.02
POISSON = np.exp(-1.0) * np.cumsum([1, 1, 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720])  # P(X <= k) at mean 1


class Critic(torch.nn.Module):
    """V(s_t) for every action of a thought, read at the token before it.

    Two critics differ by their head's first weights, the order of their fits, and the weights that their bootstrap
    gives to trajectories; all three depend on `seed` and `index` alone.
    """

    def __init__(
        self, base: PreTrainedModel, index: int, seed: int, training: T5Training, l_max: int, privileged: bool
    ) -> None:
        """A copy of `base`; a `privileged` critic also reads the continuation, before the context."""
        super().__init__()
        self.index, self.seed, self.constants = index, seed, training
        self.l_max, self.privileged = l_max, privileged
        self.backbone = copy.deepcopy(base.model).requires_grad_(True)
        self.head = torch.nn.Linear(base.config.hidden_size, 1).to(base.device)
        with torch.no_grad():
            self.head.weight.normal_(0.0, HEAD_STD, generator=self._generator("head"))
            self.head.bias.zero_()
        self.full = False
        self.optimizer = self._optimizer()

    def unfreeze(self) -> None:
        """From now on the backbone is fitted too, with a fresh optimizer."""
        self.full = True
        self.optimizer = self._optimizer()

    def states(self, batch: Batch, rows: list[int]) -> torch.Tensor:
        """Final hidden states at s_t of some rows, [len(rows), l_max, h]."""
        contexts = [
            (*batch.continuations[i], *batch.contexts[i]) if self.privileged else batch.contexts[i] for i in rows
        ]
        return thought_states(self.backbone, contexts, [batch.thoughts[i] for i in rows], self.l_max)

    @torch.no_grad()
    def values(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """V [N, l_max], zero past a thought's end, and the hidden states that it is read from [N, l_max, h]."""
        parts: dict[int, torch.Tensor] = {}
        for rows in chunks(batch.row_lengths, self.constants.batch_tokens):
            states = self.states(batch, rows)
            parts |= {i: states[row] for row, i in enumerate(rows)}
        features = torch.stack([parts[i] for i in range(len(batch.contexts))])
        return self.head(features).squeeze(2) * batch.mask.to(features.device), features

    def fit(self, batch: Batch, ids: list[str], window: int) -> float:
        """Regress V on the observed returns for some epochs; returns the weighted loss of the first one.

        `ids` name the trajectories: their bootstrap weight is theirs for good. Every trajectory weighs 1 / (N l_max)
        per action times its bootstrap weight (4.1's constant measure).
        """
        settings = self.constants
        boot = torch.tensor([self.bootstrap(id) for id in ids])
        weight = (boot.unsqueeze(1) * batch.mask) / self.l_max
        first = 0.0
        for epoch in range(settings.critic_epochs):
            for rows in self._minibatches(len(ids), window, epoch):
                loss = self._step(batch, rows, weight[rows] / len(rows))
                first += loss * len(rows) / len(ids) if epoch == 0 else 0.0
        return first

    def bootstrap(self, trajectory: str) -> float:
        """How often the trajectory counts in this critic's fits, Poisson(1)."""
        key = philox_key(study=STUDY, seed=self.seed, stage="bootstrap", critic=self.index, trajectory=trajectory)
        uniform = int(np.random.Philox(key=key).random_raw(1)[0] >> np.uint64(11)) * 2.0**-53
        return float(np.searchsorted(POISSON, uniform, side="right"))

    def _step(self, batch: Batch, rows: list[int], weight: torch.Tensor) -> float:
        total = 0.0
        for part in chunks([batch.row_lengths[i] for i in rows], self.constants.batch_tokens):
            chosen = [rows[i] for i in part]
            with torch.set_grad_enabled(self.full):
                states = self.states(batch, chosen)
            values = self.head(states).squeeze(2)
            error = values - batch.returns[chosen].to(values.device)
            loss = (weight[part].to(values.device) * error.square()).sum()
            loss.backward()
            self.optimizer.absorb("value")
            total += loss.item()
        self.optimizer.end_step()
        settings = self.constants
        self.optimizer.update(settings.lr_critic if self.full else settings.lr_critic_head)
        return total

    def _minibatches(self, n: int, window: int, epoch: int) -> Iterator[list[int]]:
        order = torch.randperm(n, generator=self._generator(f"order {window} {epoch}")).tolist()
        size = self.constants.critic_minibatch
        return (order[start : start + size] for start in range(0, n, size))

    def _optimizer(self) -> MasterAdamW:
        settings = self.constants
        return MasterAdamW(
            self if self.full else self.head,
            betas=(settings.adam_betas[0], settings.adam_betas[1]),
            eps=settings.adam_eps,
            weight_decay=0.0,
            clip_norm=settings.clip_norm,
            skip_zero_grad=True,
        )

    def _generator(self, use: str) -> torch.Generator:
        key = philox_key(study=STUDY, seed=self.seed, stage="critic", critic=self.index, use=use)
        return torch.Generator().manual_seed(int(key[0]) >> 1)
