"""The clipped surrogate of PPO (t5-spec 2.2, 4.8)."""

import torch


def clipped_objective(
    logp: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, *, clip_low: float, clip_high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """min(rho A, clip(rho) A) per action, and where it has a gradient: all of the same shape, rho = exp(logp - old)."""
    ratio = (logp - old).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    objective = torch.minimum(ratio * advantage, clipped * advantage)
    stopped = ((advantage > 0) & (ratio > 1 + clip_high)) | ((advantage < 0) & (ratio < 1 - clip_low))
    return objective, ~stopped
