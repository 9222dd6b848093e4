"""What every window leaves behind in a row that repeats to the byte (t5-spec 6.4)."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from dosematch.midtrain.rollouts import Trajectory

WORST = 0.01  # share of the lowest gains whose mean is reported


class Counts:
    """Trajectories and tokens of one window by role."""

    def __init__(self) -> None:
        self.n_traj: dict[str, int] = defaultdict(int)
        self.n_tok_gen: dict[str, int] = defaultdict(int)
        self.n_tok_scored = 0

    def add(self, role: str, trajectories: Sequence[Trajectory], horizon: int) -> None:
        """Count new trajectories of a role; a scored token is one of a continuation after a whole thought."""
        self.n_traj[role] += len(trajectories)
        self.n_tok_gen[role] += sum(len(t.thought.ids) for t in trajectories)
        self.n_tok_scored += horizon * len(trajectories)

    def row(self) -> dict[str, Any]:
        """The counts as they stand in a window's row."""
        return {"n_traj": dict(self.n_traj), "n_tok_gen": dict(self.n_tok_gen), "n_tok_scored": self.n_tok_scored}


def gain_fields(trajectories: Sequence[Trajectory], horizon: int) -> dict[str, float]:
    """Reward and gain of the actor's thoughts: nats per continuation, and per token where named so."""
    gain = torch.tensor([t.gain for t in trajectories], dtype=torch.float64)
    mixed = torch.tensor([t.mixed_gain for t in trajectories], dtype=torch.float64)
    lengths = torch.tensor([len(t.thought.ids) for t in trajectories], dtype=torch.float64)
    reward = torch.tensor([sum(t.rewards) for t in trajectories], dtype=torch.float64)
    n_worst = max(1, round(len(gain) * WORST))
    return {
        "reward": reward.mean().item(),
        "reward_std": reward.std(correction=0).item(),
        "thought_gain": gain.mean().item(),
        "thought_gain_per_token": gain.mean().item() / horizon,
        "mixed_gain": mixed.mean().item(),
        "useful_fraction": (gain > 0).double().mean().item(),
        "worst_gain": gain.sort().values[:n_worst].mean().item(),
        "completions/mean_length": lengths.mean().item(),
        "completions/clipped_ratio": sum(not t.thought.closed for t in trajectories) / len(trajectories),
    }


def mismatch_fields(logp_q: torch.Tensor, logp_old: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """How far the sampler's law is from the trainer's (1.7): log-probability gaps and E_q[pi_old / q], all [N, L]."""
    gap = (logp_old - logp_q)[mask].double()
    return {
        "sampling/logp_difference/mean": gap.abs().mean().item(),
        "sampling/logp_difference/max": gap.abs().max().item(),
        "sampling/importance_ratio/mean": gap.exp().mean().item(),
    }
