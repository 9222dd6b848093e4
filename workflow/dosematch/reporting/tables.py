"""Every table of a study, and Tables 1 (counts) and 2 (contrasts) themselves (thinker-spec 17)."""

from collections.abc import Mapping, Sequence
from typing import Any

from dosematch.reporting.configuration import table0
from dosematch.reporting.diagnostic_tables import table3a, table3b, table3c
from dosematch.reporting.policy_table import table3d
from dosematch.reporting.table import Summary, Table, by_seed, percent, signed
from dosematch.statistics.mcnemar import format_p


def all_tables(summary: Summary) -> list[Table]:
    """Every table in the order of the study; one for which the summary holds no data has no rows."""
    return [make(summary) for make in (table0, table1, table2, table3a, table3b, table3c, table3d)]


def table1(summary: Summary) -> Table:
    """Correct answers per arm: each panel, then each suite of several panels, with decontaminated counts."""
    suites = [suite for suite in summary["suite_order"] if suite not in summary["panels"]]
    columns = [*summary["panels"], *suites]
    verified = summary["verify_slow_panel"]
    headers = ["Arm", *(header for column in columns for header in _headers(column, verified))]
    rows, records = [], []
    for heading, block in (("", "arms"), ("Single-seed arms", "single_seed_arms")):
        names = [name for name in summary["arm_order"] if name in summary[block]]
        if heading and names:
            rows.append([heading, *[""] * (len(headers) - 1)])
        for name in names:
            arm = summary[block][name]
            counts = _with_decontaminated(arm, suites)
            cells = {column: [_count_cell(counts[column], arm["seeds"])] for column in columns}
            if verified:
                cells[verified].append(_verify_slow_cell(arm))
            rows.append([f"{name}\n{arm['label']}", *(cell for pair in cells.values() for cell in pair)])
            record = {"block": block, "arm": name, "label": arm["label"], **_count_columns(counts, arm["seeds"])}
            records.append(record | (_verify_slow_columns(arm) if verified else {}))
    seeds = " + ".join(map(str, summary["seeds"]))
    title = f"Table 1. Correct answers, seeds {seeds} pooled; in brackets: without questions seen in training"
    return Table("table1", title, headers, rows, records)


def _headers(column: str, verified: str) -> list[str]:
    """The columns of one panel: the one that was verified has a second for what Verify -> Slow made of it."""
    return [f"{column}, Fast", f"{column}, Verify→Slow"] if column == verified else [column]


def _verify_slow_cell(arm: Mapping[str, Any]) -> str:
    slow = arm["val_slow"]
    lines = [f"{slow['correct']:,}/{slow['n']:,}", f"{percent(slow['correct'], slow['n'])} %"]
    by_seed_text = " + ".join(map(str, slow["trig"]))
    triggers = f"{sum(slow['trig'])} [{by_seed_text}]" if len(slow["trig"]) > 1 else by_seed_text
    return "\n".join([*lines, f"triggers {triggers}", f"+{slow['wins']}/-{slow['losses']}"])


def _verify_slow_columns(arm: Mapping[str, Any]) -> dict[str, Any]:
    slow = arm["val_slow"]
    columns = {"val_slow": slow["correct"], "val_slow_n": slow["n"]}
    columns |= {"val_slow_pct": percent(slow["correct"], slow["n"]), "trig": sum(slow["trig"])}
    columns |= {f"trig_s{seed}": trig for seed, trig in zip(arm["seeds"], slow["trig"], strict=True)}
    return columns | {"slow_win": slow["wins"], "slow_loss": slow["losses"]}


def _with_decontaminated(arm: Mapping[str, Any], suites: Sequence[str]) -> dict[str, dict[str, int]]:
    """Counts by panel and suite, each with `decontam` and `decontam_n` where they exist."""
    counts = dict(arm["panels"])
    for suite in suites:
        clean = arm.get(f"{suite}_decontam")
        counts[suite] = {**arm[suite], **({"decontam": clean["pooled"], "decontam_n": clean["n"]} if clean else {})}
    return counts


