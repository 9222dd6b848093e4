"""Rules on Table 1 and on the protocol's totals: percentages, sums, sizes, decontamination (thinker-spec 3, 13, 17)."""

from collections.abc import Iterator, Sequence
from fractions import Fraction

from dosematch.published.cells import Cell, Published, Row
from dosematch.published.checks import Check, between, equal, member, rounded
from dosematch.published.design import CLEAN, PANEL_OF_COLUMN, Design


def check_totals(published: Published) -> Iterator[Check]:
    """All checks of Table 1, each arm by itself and against Table 3A."""
    design = Design(published)
    for (arm,), row in published.rows("table1").items():
        yield member("known_arm", row["arm"], (name for (name,) in published.rows("arms")))
        yield from percentages(row)
        yield from _sizes(row, design)
        yield from _seed_sums(row, design)
        yield from _panel_sums(row, design)
        yield from _decontaminated(row, design)
        yield from _slow(row)
        yield from _against_table3a(arm, row, published, design)


def percentages(row: Row) -> Iterator[Check]:
    """`x_pct` is 100 x / x_n, for every x of a row that has all three."""
    for column, cell in row.items():
        if column.endswith("_pct") and (n := row.get(column.removesuffix("_pct") + "_n")):
            yield percentage(cell, row[column.removesuffix("_pct")], n)


def percentage(cell: Cell, count: Cell, n: Cell) -> Check:
    """`cell` is 100 x `count` / `n`; raises `UserError` naming `n` when it is 0."""
    return rounded("percentage", cell, 100 * count.number / n.divisor, (count, n))


def _sizes(row: Row, design: Design) -> Iterator[Check]:
    for column, cell in row.items():
        if column.endswith("_n") and (suite := design.suite_of(column.removesuffix("_n"))):
            yield equal("number_of_answers", cell, *design.answers(*suite))


def _seed_sums(row: Row, design: Design) -> Iterator[Check]:
    for column, cell in row.items():
        parts = [row[name] for seed in design.seeds if (name := f"{column}_s{seed}") in row]
        if len(parts) == len(design.seeds):
            yield equal("seed_sum", cell, total(parts), parts)


def _panel_sums(row: Row, design: Design) -> Iterator[Check]:
    """A suite's count is the sum of its panels' counts, Val-350 in Fast mode (thinker-spec 12)."""
    column_of = {PANEL_OF_COLUMN["val_fast"]: "val_fast"}
    for suite, panels in design.suites.items():
        for clean in (False, True) if len(panels) > 1 else ():
            columns = [
                column_of.get(panel, panel) + (CLEAN if clean and design.removed[panel] else "") for panel in panels
            ]
            parts = [row[column] for column in columns]
            yield equal("panel_sum", row[suite + (CLEAN if clean else "")], total(parts), parts)


def _decontaminated(row: Row, design: Design) -> Iterator[Check]:
    """Removing questions takes between none and all of their answers from the right ones."""
    for column, cell in row.items():
        if column.endswith(CLEAN) and (suite := design.suite_of(column)):
            full = row[column.removesuffix(CLEAN)]
            gone = len(design.seeds) * sum(len(design.removed[panel]) for panel in suite[0])
            yield between("decontaminated_loss", cell, full.number - gone, full.number, (full,))


def _slow(row: Row) -> Iterator[Check]:
    """Verify->Slow: final = Fast + wins - losses; only triggered items can change (C29)."""
    fast, win, loss = row["val_fast"], row["slow_win"], row["slow_loss"]
    yield equal("verify_slow", row["val_slow"], fast.number + win.number - loss.number, (fast, win, loss))
    yield between("triggered", row["trig"], win.number + loss.number, row["val_fast_n"].number, (win, loss))


