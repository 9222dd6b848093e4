"""Prefix forking: slow continuations from uncertain positions inside failed Fast rollouts (thinker-spec 7)."""

from collections.abc import Sequence
from dataclasses import dataclass

from dosematch.arm import Fork
from dosematch.backward import token_entropies
from dosematch.episodes.episode import (
    Context,
    Episode,
    anchor_segments,
    count,
    fast_record,
    fast_stage,
    graded,
    new_anchors,
    pg_segments,
)
from dosematch.objectives import Segment
from dosematch.parallel import in_shares
from dosematch.rollout.engine import Completion
from dosematch.streams import StreamItem


@dataclass(frozen=True)
class Prefix:
    """Keep the first `t_fork` tokens of a failed rollout; `entropy` (nats) is that of the position forked at."""

    rollout: int
    window: int
    t_fork: int
    entropy: float


def windows(length: int, fork: Fork) -> list[range]:
    """The two windows of fork positions in a rollout of `length` tokens; both ends are inclusive (thinker-spec 7.1)."""
    if length < fork.min_length:
        return []
    last = length - fork.margin
    first = max(fork.second_floor, min(fork.second_start, length // 2))
    return [
        range(fork.first_start, min(last, fork.first_end) + 1),
        range(first, min(last, fork.second_end) + 1),
    ]


def select_prefixes(failed: Sequence[tuple[int, Sequence[float]]], fork: Fork) -> list[Prefix]:
    """Pick `k` prefixes from (rollout, entropies per position) pairs.

    Every non-empty window offers its position of largest entropy (the earliest of equals); one position offered by both
    windows counts once. The `k` most uncertain are taken, and cycled through where there are fewer.
    """
    offers: dict[tuple[int, int], Prefix] = {}
    for rollout, entropies in failed:
        for number, window in enumerate(windows(len(entropies), fork), 1):
            if window:
                t = max(window, key=lambda t: (entropies[t], -t))
                offers.setdefault((rollout, t), Prefix(rollout, number, t, entropies[t]))
    ranked = sorted(offers.values(), key=lambda p: (-p.entropy, p.rollout, p.t_fork))
    return [ranked[i % len(ranked)] for i in range(fork.k)] if ranked else []


def accepted(prefix_length: int, continuation: Completion, right: bool, fork: Fork) -> bool:
    """A fork is trained on when it is right, ended, and prefix and continuation fit the limit (thinker-spec 7.2)."""
    fits = prefix_length + len(continuation.token_ids) <= fork.max_sequence
    return right and fits and continuation.finish_reason == "stop"


def forking(item: StreamItem, context: Context) -> Episode:
    """Fast group with policy gradient; right continuations of forked failures as supervised targets after `x_fast`."""
    arm = context.arm
    if arm.fork is None:
        raise ValueError("a forking arm needs fork settings")
    fast = fast_stage(item, context)
    eligible = [i for i in fast.failed if len(fast.rollouts[i].token_ids) >= arm.fork.min_length]
    sequences = [(fast.prompt, fast.rollouts[i].token_ids) for i in eligible]
    entropies = in_shares(lambda own: token_entropies(context.model, own, context.logit_rows), sequences)
    prefixes = select_prefixes(list(zip(eligible, entropies, strict=True)), arm.fork)
    kept = [fast.rollouts[p.rollout].token_ids[: p.t_fork] for p in prefixes]
    forks = context.sample([fast.prompt + prefix for prefix in kept], [arm.fork] * len(kept), item, "fork")
    whole = [
        Completion(prefix + fork.token_ids, (0.0,) * len(prefix) + fork.logprobs, fork.finish_reason)
        for prefix, fork in zip(kept, forks, strict=True)
    ]
    right = graded(whole, item, context)
    taken = [accepted(len(prefix), fork, r, arm.fork) for prefix, fork, r in zip(kept, forks, right, strict=True)]
    starts = fork_starts(prefixes, fast.advantages) if arm.prefix_mask else {}
    group = [fast.prompt] * len(fast.rollouts)
    segments = pg_segments(group, fast.rollouts, fast.advantages, context, kind="pg", censor=arm.censor, starts=starts)
    targets = [(p, y.token_ids) for p, y, take in zip(prefixes, whole, taken, strict=True) if take]
    segments += fork_segments(fast.prompt, targets, context)
    replayed, drawn = anchor_segments(len(targets), item, context)
    record = fast_record(fast, arm) | {
        "n_fork": len(forks),
        "fork_parents": [
            {"rollout": p.rollout, "window": p.window, "t_fork": p.t_fork, "entropy": p.entropy} for p in prefixes
        ],
        "fork_accepted": taken,
        "anchor_n": len(drawn),
        "anchor_sha1": [anchor.sha1_12 for anchor in drawn],
    }
    generated = {"fast": count(fast.rollouts), "fork": count(forks)}
    scored = sum(len(tokens) for _, tokens in sequences)
    return Episode(segments + replayed, record, generated, scored, new_anchors(fast, item))


def fork_starts(prefixes: Sequence[Prefix], advantages: list[float] | None) -> dict[int, int]:
    """Prefix mask of the policy gradient: a negative fork parent keeps only tokens from its smallest `t_fork` on."""
    starts: dict[int, int] = {}
    for prefix in prefixes:
        if advantages is not None and advantages[prefix.rollout] < 0:
            starts[prefix.rollout] = min(prefix.t_fork, starts.get(prefix.rollout, prefix.t_fork))
    return starts


def fork_segments(
    x_fast: tuple[int, ...], targets: Sequence[tuple[Prefix, tuple[int, ...]]], context: Context
) -> list[Segment]:
    """Accepted forks as targets after `x_fast`, from the fork on where prefixes are masked (thinker-spec 7.3)."""
    arm = context.arm
    segments = []
    for prefix, tokens in targets:
        start = prefix.t_fork if arm.prefix_mask else 0
        weight = arm.lambda_distill / ((len(tokens) - start) * len(targets))
        segments.append(Segment(x_fast, tokens, weight, "distill", start, gated=arm.gate == "brier"))
    return segments
