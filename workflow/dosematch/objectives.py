"""Estimators as pure functions (thinker-spec 5)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Segment:
    """Train `target_ids` after `context_ids`, from target position `start`, with one weight per token.

    The loss is `-weight * sum of log p(target_t) over t >= start`. `kind` names the loss term and the token counter.
    `sampled_logprobs` are the engine's log-probabilities of the targets, to be compared with the trainer's.
    """

    context_ids: tuple[int, ...]
    target_ids: tuple[int, ...]
    weight: float
    kind: str = "pg"
    start: int = 0
    sampled_logprobs: tuple[float, ...] | None = None

    def __len__(self) -> int:
        return len(self.context_ids) + len(self.target_ids)


def group_advantages(rewards: Sequence[float], epsilon: float = 1e-4, floor: float = 1e-5) -> list[float] | None:
    """Advantages of one group, `(R - mean) / (std + epsilon)` with ddof 1; None when the group gives no signal.

    A group gives none when it has fewer than two members or `std < floor` (thinker-spec 5.1). float64 throughout.
    """
    if len(rewards) < 2:
        return None
    values = torch.tensor(rewards, dtype=torch.float64)
    sigma = values.std(correction=1)
    if sigma < floor:
        return None
    return ((values - values.mean()) / (sigma + epsilon)).tolist()


def censored(advantage: float, ended: bool) -> bool:
    """Right-censored mask: a truncated rollout may not be punished, since its outcome is unknown (thinker-spec 5.1)."""
    return advantage < 0 and not ended


def grpo_weights(
    advantages: Sequence[float], ended: Sequence[bool], censor: bool, divisor: float = 256.0
) -> list[float]:
    """Per-token weights of GRPO-const256: `m * A / (n * divisor)`, the same for every token of a rollout.

    `n` counts all rollouts of the group, masked or not; the divisor never changes with lengths or masks.
    """
    n = len(advantages)
    return [
        0.0 if censor and censored(advantage, end) else advantage / (n * divisor)
        for advantage, end in zip(advantages, ended, strict=True)
    ]


def target_logprobs(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [N] (fp32) of `targets` int64 [N] under `logits` [N, V]."""
    logits = logits.float()
    return logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
