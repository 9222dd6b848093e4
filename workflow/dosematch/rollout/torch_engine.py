"""The in-process engine: a fixed number of slots, finished rows refilled from the queue or dropped when it is empty."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from dosematch.errors import UserError
from dosematch.rollout.decoder import Decoder
from dosematch.rollout.engine import Completion, Request

REFILL_SHARE = 4  # refill when a quarter of the slots is free: a prefill costs about as much as a few decode steps
COLUMN_BLOCK = 16  # attention reads whole blocks of columns, so its shapes change rarely


@dataclass
class Row:
    """A request in flight."""

    index: int
    request: Request
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def position(self) -> int:
        """Column of the last generated token: where the next decode step writes."""
        return len(self.request.prompt_ids) + len(self.tokens) - 1


class TorchEngine:
    """Implements `Engine` with PyTorch alone; on CPU the same calls give the same bytes."""

    def __init__(self, model: PreTrainedModel, eos_token_id: int, batch_size: int = 64) -> None:
        self.decoder = Decoder(model.config, model.state_dict())
        self.eos, self.batch_size = eos_token_id, batch_size

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights (Hugging Face names); the tensors are copied."""
        self.decoder.load_weights(weights)

    def close(self) -> None:
        """Nothing outlives the object."""

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], batch_size: int | None = None) -> list[Completion]:
        """Complete every request in at most `batch_size` slots; results come in request order."""
        batch = _Batch(self.decoder, self.eos, requests, batch_size or self.batch_size)
        while batch.queue or batch.live:
            batch.refill()
            batch.shrink()
            batch.step()
        return [batch.done[index] for index in range(len(requests))]


class _Batch:
    """The state of one `generate` call: slot i of the cache belongs to `slots[i]`, None where a row has finished.

    A finished row stays in the arithmetic (its result is ignored) until its slot is refilled or, with nothing left to
    refill it, until enough rows are dead to make copying the cache worth while.
    """

    def __init__(self, decoder: Decoder, eos: int, requests: Sequence[Request], size: int) -> None:
        self.decoder, self.eos = decoder, eos
        self.queue = deque(Row(index, request) for index, request in enumerate(requests))
        self.done: dict[int, Completion] = {}
        self.slots: list[Row | None] = [None] * min(size, len(requests))
        width = max((len(r.prompt_ids) + r.max_tokens for r in requests), default=0)
        limit = decoder.cos.shape[0]
        if width > limit:
            raise UserError(f"prompt and max_tokens need {width} positions, the model has {limit}")
        self.columns = -(-width // COLUMN_BLOCK) * COLUMN_BLOCK + 1  # odd: row starts must not share cache sets
        self.cache = decoder.empty_cache(len(self.slots), self.columns)

    @property
    def live(self) -> list[int]:
        """Slots with an unfinished row."""
        return [i for i, row in enumerate(self.slots) if row is not None]

    def refill(self) -> None:
        """Admit waiting requests once enough slots are free."""
        free = [i for i, row in enumerate(self.slots) if row is None]
        if self.queue and (len(free) * REFILL_SHARE >= len(self.slots) or len(free) >= len(self.queue)):
            self._admit(free[: len(self.queue)])

    def shrink(self) -> None:
        """With nothing waiting, drop dead slots once they are a quarter of all."""
        live = self.live
        if not self.queue and (len(self.slots) - len(live)) * REFILL_SHARE >= len(self.slots) > 0:
            self.slots = [self.slots[i] for i in live]
            self.cache = [(keys[live], values[live]) for keys, values in self.cache]

    def step(self) -> None:
        """One decode step for all slots, then finished rows leave."""
        live = self.live
        if not live:
            return
        device = self.decoder.embedding.device
        ids = torch.tensor([row.tokens[-1] if row else 0 for row in self.slots], device=device)
        positions = [row.position if row else 0 for row in self.slots]
        width = min(self.columns, (max(positions) // COLUMN_BLOCK + 1) * COLUMN_BLOCK)
        logits = self.decoder.decode(ids, torch.tensor(positions, device=device), self.cache, width)
        self._append(logits if len(live) == len(self.slots) else logits[live], live)

    def _admit(self, slots: list[int]) -> None:
        rows = [self.queue.popleft() for _ in slots]
        prompts = list(dict.fromkeys(row.request.prompt_ids for row in rows))  # a group's prompt is read once
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        ids = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.int64)
        for i, prompt in enumerate(prompts):
            ids[i, : len(prompt)] = torch.tensor(prompt)
        device = self.decoder.embedding.device
        logits, stored = self.decoder.prefill(ids.to(device), lengths.to(device))
        source = [prompts.index(row.request.prompt_ids) for row in rows]
        for (keys, values), (new_keys, new_values) in zip(self.cache, stored, strict=True):
            keys[slots, :, : ids.shape[1]] = new_keys[source]
            values[slots, :, : ids.shape[1]] = new_values[source]
        for slot, row in zip(slots, rows, strict=True):
            self.slots[slot] = row
        self._append(logits[source], slots)

    def _append(self, logits: torch.Tensor, slots: list[int]) -> None:
        """Choose the next token of the rows in `slots` (logits [len(slots), V]) and retire the finished ones."""
        rows = [row for slot in slots if (row := self.slots[slot]) is not None]
        logits = logits.float()
        allowed = logits
        early = [i for i, row in enumerate(rows) if len(row.tokens) < row.request.min_tokens]
        if early:
            allowed = logits.clone()
            allowed[early, self.eos] = -torch.inf
        tokens = choose(allowed, rows)
        logprobs = logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - logits.logsumexp(-1)
        for slot, row, token, logprob in zip(slots, rows, tokens.tolist(), logprobs.tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            if token == self.eos or len(row.tokens) >= row.request.max_tokens:
                reason: Literal["stop", "length"] = "stop" if token == self.eos else "length"
                self.done[row.index] = Completion(tuple(row.tokens), tuple(row.logprobs), reason)
                self.slots[slot] = None


def choose(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Next tokens (int64 [B]): arg max where a request has no uniforms, else the inverse cumulative distribution.

    The cumulative sum is float64, so that a vocabulary of 150,000 does not move the boundaries.
    """
    sampled = [i for i, row in enumerate(rows) if row.request.uniforms is not None]
    tokens = logits.argmax(-1)
    if sampled:
        u = np.array([rows[i].request.uniforms[len(rows[i].tokens)] for i in sampled])  # type: ignore[index]
        temperature = torch.tensor([rows[i].request.temperature for i in sampled], device=logits.device)
        scaled = logits[sampled] / temperature.unsqueeze(1)
        cumulative = scaled.double().softmax(-1).cumsum(-1)
        target = torch.from_numpy(u).to(logits.device).unsqueeze(1) * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp_(max=logits.shape[1] - 1)
        tokens[sampled] = drawn
    return tokens
