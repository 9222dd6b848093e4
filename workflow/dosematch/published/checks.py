"""A check is one printed value held against its recomputation; the constructors here are all the forms of a rule."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from dosematch.published.cells import Cell


@dataclass(frozen=True)
class Check:
    """One printed value against what other printed values say it must be.

    `pinned` cells enter the check exactly: changing any of their digits alone makes the check fail. `bounded` cells
    enter through a rounding or an inequality, so that only a large enough change does.
    """

    rule: str
    cell: Cell
    recomputed: str
    ok: bool
    pinned: tuple[Cell, ...] = ()
    bounded: tuple[Cell, ...] = ()

    @property
    def identity(self) -> tuple[str, str, str, str, str, str]:
        """(rule, file, row, column, printed, recomputed)."""
        return (self.rule, self.cell.file, self.cell.row, self.cell.column, self.cell.text, self.recomputed)


def equal(rule: str, cell: Cell, recomputed: Fraction | int, parts: Iterable[Cell] = ()) -> Check:
    """`cell` must equal `recomputed`, a sum or difference of `parts` with unit weights: all of them are pinned."""
    return Check(rule, cell, show(recomputed), cell.number == recomputed, pinned=(cell, *parts))


def rounded(rule: str, cell: Cell, recomputed: Fraction, parts: Iterable[Cell] = ()) -> Check:
    """`cell` must be `recomputed` rounded to its own decimals, half to even (291/480 prints 60.62; thinker-spec 17)."""
    ok = cell.number == round(recomputed, cell.decimals)
    return Check(rule, cell, show(recomputed), ok, pinned=(cell,), bounded=tuple(parts))


def between(
    rule: str, cell: Cell, low: Fraction | int | None, high: Fraction | int | None, parts: Iterable[Cell] = ()
) -> Check:
    """`cell` must lie in the closed interval [low, high]; None leaves that side open."""
    ok = (low is None or low <= cell.number) and (high is None or cell.number <= high)
    lower = "" if low is None else f"{show(low)} <= "
    upper = "" if high is None else f" <= {show(high)}"
    return Check(rule, cell, f"{lower}value{upper}", ok, bounded=(cell, *parts))


def same_text(rule: str, cell: Cell, recomputed: str, parts: Iterable[Cell] = ()) -> Check:
    """`cell` must read `recomputed`, letter by letter; both sides are pinned."""
    return Check(rule, cell, recomputed, cell.text == recomputed, pinned=(cell, *parts))


def member(rule: str, cell: Cell, allowed: Iterable[str]) -> Check:
    """`cell` must be one of the `allowed` names."""
    names = list(allowed)
    return Check(rule, cell, f"one of {', '.join(names)}", cell.text in names, pinned=(cell,))


def show(value: Fraction | int) -> str:
    """A number as text: whole numbers in full, others with nine significant digits."""
    return str(int(value)) if value == int(value) else f"{float(value):.9g}"
