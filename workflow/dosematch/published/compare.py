"""Our contrasts beside the published ones: sign and size of effects, never equality of counts (thinker-spec 16, 21)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dosematch.errors import UserError
from dosematch.published.cells import Published, Row, read_csv
from dosematch.published.design import Design
from dosematch.reporting.table import Table, signed
from dosematch.statistics.mcnemar import format_p

Summary = Mapping[str, Any]
Key = tuple[str, str, str]  # arm_a, arm_b, suite
BOTH, PUBLISHED_ONLY, OURS_ONLY = "both", "published only", "ours only"
SIDE_FIELDS = ("n", "net", "pp", "ci_lo", "ci_hi", "p")
DIRECTION_FIELDS = ("id", "claim", "quantity", "arm", "low", "high")


def compare_contrasts(summary: Summary, published: Published, scale: str) -> list[dict[str, Any]]:
    """One record per contrast and suite of either side, published ones first, matched by (arm_a, arm_b, suite).

    `{arm_a, arm_b, suite, scale, status, published_*, ours_*, same_sign, intervals_overlap}`, where `*` stands for n,
    net, pp, ci_lo, ci_hi and p, absent on a side that lacks the contrast. Raises `UserError` when the summary is of
    another scale than `scale`, by which our side is labelled.
    """
    if summary["scale"] != scale:
        raise UserError(f"summary: scale is {summary['scale']}, but --scale says {scale}")
    design = Design(published)
    theirs = {_key(row): _published_side(row, design) for row in published.rows("table2").values()}
    ours = {(row["a"], row["b"], row["suite"]): _our_side(row) for row in summary["contrasts"]}
    return [_record(key, scale, theirs.get(key), ours.get(key)) for key in dict.fromkeys([*theirs, *ours])]


def _key(row: Row) -> Key:
    return row["arm_a"].text, row["arm_b"].text, row["suite"].text


def _published_side(row: Row, design: Design) -> dict[str, Any]:
    if row["suite"].text not in design.suites:
        raise UserError(f"{row.name}: suite {row['suite'].text} is not one of the protocol")
    n, _ = design.answers(design.suites[row["suite"].text])
    numbers = {name: float(row[name].number) for name in ("pp", "ci_lo", "ci_hi")}
    return {"n": n, "net": int(row["net"].number), **numbers, "p": row["p"].text}


def _our_side(row: Mapping[str, Any]) -> dict[str, Any]:
    low, high = row["ci"]
    return {"n": row["n"], "net": row["net"], "pp": row["pp"], "ci_lo": low, "ci_hi": high, "p": row["p_exact"]}


def _record(key: Key, scale: str, theirs: dict[str, Any] | None, ours: dict[str, Any] | None) -> dict[str, Any]:
    status = BOTH if theirs and ours else PUBLISHED_ONLY if theirs else OURS_ONLY
    record: dict[str, Any] = {**dict(zip(("arm_a", "arm_b", "suite"), key, strict=True)), "scale": scale}
    record["status"] = status
    for name, side in (("published", theirs), ("ours", ours)):
        record |= {f"{name}_{field}": side[field] if side else "" for field in SIDE_FIELDS}
    record["same_sign"] = record["intervals_overlap"] = ""
    if theirs and ours:
        record["same_sign"] = _same_sign(theirs["pp"], ours["pp"])
        overlap = theirs["ci_lo"] <= ours["ci_hi"] and ours["ci_lo"] <= theirs["ci_hi"]
        record["intervals_overlap"] = "yes" if overlap else "no"
    return record


def _same_sign(a: float, b: float) -> str:
    """`zero` when either side is exactly 0, which has no sign to share."""
    return "zero" if a == 0 or b == 0 else "yes" if (a > 0) == (b > 0) else "no"


def contrast_table(records: Sequence[dict[str, Any]], scale: str, model: str) -> Table:
    """The comparison for people; `model` is the published study's."""
    headers = ["Contrast", "Suite", f"Published ({model})", f"Ours ({scale} scale)", "Same sign", "Intervals overlap"]
    rows = [
        [
            f"{record['arm_a']} vs. {record['arm_b']}",
            record["suite"],
            _side_text(record, "published"),
            _side_text(record, "ours"),
            record["same_sign"] or record["status"],
            record["intervals_overlap"],
        ]
        for record in records
    ]
    matched = [record for record in records if record["status"] == BOTH]
    agree = sum(record["same_sign"] == "yes" for record in matched)
    absent = sum(record["status"] == PUBLISHED_ONLY for record in records)
    extra = sum(record["status"] == OURS_ONLY for record in records)
    note = (
        f"{len(matched)} contrasts on both sides, {agree} with the same sign; {absent} published only, {extra} ours "
        f"only. Ours is the {scale} scale: model, parents and questions differ from the published study, so only sign "
        "and size of an effect can be held side by side, no count and no item. Each side: difference in percentage "
        "points, 95 % interval, exact McNemar p, unadjusted."
    )
    title = f"Our contrasts ({scale} scale) beside the published ones"
    return Table("compare_published", title, headers, rows, list(records), note)


