"""What every episode is given and returns, and the stages that episodes share."""

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dosematch.arm import Arm, Limits
from dosematch.episodes.anchors import Anchor, AnchorBuffer
from dosematch.objectives import Draw, Segment, censored, group_advantages, grpo_weights
from dosematch.prompts import Prompts
from dosematch.rollout.engine import Completion, Generator, Request
from dosematch.sampling import philox_key, uniforms
from dosematch.streams import StreamItem


class Reward(Protocol):
    """Grades a completion's text against the reference answer."""

    def __call__(self, text: str, gold: str) -> bool:
        """True when the text's answer is right."""
        ...


@dataclass(frozen=True)
class Context:
    """Everything an episode may use; `pass_rate` and `anchors` are as the steps before left them."""

    engine: Generator
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    prompts: Prompts
    reward: Reward
    arm: Arm
    study: str
    seed: int
    anchors: AnchorBuffer
    pass_rate: float = 0.5
    logit_rows: int = 4096

    @property
    def eos(self) -> int:
        """The end-of-sequence token."""
        return self.tokenizer.eos_token_id

    def text(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return decoded(self.tokenizer, token_ids)

    def said(self, completion: Completion) -> tuple[int, ...]:
        """A completion's tokens as a later stage reads them: without the end of sequence."""
        return without(completion.token_ids, self.eos)

    def sample(
        self, prompts: Sequence[tuple[int, ...]], limits: Sequence[Limits], item: StreamItem, stage: str
    ) -> list[Completion]:
        """Sample one completion per prompt under its limits; rollouts are numbered in this order."""
        requests = []
        for rollout, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
            draws = uniforms(
                limit.max_tokens,
                study=self.study,
                seed=self.seed,
                run=self.arm.run,
                step=item.step,
                question=item.sha1_12,
                stage=stage,
                rollout=rollout,
            )
            requests.append(Request(prompt, limit.max_tokens, limit.min_tokens, draws, self.arm.temperature))
        return self.engine.generate(requests, batch_size=len(requests)) if requests else []

    def rng(self, item: StreamItem, purpose: str) -> random.Random:
        """A seeded generator for choices that are no token samples."""
        key = philox_key(study=self.study, seed=self.seed, run=self.arm.run, step=item.step, purpose=purpose)
        return random.Random(key.tobytes())


def decoded(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """Text of tokens, without special ones."""
    return str(tokenizer.decode(list(token_ids), skip_special_tokens=True))


def without(token_ids: Sequence[int], token: int) -> tuple[int, ...]:
    """The tokens less every occurrence of one."""
    return tuple(kept for kept in token_ids if kept != token)


@dataclass
class Episode:
    """Segments to train on, the fields of the step's row, what was generated per stage (tokens), new anchors."""

    segments: list[Segment]
    record: dict[str, Any]
    generated: dict[str, int] = field(default_factory=dict)
    entropy_tokens: int = 0
    anchors: list[Anchor] = field(default_factory=list)


@dataclass(frozen=True)
class FastStage:
    """The Fast rollouts of one question, graded; `advantages` is None without a signal."""

    prompt: tuple[int, ...]
    rollouts: list[Completion]
    correct: list[bool]
    advantages: list[float] | None

    @property
    def ended(self) -> list[bool]:
        """Which rollouts ended by themselves."""
        return [rollout.finish_reason == "stop" for rollout in self.rollouts]

    @property
    def failed(self) -> list[int]:
        """Indices of wrong rollouts."""
        return [i for i, correct in enumerate(self.correct) if not correct]


def fast_stage(item: StreamItem, context: Context) -> FastStage:
    """Roll out and grade the Fast groups of one question; all groups form one group of advantages."""
    arm = context.arm
    prompt = context.prompts.fast_ids(context.tokenizer, item.question)
    limits = [group for group in arm.fast for _ in range(group.n)]
    rollouts = context.sample([prompt] * len(limits), limits, item, "fast")
    correct = graded(rollouts, item, context)
    return FastStage(prompt, rollouts, correct, advantages(correct, arm))


def graded(rollouts: Sequence[Completion], item: StreamItem, context: Context) -> list[bool]:
    """Whether each completion's answer is right."""
    return [context.reward(context.text(rollout.token_ids), item.answer) for rollout in rollouts]


def advantages(rewards: Sequence[float], arm: Arm) -> list[float] | None:
    """Group advantages with the arm's constants (thinker-spec 5.1)."""
    return group_advantages([float(reward) for reward in rewards], arm.advantage_epsilon, arm.sigma_floor)


def pg_segments(
    prompts: Sequence[tuple[int, ...]],
    rollouts: Sequence[Completion],
    group: list[float] | None,
    context: Context,
    *,
    kind: str,
    censor: bool = False,
    starts: dict[int, int] | None = None,
) -> list[Segment]:
    """GRPO-const256 segments of one group; `starts` masks the tokens before a position in some rollouts."""
    if group is None:
        return []
    arm = context.arm
    ended = [rollout.finish_reason == "stop" for rollout in rollouts]
    weights = grpo_weights(group, ended, censor, arm.token_divisor)
    return [
        Segment(
            prompt,
            rollout.token_ids,
            weight,
            kind=kind,
            start=(starts or {}).get(i, 0),
            drawn=Draw(rollout.logprobs, arm.temperature, rollout.min_tokens, context.eos),
        )
        for i, (prompt, rollout, weight) in enumerate(zip(prompts, rollouts, weights, strict=True))
    ]


def anchor_segments(n: int, item: StreamItem, context: Context) -> tuple[list[Segment], list[Anchor]]:
    """Replay up to `n` anchors: mean over tokens, then sequences, times `anchor_weight * lambda` (thinker-spec 8)."""
    arm = context.arm
    if not arm.anchor or n == 0:
        return [], []
    drawn = context.anchors.draw(n, context.rng(item, "anchor"))
    scale = arm.anchor_weight * arm.lambda_distill
    segments = [
        Segment(a.prompt_ids, a.token_ids, scale / (len(a.token_ids) * len(drawn)), "anchor", gated=arm.gate == "brier")
        for a in drawn
    ]
    return segments, drawn


def new_anchors(fast: FastStage, item: StreamItem) -> list[Anchor]:
    """The right Fast rollouts that ended: what the buffer takes after the step's update."""
    return [
        Anchor(item.sha1_12, item.step, fast.prompt, rollout.token_ids)
        for rollout, right, ended in zip(fast.rollouts, fast.correct, fast.ended, strict=True)
        if right and ended
    ]


def fast_record(fast: FastStage, arm: Arm) -> dict[str, Any]:
    """The Fast fields of a training row (thinker-spec 15), and their common names beside them."""
    lengths = [len(rollout.token_ids) for rollout in fast.rollouts]
    rewards = [float(correct) for correct in fast.correct]
    solved, n = sum(fast.correct), len(fast.correct)
    group = fast.advantages or [0.0] * n
    return {
        "fast_acc": fmean(rewards),
        "fast_correct": fast.correct,
        "fast_len": lengths,
        "fast_eos": fast.ended,
        "fast_sha1": [
            hashlib.sha1(json.dumps(rollout.token_ids).encode()).hexdigest()[:12] for rollout in fast.rollouts
        ],
        "step_class": "all_wrong" if solved == 0 else "all_right" if solved == n else "mixed",
        "adv_fast": group,
        "censored": [arm.censor and censored(a, end) for a, end in zip(group, fast.ended, strict=True)],
        "reward": fmean(rewards),
        "reward_std": stdev(rewards) if n > 1 else 0.0,
        "frac_reward_zero_std": float(fast.advantages is None),
        "completions/mean_length": fmean(lengths),
        "completions/clipped_ratio": 1.0 - fmean(fast.ended),
        # The mean surprise of the model's own samples: an unbiased estimate of its entropy per token.
        "entropy": -fmean(logprob for rollout in fast.rollouts for logprob in rollout.logprobs),
    }


def count(rollouts: Sequence[Completion]) -> int:
    """Generated tokens, end of sequence included."""
    return sum(len(rollout.token_ids) for rollout in rollouts)
