"""Estimators as pure functions (thinker-spec 5)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Draw:
    """How an engine drew a segment's targets: its own log-probabilities, to be compared with the trainer's.

    They are those of the distribution drawn from: logits divided by `temperature`, the token `eos` forbidden among the
    first `min_tokens`.
    """

    logprobs: tuple[float, ...]
    temperature: float = 1.0
    min_tokens: int = 0
    eos: int = 0


@dataclass(frozen=True)
class Segment:
    """Train `target_ids` after `context_ids`, from target position `start`, with one weight per token.

    The loss is `weight * sum over t >= start of g_t * (alpha * CE_t + (1 - alpha) * KL_t)` (thinker-spec 5.4): `g_t` is
    the detached Brier gate where `gated`, else 1; `KL_t` is taken to the teacher, the same weights after
    `teacher_ids`, on the teacher's `top_k` tokens. A policy gradient is the plain case with a signed weight. `kind`
    names the loss term and the token counter. `drawn` is there where an engine drew the targets in this context.
    """

    context_ids: tuple[int, ...]
    target_ids: tuple[int, ...]
    weight: float
    kind: str = "pg"
    start: int = 0
    drawn: Draw | None = None
    gated: bool = False
    alpha: float = 1.0
    teacher_ids: tuple[int, ...] | None = None
    top_k: int = 0

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


def drawn_logprobs(logits: torch.Tensor, targets: torch.Tensor, draw: Draw, first: int) -> torch.Tensor:
    """Log-probabilities [N] (fp32) of `targets` int64 [N] in the distribution that `draw` describes.

    `logits` [N, V] are the unmodified ones; `first` is the position of the first target in the completion.
    """
    early = torch.arange(first, first + len(targets), device=logits.device) < draw.min_tokens
    allowed = logits.float() / draw.temperature
    if early.any():
        allowed[early, draw.eos] = -torch.inf
    return target_logprobs(allowed, targets)


def brier_gate(logprobs: torch.Tensor) -> torch.Tensor:
    """Detached variance `4 p (1 - p)` of predicting each token, from its log-probabilities [N] (thinker-spec 5.3)."""
    p = logprobs.detach().exp()
    return 4.0 * p * (1.0 - p)


def top_k_kl(student_logits: torch.Tensor, teacher_logits: torch.Tensor, k: int) -> torch.Tensor:
    """KL [N] from the teacher's `k` likeliest tokens, renormalised, to the student's full distribution.

    Both logits are [N, V]; the teacher is detached; `k` is capped at V (thinker-spec 5.4).
    """
    top = teacher_logits.detach().float().topk(min(k, teacher_logits.shape[-1]), dim=-1)
    log_teacher = top.values.log_softmax(-1)
    log_student = student_logits.float().log_softmax(-1).gather(-1, top.indices)
    return (log_teacher.exp() * (log_teacher - log_student)).sum(-1)


def verdict_rewards(correct: Sequence[bool], verdicts: Sequence[str], pass_rate: float) -> list[float]:
    """Class-balanced rewards of verifications (thinker-spec 5.2).

    A right attempt rewards "Yes" with `1 / (2 p)`, a wrong one "No" with `1 / (2 (1 - p))`; `pass_rate` is clamped by
    the caller, see `clamped`.
    """
    yes, no = 1.0 / (2.0 * pass_rate), 1.0 / (2.0 * (1.0 - pass_rate))
    return [(yes if c else no) if v == ("Yes" if c else "No") else 0.0 for c, v in zip(correct, verdicts, strict=True)]


def clamped(pass_rate: float, low: float = 0.15, high: float = 0.85) -> float:
    """The pass rate that weights may use: a verdict weight stays within [1/1.7, 1/0.3]."""
    return min(high, max(low, pass_rate))
