"""Single-turn GRPO-const256: one group of Fast rollouts, possibly of several horizons (thinker-spec 5.1, 10)."""

from dosematch.episodes.episode import (
    Context,
    Episode,
    anchor_segments,
    count,
    fast_record,
    fast_stage,
    new_anchors,
    pg_segments,
)
from dosematch.streams import StreamItem


def single_turn(item: StreamItem, context: Context) -> Episode:
    """Roll out, grade and weight the Fast group of one question; anchors are replayed one per right rollout."""
    arm = context.arm
    fast = fast_stage(item, context)
    prompts = [fast.prompt] * len(fast.rollouts)
    segments = pg_segments(prompts, fast.rollouts, fast.advantages, context, kind="pg", censor=arm.censor)
    replayed, drawn = anchor_segments(len(new_anchors(fast, item)), item, context)
    record = fast_record(fast, arm) | {"anchor_n": len(drawn), "anchor_sha1": [anchor.sha1_12 for anchor in drawn]}
    return Episode(segments + replayed, record, {"fast": count(fast.rollouts)}, anchors=new_anchors(fast, item))
