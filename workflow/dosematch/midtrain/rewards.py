"""Gains of thoughts and of their prefixes, and where the reward is placed (t5-spec 1.2, 1.3, 1.5)."""

from collections.abc import Sequence

import torch


def thought_gain(without: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """g = ell_0 - ell_z in nats, summed over the continuation: log-probabilities [..., H] -> [...]."""
    return after.sum(-1) - without.sum(-1)


def prefix_rewards(gains: torch.Tensor, ends: Sequence[Sequence[int]], l_max: int) -> torch.Tensor:
    """Telescoping rewards [N, l_max]: at the end of every scored prefix, its gain less that of the prefix before.

    `gains` [N, K] are in units of the reward scale; the rewards of a row sum to the gain of its whole thought, whatever
    the prefixes are, so a terminal reward is the case of one prefix.
    """
    rewards = torch.zeros(len(ends), l_max, dtype=gains.dtype)
    for row, own in enumerate(ends):
        before = 0.0
        for gain, end in zip(gains[row].tolist(), own, strict=False):
            rewards[row, end - 1] = gain - before
            before = gain
    return rewards


def returns(rewards: torch.Tensor) -> torch.Tensor:
    """G_t = sum of the rewards from t on (undiscounted), [N, L] -> [N, L]."""
    return rewards.flip(1).cumsum(1).flip(1)
