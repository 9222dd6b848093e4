"""Rules on Table 3A: confusion rows, trigger counts, Verify->Slow results (thinker-spec 12.1)."""

from collections.abc import Iterator

from dosematch.published.cells import Cell, Published, Row
from dosematch.published.checks import Check, between, equal, member, same_text
from dosematch.published.design import VERIFIED_PANEL, Design
from dosematch.published.totals import percentage, total

PART_OF = {"fast_correct": "c", "fast_wrong": "w"}  # row of the confusion matrix -> prefix of its cells
VERDICTS = ("yes", "no", "invalid")


def check_verifier(published: Published) -> Iterator[Check]:
    """All checks of Table 3A."""
    design = Design(published)
    panel = design.panels[VERIFIED_PANEL]
    for row in published.rows("table3a").values():
        yield member("known_arm", row["arm"], (arm for (arm,) in published.rows("arms")))
        yield member("known_seed", row["seed"], design.seeds)
        yield from _matrix(row, panel)
        yield from _totals(row, panel)
        yield from _triggers(row, panel)
        yield from _slow(row, panel, design)
    yield from _pooled(published, design)


def _matrix(row: Row, panel: Cell) -> Iterator[Check]:
    """The 2x3 matrix: verdicts add up to Fast right and Fast wrong, which add up to the panel (C30)."""
    right, wrong = row["fast_correct"], row["fast_wrong"]
    yield equal("confusion_total", panel, right.number + wrong.number, (right, wrong))
    for name, prefix in PART_OF.items():
        if f"{name}_pct" in row:
            yield percentage(row[f"{name}_pct"], row[name], panel)
        cells = [row[f"{prefix}_{verdict}"] for verdict in VERDICTS if f"{prefix}_{verdict}" in row]
        if cells:
            yield equal("confusion_row", row[name], total(cells), cells)
        for cell in cells:
            if pct := row.get(f"{cell.column}_pct"):
                yield percentage(pct, cell, row[name])
        if nobox := row.get(f"{prefix}_nobox"):
            yield between("missing_box", nobox, 0, row[name].number, (row[name],))


def _totals(row: Row, panel: Cell) -> Iterator[Check]:
    cells = [row[f"tot_{verdict}"] for verdict in VERDICTS if f"tot_{verdict}" in row]
    if cells:
        yield equal("verdict_total", panel, total(cells), cells)


def _triggers(row: Row, panel: Cell) -> Iterator[Check]:
    """Triggered items: verdict No, or no box in the Fast answer.

    The study heads the total `No + NoBox`; as the union that the trigger rule means, it may be smaller, down to the
    larger of the two.
    """
    trig = row["trig"]
    if "trig_pct" in row:
        yield percentage(row["trig_pct"], trig, panel)
    yield between("trigger_bounds", trig, 0, panel.number, (panel,))
    no, nobox = _counted(row, "no"), _counted(row, "nobox")
    for counted in (no, nobox):
        for other in counted[1:]:
            yield equal("trigger_cause", counted[0][0], total(other), other)
    if no and nobox:
        counts = total(no[0]), total(nobox[0])
        yield equal("trigger_sum", trig, sum(counts), (*no[0], *nobox[0]))
        yield between("trigger_union", trig, max(counts), sum(counts), (*no[0], *nobox[0]))


def _counted(row: Row, cause: str) -> list[list[Cell]]:
    """Every printed count of a cause: beside the trigger total, as a total of its own, as a column of the matrix."""
    matrix = [row[name] for prefix in PART_OF.values() if (name := f"{prefix}_{cause}") in row]
    single = [[row[name]] for name in (f"trig_{cause}", f"tot_{cause}") if name in row]
    return single + ([matrix] if matrix else [])


def _slow(row: Row, panel: Cell, design: Design) -> Iterator[Check]:
    fast, win, loss = row["fast_correct"], row["slow_win"], row["slow_loss"]
    yield between("triggered", row["trig"], win.number + loss.number, None, (win, loss))
    yield between("wins_among_wrong", win, 0, row["fast_wrong"].number, (row["fast_wrong"],))
    if "slow_correct" in row:
        yield equal("verify_slow", row["slow_correct"], fast.number + win.number - loss.number, (fast, win, loss))
        yield equal("number_of_answers", row["slow_n"], panel.number, (panel,))
        yield percentage(row["slow_pct"], row["slow_correct"], row["slow_n"])
    if "slow_pooled_n" in row:
        yield equal("number_of_answers", row["slow_pooled_n"], *design.answers([VERIFIED_PANEL]))
        if "slow_pooled_pct" in row:
            yield percentage(row["slow_pooled_pct"], row["slow_pooled"], row["slow_pooled_n"])


def _pooled(published: Published, design: Design) -> Iterator[Check]:
    """Pooled Verify->Slow results are fast + wins - losses over the seeds, and equal Table 1's."""
    rows = published.rows("table3a")
    for (arm, _), row in rows.items():
        runs = [rows[arm, seed] for seed in design.seeds if (arm, seed) in rows]
        pooled = row.get("slow_pooled")
        if pooled and len(runs) == len(design.seeds):
            gains = [run[column] for run in runs for column in ("fast_correct", "slow_win")]
            losses = [run["slow_loss"] for run in runs]
            yield equal("verify_slow", pooled, total(gains) - total(losses), (*gains, *losses))
        if pooled and (other := published.cell("table1", arm, "val_slow")):
            yield same_text("table1_table3a", pooled, other.text, (other,))
