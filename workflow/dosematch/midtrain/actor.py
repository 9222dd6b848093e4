"""The actor's update: clipped policy gradient on detached advantages, with the next-token anchor (t5-spec 1.3, 2.2, 4.8)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from dosematch.midtrain.phases import Phases
from dosematch.midtrain.ppo import clipped_objective
from dosematch.midtrain.rollouts import Batch
from dosematch.midtrain.settings import T5TrainSettings
from dosematch.midtrain.thoughts import STUDY, Item, action_logps, chunks
from dosematch.optimizer import MasterAdamW
from dosematch.sampling import philox_key


@dataclass(frozen=True)
class Credit:
    """What the update of one window rests on: trajectories, their advantages and old log-probabilities [N, L]."""

    batch: Batch
    advantage: torch.Tensor
    logp_old: torch.Tensor


class Actor:
    """The policy and its optimizer."""

    def __init__(self, model: PreTrainedModel, settings: T5TrainSettings, seed: int, close_id: int) -> None:
        self.model, self.settings, self.seed, self.close_id = model, settings, seed, close_id
        training = settings.training
        self.optimizer = MasterAdamW(
            model,
            betas=(training.adam_betas[0], training.adam_betas[1]),
            eps=training.adam_eps,
            weight_decay=0.0,
            clip_norm=training.clip_norm,
            skip_zero_grad=True,
        )

    @torch.no_grad()
    def logps(self, batch: Batch) -> torch.Tensor:
        """log pi(a_t given s_t) under the present weights, [N, l_max], zero past a thought's end."""
        found = torch.zeros_like(batch.rewards)
        for rows in chunks(batch.row_lengths, self.settings.training.batch_tokens):
            found[rows] = self._logps(batch, rows).cpu()
        return found * batch.mask

    def update(
        self, step: int, items: Sequence[Item], sequences: torch.Tensor, credit: Credit | None, phases: Phases
    ) -> dict[str, float]:
        """All epochs of one actor step on `items`, `credit` holding the same number of thoughts of each of them.

        `sequences` int64 [n, T] is the corpus that the anchor's rows are taken from. Returns means over the updates,
        and sums of what begins with `n_`.
        """
        loss = self.settings.arm.loss
        per_item = len(credit.batch.contexts) // len(items) if credit else 0
        fields: list[dict[str, float]] = []
        for epoch in range(loss.epochs):
            order = torch.randperm(len(items), generator=self._generator(step, epoch)).tolist()
            for m in range(loss.minibatches):
                chosen = order[m :: loss.minibatches]
                row: dict[str, float] = {}
                if credit:
                    with phases.at("actor"):
                        row |= self._policy(credit, [i * per_item + g for i in chosen for g in range(per_item)])
                with phases.at("anchor"):
                    row |= self._anchor(sequences, [items[i] for i in chosen])
                with phases.at("actor"):
                    gradient = self.optimizer.end_step()
                    update = self.optimizer.update(self.settings.training.lr_actor)
                row |= {f"grad_norm_{kind}": norm for kind, norm in gradient.norms.items()}
                fields.append(row | {"grad_norm": update.grad_norm})
        sums = {key: sum(row[key] for row in fields) for key in fields[0]}
        return {key: value if key.startswith("n_") else value / len(fields) for key, value in sums.items()}

    def _policy(self, credit: Credit, rows: list[int]) -> dict[str, float]:
        """Add the gradient of the clipped surrogate, and of the thought-conditioned likelihood where it counts."""
        loss, batch = self.settings.arm.loss, credit.batch
        weight = token_weights(batch.mask[rows], loss.agg)
        total = clipped = kl = mass = 0.0
        for part in chunks([batch.row_lengths[i] for i in rows], self.settings.training.batch_tokens):
            chosen = [rows[i] for i in part]
            logp = self._logps(batch, chosen)
            old, mask = credit.logp_old[chosen].to(logp), batch.mask[chosen].to(logp.device)
            logp = torch.where(mask, logp, old)
            d = weight[part].to(logp)
            objective, active = clipped_objective(
                logp, old, credit.advantage[chosen].to(logp), clip_low=loss.clip_low, clip_high=loss.clip_high
            )
            value = -(d * objective).sum()
            value.backward()
            self.optimizer.absorb("ppo")
            total += value.item()
            clipped += (~active & mask).sum().item()
            kl += ((old - logp.detach()) * mask).sum().item()
            mass += mask.sum().item()
            if loss.c_talk:
                self._talk(batch, chosen, len(rows))
        return {"loss_ppo": total, "clip_ratio": clipped / mass, "approx_kl": kl / mass}

    def _talk(self, batch: Batch, chosen: list[int], n: int) -> None:
        """-log p(y given the thought), the mean over target tokens; the thought is data."""
        contexts, targets = [], []
        for i in chosen:
            ids = batch.thoughts[i]
            content = ids[:-1] if ids[-1] == self.close_id else ids
            contexts.append([*batch.contexts[i], *content, self.close_id])
            targets.append(batch.continuations[i])
        horizon = len(targets[0])
        logp = action_logps(self.model, contexts, targets, horizon, 1.0)
        (-self.settings.arm.loss.c_talk * logp.sum() / (n * horizon)).backward()
        self.optimizer.absorb("talk")

    def _anchor(self, sequences: torch.Tensor, items: Sequence[Item]) -> dict[str, float]:
        """Next-token cross-entropy on the sequences that the items are from, without any thought (1.3)."""
        settings = self.settings
        if not settings.arm.loss.c_ntp:
            return {}
        rows = list(dict.fromkeys(item.sequence for item in items))[: settings.training.anchor_sequences]
        ids = sequences[rows].to(self.model.device)
        loss = next_token_loss(self.model, ids)
        (settings.arm.loss.c_ntp * loss).backward()
        self.optimizer.absorb("anchor")
        return {"loss_anchor": loss.item(), "n_tok_corpus": ids[:, 1:].numel()}

    def _logps(self, batch: Batch, rows: list[int]) -> torch.Tensor:
        contexts, thoughts = [batch.contexts[i] for i in rows], [batch.thoughts[i] for i in rows]
        task = self.settings.task
        return action_logps(self.model, contexts, thoughts, task.l_max, task.temperature)

    def _generator(self, step: int, epoch: int) -> torch.Generator:
        key = philox_key(study=STUDY, seed=self.seed, stage="actor order", step=step, epoch=epoch)
        return torch.Generator().manual_seed(int(key[0]) >> 1)


def next_token_loss(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy (nats) over all targets of whole sequences, int64 [B, T]."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def token_weights(mask: torch.Tensor, agg: str) -> torch.Tensor:
    """The measure d [B, L] of the actions (bool `mask`): constant 1/(B L), token mean, or mean of sequence means (2.2)."""
    batch, width = mask.shape
    if agg == "const":
        return mask / (batch * width)
    if agg == "token_mean":
        return mask / mask.sum()
    return mask / (batch * mask.sum(1, keepdim=True))