def _count_cell(counts: Mapping[str, int], seeds: Sequence[int]) -> str:
    lines = [f"{counts['pooled']:,}/{counts['n']:,}", f"{percent(counts['pooled'], counts['n'])} %"]
    if len(seeds) > 1:
        lines.append(by_seed(counts, seeds))
    if counts.get("decontam_n", counts["n"]) != counts["n"]:
        clean, n = counts["decontam"], counts["decontam_n"]
        lines.append(f"[{clean:,}/{n:,}: {percent(clean, n)} %]")
    return "\n".join(lines)


def _count_columns(counts: Mapping[str, Mapping[str, int]], seeds: Sequence[int]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, entry in counts.items():
        columns |= {name: entry["pooled"], f"{name}_n": entry["n"], f"{name}_pct": percent(entry["pooled"], entry["n"])}
        columns |= {f"{name}_s{seed}": entry[f"s{seed}"] for seed in seeds}
        if "decontam" in entry:
            clean, n = entry["decontam"], entry["decontam_n"]
            columns |= {f"{name}_decontam": clean, f"{name}_decontam_n": n, f"{name}_decontam_pct": percent(clean, n)}
    return columns


def table2(summary: Summary) -> Table:
    """Paired contrasts: one line per contrast for people, one record per contrast and suite for machines."""
    level = 100 * summary["statistics"]["level"]
    rows: dict[tuple[str, str, str], list[str]] = {}
    for contrast in summary["contrasts"]:  # suites innermost and in the order of the columns
        cells = rows.setdefault((contrast["a"], contrast["b"], contrast["label"]), [contrast["label"]])
        cells.append(contrast_cell(contrast, summary["replicates"]))
    title = (
        f"Table 2. Paired contrasts: net, wins/losses, exact McNemar p (Holm-adjusted), {level:g} % cluster interval"
    )
    records = [
        _contrast_record(contrast) | {"run_spread": "; ".join(spread_lines(contrast, summary["replicates"]))}
        for contrast in summary["contrasts"]
    ]
    note = SPREAD_NOTE if any(record["run_spread"] for record in records) else ""
    return Table("table2", title, ["Contrast", *summary["suite_order"]], list(rows.values()), records, note)


SPREAD_NOTE = (
    "Runs: net difference between two runs of one arm that differ only in their random numbers, by seed. Intervals and "
    "p-values do not cover this spread."
)


def spread_lines(contrast: Mapping[str, Any], replicates: Sequence[Mapping[str, Any]]) -> list[str]:
    """Run-to-run spread of the contrast's arms in its suite, one line per pair of runs: `runs a / b: +25, -8`."""
    lines = []
    for pair in replicates:
        if {pair["a"], pair["b"]} & {contrast["a"], contrast["b"]}:
            counts = pair["suites"][contrast["suite"]]
            nets = ", ".join(f"{signed(counts['by_seed'][f's{seed}']['net'])} (s{seed})" for seed in pair["seeds"])
            lines.append(f"runs {pair['a']} / {pair['b']}: {nets}")
    return lines


def contrast_cell(contrast: Mapping[str, Any], replicates: Sequence[Mapping[str, Any]]) -> str:
    """One contrast in one suite as lines of text, the run-to-run spread of its arms last."""
    low, high = contrast["ci"]
    lines = [
        f"{signed(contrast['net'])} ({signed(contrast['pp'])} pp)",
        f"W/L {contrast['wins']:,}/{contrast['losses']:,}",
        f"p {format_p(contrast['p_exact'])} (Holm {format_p(contrast['p_holm'])})",
        f"[{signed(low)}, {signed(high)}]",
    ]
    if clean := contrast["decontam"]:
        lines.append(f"decontam {signed(clean['net'])} / {clean['n']:,}")
    return "\n".join(lines + spread_lines(contrast, replicates))


def _contrast_record(contrast: Mapping[str, Any]) -> dict[str, Any]:
    clean = contrast["decontam"] or {}
    return {
        "arm_a": contrast["a"],
        "arm_b": contrast["b"],
        "contrast": contrast["label"],
        "suite": contrast["suite"],
        **{key: contrast[key] for key in ("n", "net", "pp", "wins", "losses")},
        "p": contrast["p_exact"],
        "p_holm": contrast["p_holm"],
        "ci_lo": contrast["ci"][0],
        "ci_hi": contrast["ci"][1],
        **{f"decontam_{key}": clean.get(key, "") for key in ("net", "n", "wins", "losses")},
        "decontam_p": clean.get("p_exact", ""),
    }
