"""Single-turn GRPO-const256: one group of Fast rollouts, possibly of several horizons (thinker-spec 5.1, 10)."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from dosematch.episodes.episode import Context, Episode
from dosematch.objectives import Segment, censored, group_advantages, grpo_weights
from dosematch.rollout.engine import Completion
from dosematch.streams import StreamItem


def single_turn(item: StreamItem, context: Context) -> Episode:
    """Roll out, grade and weight the Fast group of one question."""
    arm = context.arm
    prompt = context.prompts.fast_ids(context.tokenizer, item.question)
    rollouts = context.sample(prompt, arm.fast, step=item.step, question=item.sha1_12, stage="fast")
    correct = [context.reward(context.text(rollout), item.answer) for rollout in rollouts]
    advantages = group_advantages([float(c) for c in correct], arm.advantage_epsilon, arm.sigma_floor)
    ended = [rollout.finish_reason == "stop" for rollout in rollouts]
    segments: list[Segment] = []
    masked = [False] * len(rollouts)
    if advantages is not None:
        weights = grpo_weights(advantages, ended, arm.censor, arm.token_divisor)
        masked = [arm.censor and censored(a, end) for a, end in zip(advantages, ended, strict=True)]
        segments = [
            Segment(prompt, rollout.token_ids, weight, sampled_logprobs=rollout.logprobs)
            for rollout, weight in zip(rollouts, weights, strict=True)
        ]
    record = fast_record(rollouts, correct)
    record |= {"adv_fast": advantages or [0.0] * len(rollouts), "censored": masked}
    record["frac_reward_zero_std"] = float(advantages is None)
    return Episode(segments, record, {"fast": sum(len(rollout.token_ids) for rollout in rollouts)})


def fast_record(rollouts: Sequence[Completion], correct: Sequence[bool]) -> dict[str, Any]:
    """The Fast fields of a training row (thinker-spec 15), and their common names beside them."""
    lengths = [len(rollout.token_ids) for rollout in rollouts]
    ended = [rollout.finish_reason == "stop" for rollout in rollouts]
    rewards = [float(c) for c in correct]
    solved = sum(correct)
    logprobs = [logprob for rollout in rollouts for logprob in rollout.logprobs]
    return {
        "fast_acc": fmean(rewards),
        "fast_correct": list(correct),
        "fast_len": lengths,
        "fast_eos": ended,
        "step_class": "all_wrong" if solved == 0 else "all_right" if solved == len(correct) else "mixed",
        "reward": fmean(rewards),
        "reward_std": stdev(rewards) if len(rewards) > 1 else 0.0,
        "completions/mean_length": fmean(lengths),
        "completions/clipped_ratio": 1.0 - fmean(ended),
        # The mean surprise of the model's own samples: an unbiased estimate of its entropy per token.
        "entropy": -fmean(logprobs),
    }
