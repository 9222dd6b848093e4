"""What an engine promises: `Request` in, `Completion` out, weights by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch


@dataclass(frozen=True)
class Request:
    """One sequence to continue.

    `uniforms` (float64, at least `max_tokens` long, one per position) decide the sampled tokens by inverting the
    cumulative distribution; None means greedy. `min_tokens` forbids the end-of-sequence token before that many tokens.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    min_tokens: int = 0
    uniforms: np.ndarray | None = None
    temperature: float = 1.0


@dataclass(frozen=True)
class Completion:
    """What was generated: token ids incl. the end-of-sequence token if it came, and each token's log-probability.

    Log-probabilities are those of the distribution drawn from (temperature applied, the end of sequence forbidden among
    the first `min_tokens`), so that the trainer, which recomputes them, notices a wrong temperature as well as stale
    weights; a greedy one's temperature is 1. `finish_reason` is "stop" when the last token is the end of sequence, else
    "length".
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]
    min_tokens: int = 0


class Generator(Protocol):
    """What episodes and evaluation need of an engine."""

    def generate(self, requests: Sequence[Request], batch_size: int | None = None) -> list[Completion]:
        """Complete every request, in request order, with at most `batch_size` sequences in flight."""
        ...


class Engine(Generator, Protocol):
    """A generator of completions whose weights can be replaced between calls."""

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights by those of a Hugging Face state dict."""
        ...

    def close(self) -> None:
        """Free memory and processes."""
        ...