def _against_table3a(arm: str, row: Row, published: Published, design: Design) -> Iterator[Check]:
    """Counts that Table 3A prints per seed add up to those of Table 1."""
    pairs = {"val_fast": "fast_correct", "val_slow": "slow_correct", "slow_win": "slow_win", "slow_loss": "slow_loss"}
    for column, per_seed in pairs.items():
        cells = [cell for seed in design.seeds if (cell := published.cell("table3a", arm, seed, per_seed))]
        if len(cells) == len(design.seeds):
            yield equal("table1_table3a", row[column], total(cells), cells)
    for seed in design.seeds:
        if cell := published.cell("table3a", arm, seed, "trig"):
            yield equal("table1_table3a", row[f"trig_s{seed}"], cell.number, (cell,))


def check_protocol(published: Published) -> Iterator[Check]:
    """The protocol's sizes, nominal totals and single-seed results follow from its panels and from the tables."""
    design = Design(published)
    sizes = {
        "per_seed": design.answers(design.suites["all6"], seeds=1),
        **{name: design.answers(design.suites[name]) for name in ("all6", "within")},
        **{f"decontam_{name}": design.answers(design.suites[name], clean=True) for name in ("all6", "within")},
        **{f"decontam_{p.rstrip('0123456789')}": design.answers([p], clean=True) for p, gone in design.removed.items()},
    }
    for column, cell in published.row("protocol", "N").items():
        yield equal("number_of_answers", cell, *sizes[column])
    for panel, size in design.panels.items():
        if (panel,) in published.rows("protocol"):
            parts = list(published.row("protocol", panel).values())
            yield equal("panel_parts", size, total(parts), parts)
    trained = {c.text for row in published.rows("arms").values() for n, c in row.items() if n.startswith("seeds.")}
    for cell in published.row("protocol", "parent_seeds").values():
        yield member("known_seed", cell, sorted(trained))
    for cell in published.row("protocol", "within_math").values():
        yield member("known_panel", cell, design.panels)
    first, last = (published.need("protocol", "tail_average_steps", end) for end in ("0", "1"))
    count = published.need("protocol", "tail_average_count", "")
    yield equal("tail_steps", count, last.number - first.number + 1, (first, last))
    yield equal("tail_steps", last, design.steps.number, (design.steps,))
    yield from _single_seed(published, design)
    yield from _exposed(published, design)


def _single_seed(published: Published, design: Design) -> Iterator[Check]:
    cells, arms = published.row("protocol", "single_seed"), [arm for (arm,) in published.rows("arms")]
    for arm in dict.fromkeys(column.split(".")[0] for column in cells):
        row = {column.split(".")[1]: cell for column, cell in cells.items() if column.split(".")[0] == arm}
        size = published.need("protocol", "N", "per_seed")
        yield member("known_arm", Cell("protocol", "single_seed", arm, arm), arms)
        yield member("known_seed", row["seed"], design.seeds)
        yield equal("number_of_answers", row["n"], size.number, (size,))
        yield between("count_within_size", row["correct"], 0, row["n"].number, (row["n"],))
        if "pct" in row:
            yield percentage(row["pct"], row["correct"], row["n"])


def _exposed(published: Published, design: Design) -> Iterator[Check]:
    """An exposed question names a seed, a step, a panel and a place inside that panel (thinker-spec 3.3)."""
    for row in published.rows("exposed_items").values():
        yield member("known_seed", row["train_seed"], design.seeds)
        yield member("known_panel", row["panel"], design.panels)
        yield between("step", row["step"], 1, design.steps.number, (design.steps,))
        if size := design.panels.get(row["panel"].text):
            yield between("place_in_panel", row["index"], 0, size.number - 1, (size,))
        sha1 = row["sha1_12"]
        digits = len(sha1.text) == 12 and set(sha1.text) <= set("0123456789abcdef")
        yield Check("sha1_form", sha1, "12 hexadecimal digits", digits, bounded=(sha1,))


def total(cells: Sequence[Cell]) -> Fraction:
    """Sum of the cells' numbers."""
    return sum((cell.number for cell in cells), Fraction(0))
