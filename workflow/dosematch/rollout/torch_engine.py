"""The in-process engine: a fixed number of slots, finished rows refilled from the queue or dropped when it is empty."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from transformers import PreTrainedModel

from dosematch.errors import UserError
from dosematch.rollout.decoder import Decoder
from dosematch.rollout.engine import Completion, Request

REFILL_SHARE = 4  # refill when a quarter of the slots is free: a prefill costs about as much as a few decode steps
COLUMN_BLOCK = 16  # attention reads whole blocks of columns, so its shapes change rarely


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
        while batch.queue or len(batch.live):
            batch.refill()
            batch.shrink()
            batch.step()
        return [batch.done[index] for index in range(len(requests))]


class _Batch:
    """The state of one `generate` call: row i of every tensor belongs to slot i, `owner[i]` is its request or -1.

    A finished row stays in the arithmetic (its result is ignored) until its slot is refilled or, with nothing left to
    refill it, until enough rows are dead to make copying the cache worth while. Bookkeeping is in tensors on the CPU:
    a Python loop over the rows would cost as much as the model.
    """

    def __init__(self, decoder: Decoder, eos: int, requests: Sequence[Request], size: int) -> None:
        self.decoder, self.eos, self.requests = decoder, eos, requests
        self.queue = deque(range(len(requests)))
        self.done: dict[int, Completion] = {}
        width = max((len(r.prompt_ids) + r.max_tokens for r in requests), default=0)
        limit = decoder.cos.shape[0]
        if width > limit:
            raise UserError(f"engine torch: prompt and max_tokens need {width} positions, the model has {limit}")
        size, longest = min(size, len(requests)), max((r.max_tokens for r in requests), default=0)
        self.columns = -(-width // COLUMN_BLOCK) * COLUMN_BLOCK + 1  # odd: row starts must not share cache sets
        self.cache = decoder.empty_cache(size, self.columns)
        self.owner = torch.full((size,), -1)
        self.prompt, self.filled, self.minimum, self.limit = torch.zeros(4, size, dtype=torch.int64)
        self.tokens = torch.zeros(size, longest, dtype=torch.int64)
        self.logprobs = torch.zeros(size, longest)
        self.uniforms = torch.full((size, longest), torch.nan, dtype=torch.float64)  # NaN: greedy
        self.temperature = torch.ones(size)

    @property
    def live(self) -> torch.Tensor:
        """Slots with an unfinished row, int64."""
        return (self.owner >= 0).nonzero().squeeze(1)

    def refill(self) -> None:
        """Admit waiting requests once enough slots are free."""
        if not self.queue:
            return
        free = (self.owner < 0).nonzero().squeeze(1)
        if len(free) * REFILL_SHARE >= len(self.owner) or len(free) >= len(self.queue):
            self._admit(free[: len(self.queue)])

    def shrink(self) -> None:
        """With nothing waiting, drop dead slots once they are a quarter of all."""
        live = self.live
        if not self.queue and (len(self.owner) - len(live)) * REFILL_SHARE >= len(self.owner) > 0:
            self.cache = [(keys[live], values[live]) for keys, values in self.cache]
            for name in (
                "owner",
                "prompt",
                "filled",
                "minimum",
                "limit",
                "tokens",
                "logprobs",
                "uniforms",
                "temperature",
            ):
                setattr(self, name, getattr(self, name)[live])

    def step(self) -> None:
        """One decode step for all slots, then finished rows leave."""
        live = self.live
        if not len(live):
            return
        device = self.decoder.embedding.device
        last = self.filled - 1
        alive = self.owner >= 0
        ids = self.tokens.gather(1, last.clamp(min=0).unsqueeze(1)).squeeze(1)
        positions = torch.where(alive, self.prompt + last, 0)
        width = min(self.columns, (int(positions.max()) // COLUMN_BLOCK + 1) * COLUMN_BLOCK)
        logits = self.decoder.decode(ids.to(device), positions.to(device), self.cache, width)
        self._append(logits if len(live) == len(self.owner) else logits[live.to(device)], live)

    def _admit(self, slots: torch.Tensor) -> None:
        rows = [self.queue.popleft() for _ in range(len(slots))]
        requests = [self.requests[row] for row in rows]
        prompts = list(dict.fromkeys(request.prompt_ids for request in requests))  # a group's prompt is read once
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        ids = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.int64)
        for i, prompt in enumerate(prompts):
            ids[i, : len(prompt)] = torch.tensor(prompt)
        device = self.decoder.embedding.device
        logits, stored = self.decoder.prefill(ids.to(device), lengths.to(device))
        source = torch.tensor([prompts.index(request.prompt_ids) for request in requests], device=device)
        for (keys, values), (new_keys, new_values) in zip(self.cache, stored, strict=True):
            keys[slots, :, : ids.shape[1]] = new_keys[source]
            values[slots, :, : ids.shape[1]] = new_values[source]
        self.owner[slots], self.filled[slots] = torch.tensor(rows), 0
        for slot, request in zip(slots.tolist(), requests, strict=True):
            self.prompt[slot], self.limit[slot] = len(request.prompt_ids), request.max_tokens
            self.minimum[slot], self.temperature[slot] = request.min_tokens, 1.0
            self.uniforms[slot] = torch.nan
            if request.uniforms is not None:
                self.temperature[slot] = request.temperature
                self.uniforms[slot, : request.max_tokens] = torch.from_numpy(request.uniforms[: request.max_tokens])
        self._append(logits[source], slots)

    def _append(self, logits: torch.Tensor, slots: torch.Tensor) -> None:
        """Choose the next token of the rows in `slots` (logits [len(slots), V]) and retire the finished ones."""
        filled = self.filled[slots]
        logits = logits.float() / self.temperature[slots].to(logits.device).unsqueeze(1)
        early = filled < self.minimum[slots]
        if early.any():
            logits[early.to(logits.device), self.eos] = -torch.inf
        tokens = choose(logits, self.uniforms[slots, filled])
        logprobs = logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - logits.logsumexp(-1)
        tokens = tokens.cpu()
        self.tokens[slots, filled] = tokens
        self.logprobs[slots, filled] = logprobs.cpu()
        self.filled[slots] = filled + 1
        for slot in slots[(tokens == self.eos) | (filled + 1 >= self.limit[slots])].tolist():
            self._retire(slot)

    def _retire(self, slot: int) -> None:
        n = int(self.filled[slot])
        tokens, logprobs = self.tokens[slot, :n].tolist(), self.logprobs[slot, :n].tolist()
        reason: Literal["stop", "length"] = "stop" if tokens[-1] == self.eos else "length"
        minimum = int(self.minimum[slot])
        self.done[int(self.owner[slot])] = Completion(tuple(tokens), tuple(logprobs), reason, minimum)
        self.owner[slot] = -1


def choose(logits: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Next tokens (int64 [B]): arg max where the uniform is NaN, else the inverse of the cumulative distribution.

    `logits` fp32 [B, V], divided by the temperature, `uniforms` float64 [B]. The cumulative sum is float64, so that
    a vocabulary of 150,000 does not move the boundaries.
    """
    tokens = logits.argmax(-1)
    sampled = (~uniforms.isnan()).nonzero().squeeze(1)
    if len(sampled):
        rows = sampled.to(logits.device)
        cumulative = logits[rows].double().softmax(-1).cumsum(-1)
        target = uniforms[sampled].to(logits.device).unsqueeze(1) * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp_(max=logits.shape[1] - 1)
        tokens[rows] = drawn
    return tokens
