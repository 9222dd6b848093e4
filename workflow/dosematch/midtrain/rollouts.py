"""From text positions to scored trajectories: sample, score, reward; and trajectories as tensors (t5-spec 1)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from dosematch.midtrain.phases import Phases
from dosematch.midtrain.pred_gate import PredictionGate, mixed_logp
from dosematch.midtrain.rewards import prefix_rewards, returns, thought_gain
from dosematch.midtrain.scorer import Inserted, Plain, Scorer
from dosematch.midtrain.settings import T5TrainSettings
from dosematch.midtrain.thoughts import Item, Thought, sample_thoughts
from dosematch.rollout.engine import Generator


@dataclass(frozen=True)
class Trajectory:
    """One thought with its rewards, in units of the reward scale; gains are nats summed over the continuation."""

    id: str
    role: str
    window: int
    item: Item
    thought: Thought
    rewards: tuple[float, ...]
    gain: float
    mixed_gain: float

    def plain(self) -> dict[str, Any]:
        """As JSON, exactly."""
        return asdict(self)

    @classmethod
    def load(cls, row: dict[str, Any]) -> "Trajectory":
        """The inverse of `plain`."""
        item, thought = row["item"], row["thought"]
        ids = {key: tuple(item[key]) for key in ("context", "continuation")}
        drawn = {key: tuple(thought[key]) for key in ("ids", "logp_q")}
        return cls(
            **{**row, "rewards": tuple(row["rewards"]), "item": Item(**{**item, **ids})}
            | {"thought": Thought(**{**thought, **drawn})}
        )


@dataclass(frozen=True)
class Batch:
    """Trajectories as tensors, float32 [N, l_max], zero past a thought's end; `mask` is true at actions."""

    contexts: list[tuple[int, ...]]
    continuations: list[tuple[int, ...]]
    thoughts: list[tuple[int, ...]]
    mask: torch.Tensor
    rewards: torch.Tensor
    returns: torch.Tensor
    logp_q: torch.Tensor

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], l_max: int) -> "Batch":
        """Collate; the width is `l_max` whatever the longest thought is."""

        def table(rows: list[tuple[float, ...]]) -> torch.Tensor:
            return torch.tensor([[*row, *[0.0] * (l_max - len(row))] for row in rows])

        lengths = torch.tensor([len(t.thought.ids) for t in trajectories])
        rewards = table([t.rewards for t in trajectories])
        mask = torch.arange(l_max) < lengths.unsqueeze(1)
        return cls(
            contexts=[t.item.context for t in trajectories],
            continuations=[t.item.continuation for t in trajectories],
            thoughts=[t.thought.ids for t in trajectories],
            mask=mask,
            rewards=rewards,
            returns=returns(rewards) * mask,
            logp_q=table([t.thought.logp_q for t in trajectories]),
        )

    @property
    def row_lengths(self) -> list[int]:
        """Tokens of context and thought per trajectory."""
        return [len(context) + len(ids) for context, ids in zip(self.contexts, self.thoughts, strict=True)]


@dataclass(frozen=True)
class Scored:
    """New trajectories, and what the scorer said about them, one row per trajectory.

    `ell_0` [N] nats, `before`, `after`, `text` [N, h]: scorer states at the last visible token, at the closing token,
    and mean over the continuation; `without`, `inserted` [N, H]: log-probabilities without and after the thought.
    """

    trajectories: list[Trajectory]
    ell_0: torch.Tensor
    before: torch.Tensor
    after: torch.Tensor
    text: torch.Tensor
    without: torch.Tensor
    inserted: torch.Tensor


class Collector:
    """Samples and scores thoughts under the frozen objective of a window; `sigma_r` is the reward scale."""

    def __init__(
        self,
        settings: T5TrainSettings,
        seed: int,
        engine: Generator,
        scorer: Scorer,
        baseline: Scorer,
        gate: PredictionGate | None,
        phases: Phases,
    ) -> None:
        """`baseline` predicts the text without a thought for the reward; it may be the scorer itself."""
        self.settings, self.seed, self.engine, self.phases = settings, seed, engine, phases
        self.scorer, self.baseline, self.gate = scorer, baseline, gate
        self.sigma_r = 1.0

    def calibrate(self, items: Sequence[Item]) -> None:
        """Fix the reward scale: the standard deviation of the gain over one thought of every item (1.3)."""
        kind = self.settings.arm.reward.kind
        scored = self.collect(items, role="pilot", step=0, window=0).trajectories
        gains = torch.tensor([t.gain if kind == "thought" else t.mixed_gain for t in scored])
        self.sigma_r = max(float(gains.std()), 1e-6)

    def collect(self, items: Sequence[Item], *, role: str, step: int, window: int, group: int = 1) -> Scored:
        """`group` thoughts of every item, items in order; `step` is the counter that the random numbers depend on."""
        settings = self.settings
        task, reward = settings.task, settings.arm.reward
        with self.phases.at("gen"):
            thoughts = sample_thoughts(
                self.engine,
                items,
                task,
                group=group,
                seed=self.seed,
                step=step,
                role=role,
                batch=settings.training.generate_batch,
            )
        with self.phases.at("score"):
            repeated = [item for item in items for _ in range(group)]
            plain = _repeat(self.scorer.plain(items), group)
            baseline = plain if self.baseline is self.scorer else _repeat(self.baseline.plain(items), group)
            k = task.checkpoints if reward.placement == "prefix_delta" else 1
            inserted = self.scorer.inserted(repeated, thoughts, task.l_max, k)
            gain, mixed = self._gains(plain, baseline, inserted)
            placed = prefix_rewards(
                (gain if reward.kind == "thought" else mixed) / self.sigma_r, inserted.ends, task.l_max
            )
        trajectories = [
            Trajectory(
                id=f"w{window}/{role}/{item.item_id}/{i % group}",
                role=role,
                window=window,
                item=item,
                thought=thought,
                rewards=tuple(placed[i, : len(thought.ids)].tolist()),
                gain=float(gain[i, -1]),
                mixed_gain=float(mixed[i, -1]),
            )
            for i, (item, thought) in enumerate(zip(repeated, thoughts, strict=True))
        ]
        return Scored(
            trajectories,
            ell_0=-plain.logp.sum(1),
            before=plain.last,
            after=inserted.closing[:, -1],
            text=plain.mean,
            without=plain.logp,
            inserted=inserted.logp[:, -1],
        )

    @torch.no_grad()
    def _gains(self, plain: Plain, baseline: Plain, inserted: Inserted) -> tuple[torch.Tensor, torch.Tensor]:
        """Thought gains and mixed gains of every prefix, nats [N, K]; without a gate the mixture is the thought's."""
        used = slice(None) if self.settings.arm.reward.horizon == "all" else slice(0, 1)
        gain = thought_gain(baseline.logp[:, used].unsqueeze(1), inserted.logp[..., used])
        if self.gate is None:
            return gain, gain
        logit = self.gate(plain.last.unsqueeze(1).expand_as(inserted.closing), inserted.closing)
        without = plain.logp.unsqueeze(1)
        mixed = mixed_logp(logit, without, inserted.logp, self.settings.arm.pred_gate.space)
        return gain, thought_gain(without[..., used], mixed[..., used])


def _repeat(plain: Plain, group: int) -> Plain:
    return Plain(*(tensor.repeat_interleave(group, 0) for tensor in (plain.logp, plain.last, plain.mean)))
