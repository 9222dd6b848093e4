"""The audit of the printed numbers: every rule on every table, and which cells no rule reaches (thinker-spec 20).

Rules are general: none knows which numbers are inconsistent. The recorded inconsistencies stand in
`known_inconsistencies.csv` beside the tables, and are compared with what the rules find.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dosematch.errors import UserError
from dosematch.published.arms import check_arms
from dosematch.published.cells import Cell, Published, read_csv, read_published
from dosematch.published.checks import Check
from dosematch.published.contrasts import check_contrasts
from dosematch.published.statements import check_statements
from dosematch.published.totals import check_protocol, check_totals
from dosematch.published.training import check_training
from dosematch.published.verifier import check_verifier

RULES = (check_protocol, check_arms, check_totals, check_contrasts, check_verifier, check_training, check_statements)
IDENTITY = ("rule", "file", "row", "column", "printed", "recomputed")


@dataclass(frozen=True)
class Coverage:
    """How tightly the checks hold each cell.

    `pinned`: changing any one digit makes a check fail; `bounded`: only a large enough change does; `unchecked`: no
    rule reads the cell, because the study prints nothing that it follows from.
    """

    pinned: list[Cell]
    bounded: list[Cell]
    unchecked: list[Cell]


def audit(folder: Path) -> list[Check]:
    """Recompute every number of `folder` that follows from others; raises `UserError` for unreadable files.

    Returns one check per printed value and rule, passed and failed, in the order of tables and rows.
    """
    return audit_published(read_published(folder))


def audit_published(published: Published) -> list[Check]:
    """`audit` of tables already read."""
    return [check for rules in RULES for check in rules(published)]


def failures(checks: Iterable[Check]) -> list[Check]:
    """The inconsistencies: checks that do not hold."""
    return [check for check in checks if not check.ok]


def coverage(published: Published, checks: Iterable[Check]) -> Coverage:
    """Sort every printed value by how tightly `checks` hold it."""
    checks = list(checks)
    pinned = {cell for check in checks for cell in check.pinned}
    bounded = {cell for check in checks for cell in check.bounded} - pinned
    cells = [cell for cell in published.cells() if cell.file != "statements" or cell.column == "printed"]
    return Coverage(
        [cell for cell in cells if cell in pinned],
        [cell for cell in cells if cell in bounded],
        [cell for cell in cells if cell not in pinned and cell not in bounded],
    )


def counts_by_rule(checks: Iterable[Check]) -> dict[str, dict[str, int]]:
    """Rule -> `{passed, failed}`, rules by name."""
    counts = Counter((check.rule, check.ok) for check in checks)
    return {
        rule: {"passed": counts[rule, True], "failed": counts[rule, False]}
        for rule in sorted({rule for rule, _ in counts})
    }


def read_known(path: Path) -> list[dict[str, str]]:
    """The recorded inconsistencies: `item` (of thinker-spec 20), the identity of the check, and what it means.

    Raises `UserError` naming the file and the column that it lacks.
    """
    rows = read_csv(path)
    for row in rows:
        if missing := [name for name in ("item", *IDENTITY) if not row.get(name)]:
            raise UserError(f"{path}: {missing[0]} is missing in the row of item {row.get('item')}")
    return rows


def compare_with_known(checks: Iterable[Check], known: Iterable[dict[str, str]]) -> tuple[list[str], list[str]]:
    """(inconsistencies found but not recorded, recorded but not found), each as one line of text."""
    found_set = {check.identity for check in failures(checks)}
    known_set = {tuple(row[name] for name in IDENTITY) for row in known}
    return (
        [" | ".join(identity) for identity in sorted(found_set - known_set)],
        [" | ".join(identity) for identity in sorted(known_set - found_set)],
    )
