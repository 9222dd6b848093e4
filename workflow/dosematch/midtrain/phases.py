"""Seconds of a window by phase (t5-spec 6.4)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

PHASES = ("gen", "score", "fit", "check", "head", "val", "actor", "anchor", "gate")


class Phases:
    """Seconds of one window by phase; what no phase claims is `other`. Phases may not overlap."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin a window."""
        self.started, self.spent = time.perf_counter(), dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def at(self, phase: str) -> Iterator[None]:
        """Count the seconds of a block."""
        start = time.perf_counter()
        yield
        self.spent[phase] += time.perf_counter() - start

    def row(self) -> dict[str, float]:
        """`t_<phase>` seconds, `t_other`, and their sum `t_window`."""
        total = time.perf_counter() - self.started
        other = max(0.0, total - sum(self.spent.values()))
        return {f"t_{phase}": seconds for phase, seconds in self.spent.items()} | {"t_other": other, "t_window": total}
