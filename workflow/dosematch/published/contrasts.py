"""Rules on Table 2: net, pp, exact p, intervals, decontaminated nets (thinker-spec 13)."""

import math
import re
from collections.abc import Iterator
from fractions import Fraction

from dosematch.errors import UserError
from dosematch.published.cells import Cell, Published, Row
from dosematch.published.checks import Check, between, equal, member, rounded, show
from dosematch.published.design import CLEAN, Design
from dosematch.statistics.mcnemar import exact_p

NORMAL_95 = 1.959964
PLAUSIBLE = 0.1  # share of the normal half-width by which a bootstrap interval may differ in width and centre
BOUND = re.compile(r"<10\^-(\d+)")
SCIENTIFIC = re.compile(r"(\d+)\.(\d+)x10\^-(\d+)")


def check_contrasts(published: Published) -> Iterator[Check]:
    """All checks of Table 2, and of the further contrasts that only the text gives."""
    design = Design(published)
    for row in published.rows("table2").values():
        yield from _names(row, published, design)
        panels = design.suites.get(row["suite"].text)
        if panels:
            n, parts = design.answers(panels)
            yield rounded("percentage_points", row["pp"], 100 * row["net"].number / n, (row["net"], *parts))
            yield from _net(row, published, row["suite"].text)
            yield p_value(row["p"], row["wins"], row["losses"])
            yield from _interval(row, n, parts)
        if panels and "decontam_net" in row:
            yield equal("number_of_answers", row["decontam_n"], *design.answers(panels, clean=True))
            yield from _net_of_counts(row["decontam_net"], row, published, row["suite"].text + CLEAN)
    yield from _extra(published, design)


def _net(row: Row, published: Published, column: str) -> Iterator[Check]:
    wins, losses = row["wins"], row["losses"]
    yield equal("net", row["net"], wins.number - losses.number, (wins, losses))
    yield from _net_of_counts(row["net"], row, published, column)


def _net_of_counts(net: Cell, row: Row, published: Published, column: str) -> Iterator[Check]:
    """The net of a contrast is the difference of the arms' right answers in Table 1."""
    a, b = (published.cell("table1", row[side].text, column) for side in ("arm_a", "arm_b"))
    if a and b:
        yield equal("net_of_counts", net, a.number - b.number, (a, b))


def p_value(cell: Cell, wins: Cell, losses: Cell) -> Check:
    """The exact two-sided McNemar p of `wins` and `losses` as printed: a bound, four decimals, or significant digits.

    A value in scientific notation claims its significant digits, so 1.0x10^-6 for 9.05e-07 fails (thinker-spec 20).
    """
    p = exact_p(wins.count, losses.count)
    if bound := BOUND.fullmatch(cell.text):
        return Check("exact_p", cell, f"{p:.3g}", p < 10.0 ** -int(bound[1]), bounded=(cell, wins, losses))
    if digits := SCIENTIFIC.fullmatch(cell.text):
        ok = f"{p:.{len(digits[2])}e}" == f"{float(cell.text.replace('x10^', 'e')):.{len(digits[2])}e}"
        return Check("exact_p", cell, f"{p:.3g}", ok, pinned=(cell,), bounded=(wins, losses))
    ok = cell.number == round(Fraction(p), cell.decimals)
    return Check("exact_p", cell, f"{p:.6f}", ok, pinned=(cell,), bounded=(wins, losses))


def _interval(row: Row, n: int, sizes: list[Cell]) -> Iterator[Check]:
    """A 95 % cluster interval: contains pp, ends on the lattice 100/N, close to the normal interval of its pairs.

    Half-width and centre are plausibility rules: two answers per cluster could move the width by up to sqrt(2), but
    pairs of different seeds are nearly independent here.
    """
    low, high, pp = row["ci_lo"], row["ci_hi"], row["pp"]
    yield between("interval_contains_pp", pp, low.number, high.number, (low, high))
    for end in (low, high):
        yield _on_lattice(end, n, sizes)
    wins, losses = row["wins"], row["losses"]
    net = int(row["net"].number)
    variance = float(wins.number + losses.number) - net * net / n
    if variance <= 0:
        raise UserError(f"{row.name}: wins and losses leave no variance for an interval")
    normal = NORMAL_95 * math.sqrt(variance) * 100 / n
    half, centre = float(high.number - low.number) / 2, float(high.number + low.number) / 2
    allowed = f"{(1 - PLAUSIBLE) * normal:.3f} <= half-width <= {(1 + PLAUSIBLE) * normal:.3f}"
    ends = (low, high, wins, losses)
    yield Check("interval_width", high, allowed, abs(half - normal) <= PLAUSIBLE * normal, bounded=ends)
    offset = abs(centre - float(pp.number))
    allowed = f"centre within {PLAUSIBLE * normal:.3f} of {pp.text}"
    yield Check("interval_centre", low, allowed, offset <= PLAUSIBLE * normal, bounded=(*ends, pp))


def _on_lattice(end: Cell, n: int, sizes: list[Cell]) -> Check:
    """An end of a percentile interval is a resampled net over fixed N: a multiple of 100/N, rounded."""
    multiple = round(end.number * n / 100)
    candidates = [round(Fraction(100 * k, n), end.decimals) for k in (multiple - 1, multiple, multiple + 1)]
    nearest = min(candidates, key=lambda value: abs(value - end.number))
    return Check("interval_lattice", end, show(nearest), end.number in candidates, bounded=(end, *sizes))


def extra_contrasts(published: Published) -> list[Row]:
    """Contrasts outside Table 2, in its columns: of one seed, or without printed wins and losses."""
    cells = published.row("protocol", "extra_contrasts")
    rows = []
    for number in dict.fromkeys(column.split(".")[0] for column in cells):
        row = Row("protocol", ("extra_contrasts", number), ())
        row.update((column.split(".")[1], cell) for column, cell in cells.items() if column.split(".")[0] == number)
        rows.append(row)
    return rows


def _extra(published: Published, design: Design) -> Iterator[Check]:
    for row in extra_contrasts(published):
        yield from _names(row, published, design)
        column = row["suite"].text
        if "seed" in row:
            yield member("known_seed", row["seed"], design.seeds)
            column += f"_s{row['seed'].text}"
        if "wins" in row:
            yield from _net(row, published, column)
            yield p_value(row["p"], row["wins"], row["losses"])
        else:
            yield from _net_of_counts(row["net"], row, published, column)


def _names(row: Row, published: Published, design: Design) -> Iterator[Check]:
    yield member("known_suite", row["suite"], design.suites)
    for side in ("arm_a", "arm_b"):
        yield member("known_arm", row[side], (arm for (arm,) in published.rows("table1")))
