"""The frozen scorer: how well a continuation is predicted without a thought, and after each of its prefixes (t5-spec 1.2, 1.5).

All prefixes of a thought are scored in one forward pass. Its row holds the context, the thought, and one branch per
prefix: the closing token and the continuation. A branch sees the context, its own prefix of the thought, and itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from dosematch.midtrain.thoughts import Item, Thought, chunks, padded


@dataclass(frozen=True)
class Plain:
    """Scores without a thought: log-probabilities [N, H], hidden state at the last visible token [N, h], and the mean
    hidden state over the continuation [N, h]."""

    logp: torch.Tensor
    last: torch.Tensor
    mean: torch.Tensor


@dataclass(frozen=True)
class Inserted:
    """Scores after prefixes of a thought: `ends` [N] lists how many actions each prefix has, the whole thought last.

    `logp` [N, K, H] and the hidden state at the closing token `closing` [N, K, h]; rows with fewer than K prefixes
    repeat their last one.
    """

    ends: list[list[int]]
    logp: torch.Tensor
    closing: torch.Tensor


def checkpoints(length: int, l_max: int, k: int) -> list[int]:
    """Numbers of actions after which a thought of `length` actions is scored: every ceil(l_max / k), and its end."""
    stride = -(-l_max // k)
    return [*range(stride, length, stride), length]


class Scorer:
    """A copy of the actor's weights that stays as it is until `refresh`."""

    def __init__(self, model: PreTrainedModel, close_id: int, batch_tokens: int) -> None:
        """`model` is this object's own; `close_id` is the token that ends a thought."""
        self.model, self.close_id, self.batch_tokens = model.requires_grad_(False), close_id, batch_tokens

    @torch.no_grad()
    def refresh(self, source: PreTrainedModel, keep: float = 0.0) -> None:
        """Take over the weights of `source`, or move towards them: new = keep * old + (1 - keep) * source."""
        for mine, theirs in zip(self.model.parameters(), source.parameters(), strict=True):
            mine.lerp_(theirs, 1 - keep)

    @torch.no_grad()
    def plain(self, items: Sequence[Item]) -> Plain:
        """Score the continuations right after the visible text, without the opening token."""
        rows = [[*item.context[:-1], *item.continuation[:-1]] for item in items]
        h = len(items[0].continuation)
        parts: dict[int, tuple[torch.Tensor, ...]] = {}
        for batch in chunks(list(map(len, rows)), self.batch_tokens):
            ids = padded([rows[i] for i in batch]).to(self.model.device)
            hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
            starts = torch.tensor([len(items[i].context) - 2 for i in batch], device=hidden.device)
            states = take(hidden, starts.unsqueeze(1) + torch.arange(h, device=hidden.device))
            logp = self._logp(states, [items[i].continuation for i in batch])
            for row, i in enumerate(batch):
                parts[i] = logp[row], states[row, 0], states[row].mean(0)
        logp, last, mean = (torch.stack([parts[i][n] for i in range(len(items))]) for n in range(3))
        return Plain(logp, last, mean)

    @torch.no_grad()
    def inserted(self, items: Sequence[Item], thoughts: Sequence[Thought], l_max: int, k: int) -> Inserted:
        """Score the continuation of `items[i]` after prefixes of `thoughts[i]`, all in one pass (`k` at most)."""
        ends = [checkpoints(len(thought.ids), l_max, k) for thought in thoughts]
        h = len(items[0].continuation)
        lengths = [len(item.context) + len(t.content) + k * h for item, t in zip(items, thoughts, strict=True)]
        parts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for batch in chunks(lengths, self.batch_tokens):
            pack = _Pack([items[i] for i in batch], [thoughts[i] for i in batch], [ends[i] for i in batch], k)
            hidden = self._packed_states(pack)
            states = take(hidden, pack.places.flatten(1).to(hidden.device)).unflatten(1, (k, h))
            logp = self._logp(states.flatten(1, 2), [items[i].continuation * k for i in batch]).unflatten(1, (k, h))
            for row, i in enumerate(batch):
                parts[i] = logp[row], states[row, :, 0]
        logp, closing = (torch.stack([parts[i][n] for i in range(len(items))]) for n in range(2))
        return Inserted(ends, logp, closing)

    def _packed_states(self, pack: "_Pack") -> torch.Tensor:
        device = self.model.device
        ids = pack.ids.masked_fill(pack.ids < 0, self.close_id).to(device)
        return self.model.model(
            input_ids=ids,
            attention_mask=pack.mask().to(device),
            position_ids=pack.positions.to(device),
            use_cache=False,
        ).last_hidden_state

    def _logp(self, states: torch.Tensor, targets: Sequence[Sequence[int]]) -> torch.Tensor:
        """Log-probabilities of `targets` [B, T] from the states before them [B, T, h]."""
        logits = self.model.lm_head(states).float()
        chosen = torch.tensor(targets, device=logits.device).unsqueeze(2)
        return logits.gather(2, chosen).squeeze(2) - logits.logsumexp(2)


class _Pack:
    """Rows `context, thought, branch 1 .. branch K`; a branch is the closing token (-1 here) and y_1 .. y_{H-1}.

    `places` [B, K, H] are the columns whose states predict y_1 .. y_H in each branch.
    """

    def __init__(
        self, items: Sequence[Item], thoughts: Sequence[Thought], ends: Sequence[Sequence[int]], k: int
    ) -> None:
        h = len(items[0].continuation)
        trunks = [[*item.context, *thought.content] for item, thought in zip(items, thoughts, strict=True)]
        width = max(map(len, trunks))
        branches = [[-1, *item.continuation[:-1]] * k for item in items]
        self.ids = torch.cat([padded(trunks), torch.tensor(branches)], 1)
        visible = [  # trunk tokens that a branch sees; the closing action is no trunk token
            [len(item.context) + min(end, len(thought.content)) for end in [*own, *[own[-1]] * (k - len(own))]]
            for item, thought, own in zip(items, thoughts, ends, strict=True)
        ]
        seen = torch.tensor(visible)
        trunk = torch.arange(width).expand(len(items), -1)
        self.positions = torch.cat([trunk, (seen.unsqueeze(2) + torch.arange(h)).flatten(1)], 1)
        self.limit = torch.cat([trunk + 1, seen.repeat_interleave(h, 1)], 1)
        self.branch = torch.cat([torch.zeros(width, dtype=torch.int64), torch.arange(1, k + 1).repeat_interleave(h)])
        self.places = (width + torch.arange(k * h)).view(1, k, h).expand(len(items), -1, -1)

    def mask(self) -> torch.Tensor:
        """True where a query may look, bool [B, 1, S, S]: earlier trunk tokens up to its limit, its own branch so far."""
        column = torch.arange(self.ids.shape[1])
        own = (self.branch.unsqueeze(1) == self.branch) & (column <= column.unsqueeze(1)) & (self.branch > 0)
        trunk = (self.branch == 0) & (column < self.limit.unsqueeze(2))
        return (trunk | own).unsqueeze(1)


def take(hidden: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Rows of [B, S, h] at `places` int64 [B, T]: [B, T, h]."""
    return hidden.gather(1, places.unsqueeze(2).expand(-1, -1, hidden.shape[2]))
