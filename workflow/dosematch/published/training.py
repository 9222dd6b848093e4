"""Rules on Table 3B: step classes, active steps, norms, tokens (thinker-spec 14)."""

from collections.abc import Iterator
from fractions import Fraction

from dosematch.published.arms import nominal_cap
from dosematch.published.cells import Cell, Published, Row
from dosematch.published.checks import Check, between, equal, member, show
from dosematch.published.design import Design
from dosematch.published.totals import total


def check_training(published: Published) -> Iterator[Check]:
    """All checks of Table 3B."""
    design = Design(published)
    for (arm, _), row in published.rows("table3b").items():
        yield member("known_arm", row["arm"], (name for (name,) in published.rows("arms")))
        yield member("known_seed", row["seed"], design.seeds)
        classes = [row[name] for name in ("all_wrong", "all_right", "mixed")]
        yield equal("step_classes", design.steps, total(classes), classes)
        if "steps" in row:
            yield equal("steps", row["steps"], design.steps.number, (design.steps,))
        switches = published.rows("arms").get((arm,))
        if switches and "active" in row:
            yield from _active(row, switches, design.steps)
        if "mean_active" in row:
            yield from _norms(row)
        if switches and "gen_tokens" in row:
            yield from _tokens(row, switches, design.steps)


def _active(row: Row, switches: Row, steps: Cell) -> Iterator[Check]:
    """Steps with a gradient: at most one per optimiser call; at accumulation 1, mixed groups have one.

    A single-turn arm without accumulation has no other source of gradient, so there active = mixed.
    """
    active, accumulation = row["active"], switches["grad_accum"]
    calls = steps.number // accumulation.divisor
    trained_on_fast = switches["pg_fast"].text == "True" and accumulation.number == 1
    yield between("active_steps", active, row["mixed"].number if trained_on_fast else 0, calls, (row["mixed"],))
    single_turn = switches["isolation"].text == "n/a"
    if trained_on_fast and single_turn:
        yield equal("active_is_mixed", active, row["mixed"].number, (row["mixed"],))


def _norms(row: Row) -> Iterator[Check]:
    """Off-boundary rows hold 0, so mean over all x steps = mean over active x active, within rounding (C35)."""
    mean, mean_active, largest = row["mean_all"], row["mean_active"], row["max"]
    active, steps = row["active"], row["steps"]
    share = active.number / steps.divisor
    slack = _half_digit(mean) + _half_digit(mean_active) * share if share != 1 else Fraction(0)
    expected = mean_active.number * share
    ok = abs(mean.number - expected) <= slack
    yield Check("mean_norm", mean, show(expected), ok, bounded=(mean, mean_active, active, steps))
    sum_of_norms = mean_active.number * active.number
    yield between("largest_norm", largest, mean_active.number, sum_of_norms, (mean_active, active))


def _half_digit(cell: Cell) -> Fraction:
    return Fraction(1, 2 * 10**cell.decimals)


def _tokens(row: Row, switches: Row, steps: Cell) -> Iterator[Check]:
    """Generated tokens stay within the nominal cap; each is fed to the policy gradient at most once."""
    generated = row["gen_tokens"]
    yield between("tokens_within_cap", generated, 0, steps.number * nominal_cap(switches), (steps,))
    if "pg_bwd" in row:
        yield between("backward_within_generated", row["pg_bwd"], 0, generated.number, (generated,))
