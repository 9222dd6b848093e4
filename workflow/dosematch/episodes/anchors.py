"""The anchor buffer: the policy's own right Fast rollouts, replayed beside distillation (thinker-spec 8)."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Anchor:
    """A right, ended Fast rollout of an earlier step; the identity is kept for the exposure audit."""

    sha1_12: str
    step: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


class AnchorBuffer:
    """First in, first out; the caller adds a step's rollouts after its update, so replay is of earlier steps."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.anchors: list[Anchor] = []

    def add(self, anchors: Sequence[Anchor]) -> None:
        """Append and forget the oldest beyond the capacity."""
        self.anchors = [*self.anchors, *anchors][-self.capacity :]

    def draw(self, n: int, rng: random.Random) -> list[Anchor]:
        """Up to `n` anchors without replacement."""
        return rng.sample(self.anchors, min(n, len(self.anchors)))

    def state(self) -> list[dict[str, Any]]:
        """What a resumed run needs, as plain JSON values."""
        return [asdict(anchor) for anchor in self.anchors]

    def load_state(self, rows: list[dict[str, Any]]) -> None:
        """Restore what `state` returned, possibly through JSON."""
        self.anchors = [
            Anchor(row["sha1_12"], row["step"], tuple(row["prompt_ids"]), tuple(row["token_ids"])) for row in rows
        ]
