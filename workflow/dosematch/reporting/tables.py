"""Tables 1, 2 and 3B as plain records for CSV and as formatted cells for Markdown and HTML (thinker-spec 17)."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dosematch.statistics.mcnemar import format_p

Summary = Mapping[str, Any]
COUNTERS = {  # counter in the training log -> column
    "gen_tokens": "gen",
    "entropy_fwd_tokens": "ent_fwd",
    "pg_bwd_tokens": "pg_bwd",
    "distill_bwd_tokens": "dist_bwd",
    "anchor_bwd_tokens": "anc_bwd",
}

DIAGNOSTIC_COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {  # header -> text of one run
    "All wrong, all right, mixed": lambda run: f"{run['all_wrong']}, {run['all_right']}, {run['mixed']}",
    "Active": lambda run: f"{run['active_steps']}/{run['steps']}",
    "Pre-clip norm, mean": lambda run: f"{run['grad_norm_mean_all']:.4f}",
    "Mean over active": lambda run: f"{run['grad_norm_mean_active']:.4f}",
    "Max": lambda run: f"{run['grad_norm_max']:.4f}",
}


@dataclass(frozen=True)
class Table:
    """One table: `records` for machines, `headers` and `rows` of text for people; a line break in a cell is `\\n`."""

    name: str
    title: str
    headers: list[str]
    rows: list[list[str]]
    records: list[dict[str, Any]]

    def csv(self) -> str:
        """CSV text with a header line; a value that a record lacks is an empty field."""
        columns = list(dict.fromkeys(column for record in self.records for column in record))
        out = io.StringIO()
        writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records)
        return out.getvalue()

    def markdown(self) -> str:
        """Markdown text: the title, then a pipe table."""
        lines = [self.headers, ["---"] * len(self.headers), *self.rows]
        body = "\n".join("| " + " | ".join(_markdown_cell(cell) for cell in line) + " |" for line in lines)
        return f"**{self.title}**\n\n{body}\n"


def _markdown_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def percent(count: int, n: int) -> str:
    """`count` of `n` in percent, two decimals: 291 of 480 is 60.62; a dash when `n` is 0 (thinker-spec 17)."""
    return f"{100 * count / n:.2f}" if n else "-"


def signed(value: float) -> str:
    """A difference with its sign: whole numbers as `+1,234`, others as `+5.95`; zero has no sign."""
    text = f"{value:+,}" if isinstance(value, int) else f"{value:+.2f}"
    return text if any(digit in text for digit in "123456789") else text.lstrip("+-")


def by_seed(counts: Mapping[str, int], seeds: Sequence[int]) -> str:
    """Counts of the seeds as the study prints them: `1,254 + 1,236`."""
    return " + ".join(f"{counts[f's{seed}']:,}" for seed in seeds)


def all_tables(summary: Summary) -> list[Table]:
    """Every table for which the summary holds data, in the order of the study."""
    return [table1(summary), table2(summary), table3b(summary)]


def table1(summary: Summary) -> Table:
    """Correct answers per arm: each panel, then each suite of several panels, with decontaminated counts."""
    suites = [suite for suite in summary["suite_order"] if suite not in summary["panels"]]
    columns = [*summary["panels"], *suites]
    headers = ["Arm", *columns]
    rows, records = [], []
    for heading, block in (("", "arms"), ("Single-seed arms", "single_seed_arms")):
        names = [name for name in summary["arm_order"] if name in summary[block]]
        if heading and names:
            rows.append([heading, *[""] * (len(headers) - 1)])
        for name in names:
            arm = summary[block][name]
            counts = _with_decontaminated(arm, suites)
            rows.append([f"{name}\n{arm['label']}", *(_count_cell(counts[column], arm["seeds"]) for column in columns)])
            records.append({"block": block, "arm": name, "label": arm["label"], **_count_columns(counts, arm["seeds"])})
    seeds = " + ".join(map(str, summary["seeds"]))
    title = f"Table 1. Correct answers, seeds {seeds} pooled; in brackets: without questions seen in training"
    return Table("table1", title, headers, rows, records)


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
        cells.append(contrast_cell(contrast))
    title = (
        f"Table 2. Paired contrasts: net, wins/losses, exact McNemar p (Holm-adjusted), {level:g} % cluster interval"
    )
    records = [_contrast_record(contrast) for contrast in summary["contrasts"]]
    return Table("table2", title, ["Contrast", *summary["suite_order"]], list(rows.values()), records)


def contrast_cell(contrast: Mapping[str, Any]) -> str:
    """One contrast in one suite as lines of text."""
    low, high = contrast["ci"]
    lines = [
        f"{signed(contrast['net'])} ({signed(contrast['pp'])} pp)",
        f"W/L {contrast['wins']:,}/{contrast['losses']:,}",
        f"p {format_p(contrast['p_exact'])} (Holm {format_p(contrast['p_holm'])})",
        f"[{signed(low)}, {signed(high)}]",
    ]
    if clean := contrast["decontam"]:
        lines.append(f"decontam {signed(clean['net'])} / {clean['n']:,}")
    return "\n".join(lines)


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


def table3b(summary: Summary) -> Table:
    """Training diagnostics per arm: step classes, active steps, pre-clip norms, token counts."""
    diagnostics = summary["training_diagnostics"]
    names = [name for name in summary["arm_order"] if name in diagnostics]
    headers = ["Arm", "Seed", *DIAGNOSTIC_COLUMNS, "Generated tokens", "Entropy", "PG", "Distillation", "Anchor"]
    rows = []
    for name in names:
        runs = {seed: diagnostics[name][str(seed)] for seed in summary["seeds"] if str(seed) in diagnostics[name]}
        stacked = ["\n".join(form(run) for run in runs.values()) for form in DIAGNOSTIC_COLUMNS.values()]
        tokens = [_counter_cell(diagnostics[name], counter) for counter in list(COUNTERS)[1:]]
        rows.append([name, "\n".join(map(str, runs)), *stacked, _generated_cell(summary, name), *tokens])
    records = [
        {"arm": name, "seed": seed, **_run_columns(diagnostics[name][str(seed)])}
        for name in names
        for seed in summary["seeds"]
        if str(seed) in diagnostics[name]
    ]
    title = "Table 3B. Training: step classes, active steps, pre-clip gradient norms and token volumes"
    return Table("table3b", title, headers, rows, records)


def _generated(runs: Mapping[str, Any]) -> int:
    return sum(run["tokens"]["gen_tokens"]["total"] for run in runs.values())


def _generated_cell(summary: Summary, name: str) -> str:
    runs = summary["training_diagnostics"][name]
    reference = summary["training_diagnostics"].get(summary["token_reference"])
    seeds = [str(seed) for seed in summary["seeds"] if str(seed) in runs]
    parts = " + ".join(f"{runs[seed]['tokens']['gen_tokens']['total']:,}" for seed in seeds)
    lines = [parts if len(seeds) == 1 else f"{parts} = {_generated(runs):,}"]
    cap = (summary["arms"].get(name) or summary["single_seed_arms"][name])["cap"]
    if cap:
        steps = sum(run["steps"] for run in runs.values())
        lines.append(f"{100 * _generated(runs) / (cap * steps):.1f} % of the cap")
    if reference and name != summary["token_reference"] and set(reference) == set(runs):
        change = 100 * (_generated(runs) / _generated(reference) - 1)
        lines.append(f"{change:+.1f} % vs. {summary['token_reference']}")
    return "\n".join(lines)


def _counter_cell(runs: Mapping[str, Any], counter: str) -> str:
    values = [run["tokens"][counter] for run in runs.values()]
    if isinstance(values[0], int):
        return f"{sum(values):,}"
    totals = {part: sum(value[part] for value in values) for part in values[0]}
    return "\n".join(f"{part} {total:,}" for part, total in totals.items()) if any(totals.values()) else "0"


def _run_columns(run: Mapping[str, Any]) -> dict[str, Any]:
    columns = {"all_wrong": run["all_wrong"], "all_right": run["all_right"], "mixed": run["mixed"]}
    columns |= {"active": run["active_steps"], "steps": run["steps"], "mean_all": run["grad_norm_mean_all"]}
    columns |= {"mean_active": run["grad_norm_mean_active"], "max": run["grad_norm_max"]}
    for counter, column in COUNTERS.items():
        value = run["tokens"][counter]
        parts = {column: value} if isinstance(value, int) else {f"{column}_{part}": n for part, n in value.items()}
        columns |= parts
    return columns
