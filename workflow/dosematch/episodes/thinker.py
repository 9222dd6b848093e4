"""The four-stage episode: Fast -> Verify -> Slow -> Summary, on a shared actor or isolated (thinker-spec 5.2, 6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dosematch.answers import parse_verdict
from dosematch.arm import Limits
from dosematch.episodes.episode import (
    Context,
    Episode,
    FastStage,
    advantages,
    anchor_segments,
    count,
    fast_record,
    fast_stage,
    graded,
    new_anchors,
    pg_segments,
)
from dosematch.objectives import Segment, clamped, verdict_rewards
from dosematch.prompts import encode
from dosematch.rollout.engine import Completion
from dosematch.streams import StreamItem

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Stage:
    """Completions of one stage with their prompts and whether their answers are right."""

    prompts: list[Ids]
    rollouts: list[Completion]
    correct: list[bool]


def thinker(item: StreamItem, context: Context) -> Episode:
    """One verification per Fast rollout, one slow answer per failed one, one summary per right slow answer.

    With `pg_stages` every stage is trained by policy gradient in its own dialogue; without, stages 2 to 4 only sample
    and all gradients are taken after `x_fast` (isolation).
    """
    arm = context.arm
    fast = fast_stage(item, context)
    verify, verdicts = _verify(fast, item, context)
    slow = _slow(fast, verify, item, context)
    summary = _summary(fast, slow, item, context)
    segments: list[Segment] = []
    if arm.pg_fast:
        prompts = [fast.prompt] * len(fast.rollouts)
        segments += pg_segments(prompts, fast.rollouts, fast.advantages, context, kind="pg", censor=arm.censor)
    if arm.pg_stages:
        rewards = verdict_rewards(fast.correct, verdicts, clamped(context.pass_rate))
        segments += pg_segments(verify.prompts, verify.rollouts, advantages(rewards, arm), context, kind="verify")
        for kind, stage in (("slow", slow), ("summary_pg", summary)):
            segments += pg_segments(stage.prompts, stage.rollouts, advantages(stage.correct, arm), context, kind=kind)
    accepted = _accepted(summary)
    segments += summary_segments(fast.prompt, summary, accepted, context)
    n_anchors = max(len(accepted), int(arm.anchor_on_failure and bool(fast.failed)))
    replayed, drawn = anchor_segments(n_anchors, item, context)
    generated = {"fast": count(fast.rollouts), "verify": count(verify.rollouts)}
    generated |= {"slow": count(slow.rollouts), "summary": count(summary.rollouts)}
    record = fast_record(fast, arm) | _record(verify, verdicts, slow, summary, context)
    record |= {"anchor_n": len(drawn), "anchor_sha1": [anchor.sha1_12 for anchor in drawn]}
    return Episode(segments + replayed, record, generated, anchors=new_anchors(fast, item))


def summary_segments(x_fast: Ids, summary: Stage, accepted: Sequence[int], context: Context) -> list[Segment]:
    """Accepted summaries as targets after `x_fast`; the teacher reads the solved dialogue (thinker-spec 5.4)."""
    arm = context.arm
    if not arm.summary_sft:
        return []
    return [
        Segment(
            x_fast,
            target,
            arm.lambda_distill / (len(target) * len(accepted)),
            "distill",
            gated=arm.gate == "brier",
            alpha=arm.alpha,
            teacher_ids=summary.prompts[i],
            top_k=arm.teacher_top_k,
        )
        for i in accepted
        for target in [summary.rollouts[i].token_ids]
    ]


def _verify(fast: FastStage, item: StreamItem, context: Context) -> tuple[Stage, list[str]]:
    ask = encode(context.tokenizer, context.prompts.verify)
    prompts = [fast.prompt + context.said(rollout) + ask for rollout in fast.rollouts]
    rollouts = context.sample(prompts, _limits(context.arm.verify, len(prompts)), item, "verify")
    verdicts = [parse_verdict(context.text(rollout.token_ids)) for rollout in rollouts]
    agrees = [v == ("Yes" if c else "No") for v, c in zip(verdicts, fast.correct, strict=True)]
    return Stage(prompts, rollouts, agrees), list(verdicts)


def _slow(fast: FastStage, verify: Stage, item: StreamItem, context: Context) -> Stage:
    ask = encode(context.tokenizer, context.prompts.slow)
    prompts = [verify.prompts[i] + context.said(verify.rollouts[i]) + ask for i in fast.failed]
    rollouts = context.sample(prompts, _limits(context.arm.slow, len(prompts)), item, "slow")
    return Stage(prompts, rollouts, graded(rollouts, item, context))


def _summary(fast: FastStage, slow: Stage, item: StreamItem, context: Context) -> Stage:
    ask = encode(context.tokenizer, context.prompts.summary)
    solved = [rollout for rollout, right in zip(slow.rollouts, slow.correct, strict=True) if right]
    prompts = [fast.prompt + context.said(rollout) + ask for rollout in solved]
    rollouts = context.sample(prompts, _limits(context.arm.summary, len(prompts)), item, "summary")
    return Stage(prompts, rollouts, graded(rollouts, item, context))


def _accepted(summary: Stage) -> list[int]:
    """Summaries that may be trained on: right, and ended by themselves."""
    ended = (rollout.finish_reason == "stop" for rollout in summary.rollouts)
    return [i for i, (right, end) in enumerate(zip(summary.correct, ended, strict=True)) if right and end]


def _limits(limits: Limits | None, n: int) -> list[Limits]:
    if limits is None:
        raise ValueError("a four-stage arm needs limits for verify, slow and summary")
    return [limits] * n


def _record(verify: Stage, verdicts: list[str], slow: Stage, summary: Stage, context: Context) -> dict[str, Any]:
    return {
        "verdicts": verdicts,
        "verify_acc": fmean(verify.correct),
        "slow_acc": fmean(slow.correct) if slow.correct else None,
        "n_slow": len(slow.rollouts),
        "summary_acc": fmean(summary.correct) if summary.correct else None,
        "n_summary": len(summary.rollouts),
        "pbar_ema": context.pass_rate,
    }