def _side_text(record: Mapping[str, Any], side: str) -> str:
    if record[f"{side}_n"] == "":
        return "-"
    p = record[f"{side}_p"]
    interval = f"[{signed(record[f'{side}_ci_lo'])}, {signed(record[f'{side}_ci_hi'])}]"
    return f"{signed(record[f'{side}_pp'])} pp {interval}\np {p if isinstance(p, str) else format_p(p)}"


def read_directions(path: Path) -> list[dict[str, str]]:
    """The directional claims of the study that a rebuild may test; raises `UserError` naming a missing column."""
    rows = read_csv(path)
    for row in rows:
        if missing := [name for name in DIRECTION_FIELDS if name not in row]:
            raise UserError(f"{path}: column {missing[0]} is missing")
    return rows


def check_directions(summary: Summary, directions: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Each claim with our value and whether it lies in [low, high]; `not available` where the summary lacks it.

    An empty `low` or `high` leaves that side open. Raises `UserError` for an unknown quantity. A claim that does not
    hold is a finding, not an error (thinker-spec 21).
    """
    results = []
    for row in directions:
        value = _quantity(summary, row)
        low, high = (float(row[end]) if row[end] else None for end in ("low", "high"))
        holds = value is not None and (low is None or low <= value) and (high is None or value <= high)
        outcome = "not available" if value is None else "holds" if holds else "does not hold"
        results.append({**row, "ours": value, "outcome": outcome})
    return results


def _quantity(summary: Summary, row: Mapping[str, str]) -> float | None:
    """Our value of a claim's quantity, None where the summary lacks what it needs."""
    match row["quantity"]:
        case "interval_sign":
            return _interval_sign(summary, row)
        case "difference_pp":
            counts = [summary["arms"][arm][row["suite"]] for arm in _both(row) if arm in summary["arms"]]
            return 100 * (counts[0]["pooled"] - counts[1]["pooled"]) / counts[0]["n"] if len(counts) == 2 else None
        case "generated_change_percent":
            runs = [summary["training_diagnostics"].get(arm) for arm in _both(row)]
            if not all(runs) or set(runs[0]) != set(runs[1]):
                return None
            new, old = (sum(run["tokens"]["gen_tokens"]["total"] for run in seeds.values()) for seeds in runs)
            return 100 * (new / old - 1)
        case "largest_trigger_percent":
            rates = _trigger_rates(summary, row["arm"])
            return max(rates) if rates else None
        case "trigger_spread_percent":
            rates = _trigger_rates(summary, row["arm"])
            return max(rates) - min(rates) if len(rates) > 1 else None
        case other:
            raise UserError(f"direction {row['id']}: quantity {other} is not known")


def _both(row: Mapping[str, str]) -> tuple[str, str]:
    return row["arm"], row["against"]


def _interval_sign(summary: Summary, row: Mapping[str, str]) -> float | None:
    """1 for an interval above 0, -1 below, 0 when it holds 0."""
    key = (*_both(row), row["suite"])
    found = next((c["ci"] for c in summary["contrasts"] if (c["a"], c["b"], c["suite"]) == key), None)
    return None if found is None else float(found[0] > 0) - float(found[1] < 0)


def _trigger_rates(summary: Summary, arm: str) -> list[float]:
    """Triggered share of the verified panel in percent, per seed; empty without Verify->Slow."""
    slow = (summary["arms"].get(arm) or {}).get("val_slow")
    return [100 * count * len(slow["trig"]) / slow["n"] for count in slow["trig"]] if slow else []


def direction_table(results: Sequence[Mapping[str, Any]], scale: str) -> Table:
    """Directional claims for people."""
    headers = ["Claim", "Arm", "Against", "Quantity", "Expected", f"Ours ({scale} scale)", "Outcome"]
    rows = [
        [
            result["claim"],
            result["arm"],
            result["against"],
            result["quantity"],
            f"{result['low'] or '-inf'} to {result['high'] or 'inf'}",
            "-" if result["ours"] is None else signed(float(result["ours"])),
            result["outcome"],
        ]
        for result in results
    ]
    note = (
        "What a faithful rebuild may expect; interval_sign is 1 for an interval above 0, -1 below, 0 when it holds 0. "
        "A claim that does not hold is a finding at this scale, not an error."
    )
    return Table("directions", "Directional claims of the published study", headers, rows, [], note)
