"""What the audit found, as JSON and as Markdown (thinker-spec 16, 20)."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dosematch.published.audit import (
    IDENTITY,
    Coverage,
    audit_published,
    compare_with_known,
    counts_by_rule,
    coverage,
    failures,
    read_known,
)
from dosematch.published.cells import Cell, read_published
from dosematch.published.pvalues import VARIANTS, interval_disagreements, printed_p_values, reproduced
from dosematch.reporting.table import Table

Report = dict[str, Any]
KNOWN = "known_inconsistencies.csv"


def build_check(folder: Path) -> Report:
    """Audit `folder` and compare with its recorded inconsistencies: the content of check.json.

    `as_recorded` says whether exactly the recorded inconsistencies were found. Raises `UserError` for unreadable files.
    """
    published = read_published(folder)
    checks = audit_published(published)
    known = read_known(folder / KNOWN)
    notes = {tuple(row[name] for name in IDENTITY): row for row in known}
    found = [
        {
            **dict(zip(IDENTITY, check.identity, strict=True)),
            "item": notes.get(check.identity, {}).get("item"),
            "meaning": notes.get(check.identity, {}).get("meaning"),
        }
        for check in failures(checks)
    ]
    found.sort(key=lambda entry: int(entry["item"]) if entry["item"] else len(found) + len(known))
    unexpected, missing = compare_with_known(checks, known)
    values = printed_p_values(published)
    return {
        "checks": {"passed": sum(check.ok for check in checks), "failed": len(found)},
        "rules": counts_by_rule(checks),
        "inconsistencies": found,
        "unexpected": unexpected,
        "missing": missing,
        "as_recorded": not unexpected and not missing,
        "coverage": _coverage(coverage(published, checks)),
        "p_values": [vars(value) for value in values],
        "p_values_printed_with_decimals": sum(value.form == "decimals" for value in values),
        "p_values_reproduced": reproduced(values),
        "interval_disagreements": interval_disagreements(published),
    }


def _coverage(found: Coverage) -> dict[str, Any]:
    return {
        "pinned": len(found.pinned),
        "bounded": len(found.bounded),
        "unchecked": len(found.unchecked),
        "bounded_columns": _columns(found.bounded),
        "unchecked_columns": _columns(found.unchecked),
        "unchecked_cells": [cell.where for cell in found.unchecked],
    }


def _columns(cells: Sequence[Cell]) -> dict[str, int]:
    """`file column` -> number of cells; of the protocol, whose rows differ, `file row column`."""
    return dict(Counter(cell.where if cell.file == "protocol" else f"{cell.file} {cell.column}" for cell in cells))


def check_markdown(report: Report) -> str:
    """check.json for people."""
    counts, cover = report["checks"], report["coverage"]
    verdict = "exactly the recorded ones" if report["as_recorded"] else "NOT the recorded ones"
    lines = [
        "# Audit of the published numbers\n",
        f"{counts['passed'] + counts['failed']:,} checks: {counts['passed']:,} hold, {counts['failed']} do not; "
        f"the inconsistencies are {verdict}.\n",
        *(f"- found, not recorded: {line}" for line in report["unexpected"]),
        *(f"- recorded, not found: {line}" for line in report["missing"]),
        _inconsistencies(report["inconsistencies"]).markdown(),
        _rules(report["rules"]).markdown(),
        _p_values(report).markdown(),
        "**Interval and exact p that decide differently at 5 %** (no misprint)\n",
        *(f"- {line}" for line in report["interval_disagreements"]),
        "\n**What the checks reach**\n",
        f"{cover['pinned']:,} printed values are pinned: any one changed digit fails a check. "
        f"{cover['bounded']:,} are bounded by a rounding or an inequality: only a large enough change fails. "
        f"{cover['unchecked']:,} follow from nothing else that is printed, and are not checked; "
        "check.json lists each.\n",
        _reach("Bounded", cover["bounded_columns"]),
        _reach("Unchecked", cover["unchecked_columns"]),
    ]
    return "\n".join(lines) + "\n"


def _reach(title: str, columns: dict[str, int]) -> str:
    return f"{title}: " + ", ".join(f"{name} ({count})" for name, count in columns.items()) + ".\n"


def _inconsistencies(found: Sequence[dict[str, Any]]) -> Table:
    headers = ["Item", "Rule", "File", "Row", "Column", "Printed", "Recomputed", "Meaning"]
    rows = [[str(entry[name.lower()] or "") for name in headers] for entry in found]
    return Table("inconsistencies", "Inconsistencies", headers, rows, list(found))


def _rules(counts: dict[str, dict[str, int]]) -> Table:
    rows = [[rule, str(count["passed"]), str(count["failed"])] for rule, count in counts.items()]
    return Table("rules", "Checks by rule", ["Rule", "Hold", "Fail"], rows, [])


def _p_values(report: Report) -> Table:
    headers = ["Contrast", "W/L", "Printed", *VARIANTS]
    rows = []
    for value in report["p_values"]:
        pairs = f"{value['wins']}/{value['losses']}"
        rows.append([value["where"], pairs, value["printed"], *map(_p_text, value["variants"].values())])
    n = report["p_values_printed_with_decimals"]
    total = [f"{count}/{n}" for count in report["p_values_reproduced"].values()]
    note = (
        f"The last row counts which of the {n} values printed with decimals each variant reproduces to the last digit. "
        "Bounds (`<10^-k`) fit several variants and are not counted; neither is a value in scientific notation, which "
        "claims its significant digits and is held to them by the rule exact_p."
    )
    rows.append(["Reproduced", "", "", *total])
    return Table("p_values", "Which McNemar test was printed", headers, rows, [], note)


def _p_text(p: float) -> str:
    return f"{p:.4f}" if p >= 0.00005 else f"{p:.2e}"
