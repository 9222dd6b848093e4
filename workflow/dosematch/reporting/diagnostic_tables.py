"""Tables 3A (verifier), 3B (training) and 3C (gradient anatomy) of a study (thinker-spec 17)."""

from collections.abc import Callable, Mapping
from typing import Any

from dosematch.reporting.table import Summary, Table, arm_of, percent, runs_of, share

COUNTERS = {  # counter in the training log -> column
    "gen_tokens": "gen",
    "entropy_fwd_tokens": "ent_fwd",
    "pg_bwd_tokens": "pg_bwd",
    "distill_bwd_tokens": "dist_bwd",
    "anchor_bwd_tokens": "anc_bwd",
    "teacher_fwd_tokens": "teach_fwd",
}
TOKEN_HEADERS = ["Generated tokens", "Entropy", "PG", "Distillation", "Anchor", "Teacher"]
DIAGNOSTIC_COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {  # header -> text of one run
    "All wrong, all right, mixed": lambda run: f"{run['all_wrong']}, {run['all_right']}, {run['mixed']}",
    "Active": lambda run: f"{run['active_steps']}/{run['steps']}",
    "Pre-clip norm, mean": lambda run: f"{run['grad_norm_mean_all']:.4f}",
    "Mean over active": lambda run: f"{run['grad_norm_mean_active']:.4f}",
    "Max": lambda run: f"{run['grad_norm_max']:.4f}",
}
VERIFIER_HEADERS = [
    *("Arm", "Seed"),
    *("Fast right", "Yes (TN)", "No (FP)", "Invalid", "(No box)"),
    *("Fast wrong", "Yes (FN)", "No (TP)", "Invalid", "(No box)"),
    *("Triggers (No, no box, both)", "Wins/losses, final", "Collapsed to"),
]


def table3a(summary: Summary) -> Table:
    """The verifier against the Fast answers: one line per arm and seed, single-seed arms included."""
    rows, records = [], []
    for arm, seed, run in runs_of(summary, "verifier"):
        trig = run["triggers"]
        right = _verdict_columns(run["confusion_matrix"]["fast_right"], "c")
        wrong = _verdict_columns(run["confusion_matrix"]["fast_wrong"], "w")
        fast, n = run["fast_correct"], run["n"]
        causes = f"({trig['no_only']}, {trig['nobox_only']}, {trig['both']})"
        final = f"+{run['slow_wins']}/-{run['slow_losses']} -> {run['correct']}/{n} ({percent(run['correct'], n)} %)"
        rows.append(
            [
                *(arm, seed),
                *(share(fast, n), *_verdict_cells(run, "fast_right")),
                *(share(n - fast, n), *_verdict_cells(run, "fast_wrong")),
                f"{share(trig['total'], n, 1)} {causes}",
                *(final, run["collapsed"] or "-"),
            ]
        )
        records.append(
            {"arm": arm, "seed": seed, "fast_correct": fast, "fast_correct_pct": percent(fast, n), **right}
            | {"fast_wrong": n - fast, "fast_wrong_pct": percent(n - fast, n), **wrong}
            | {f"tot_{verdict.lower()}": count for verdict, count in run["verdicts"].items()}
            | {"tot_nobox": right["c_nobox"] + wrong["w_nobox"]}
            | {"trig": trig["total"], "trig_pct": percent(trig["total"], n, 1)}
            | {f"trig_{cause}": trig[cause] for cause in ("no_only", "nobox_only", "both")}
            | {"slow_win": run["slow_wins"], "slow_loss": run["slow_losses"], "slow_correct": run["correct"]}
            | {"slow_n": n, "slow_pct": percent(run["correct"], n), "collapsed": run["collapsed"] or ""}
        )
    title = f"Table 3A. Verify→Slow on {summary['verify_slow_panel']}: verdicts on right and wrong Fast answers"
    return Table("table3a", title, VERIFIER_HEADERS, rows, records, VERIFIER_NOTE if rows else "")


VERIFIER_NOTE = (
    "Positive means an error was detected. An answer without a box is counted beside its verdict, so the six cells sum "
    "to the panel. The three causes of a trigger are disjoint: No alone, missing box alone, both."
)


def _verdict_cells(run: Mapping[str, Any], row: str) -> list[str]:
    cells = run["confusion_matrix"][row]
    total = cells["yes"] + cells["no"] + cells["invalid"]
    shares = [share(cells[verdict], total, 1) for verdict in ("yes", "no", "invalid")]
    return [*shares, f"({cells['nobox']})"]


def _verdict_columns(cells: Mapping[str, int], prefix: str) -> dict[str, Any]:
    """CSV columns of one row of a confusion matrix: `c_yes, c_yes_pct, ..., c_nobox`."""
    total = cells["yes"] + cells["no"] + cells["invalid"]
    columns: dict[str, Any] = {}
    for verdict in ("yes", "no", "invalid"):
        columns |= {f"{prefix}_{verdict}": cells[verdict]}
        columns |= {f"{prefix}_{verdict}_pct": percent(cells[verdict], total, 1)}
    return columns | {f"{prefix}_nobox": cells["nobox"]}


def table3b(summary: Summary) -> Table:
    """Training diagnostics per arm: step classes, active steps, pre-clip norms, token counts."""
    diagnostics = summary["training_diagnostics"]
    headers = ["Arm", "Seed", *DIAGNOSTIC_COLUMNS, *TOKEN_HEADERS]
    rows = []
    for name in (name for name in summary["arm_order"] if name in diagnostics):
        runs = {seed: run for arm, seed, run in runs_of(summary, "training_diagnostics") if arm == name}
        stacked = ["\n".join(form(run) for run in runs.values()) for form in DIAGNOSTIC_COLUMNS.values()]
        tokens = [_counter_cell(runs, counter) for counter in list(COUNTERS)[1:]]
        rows.append([name, "\n".join(runs), *stacked, _generated_cell(summary, name, runs), *tokens])
    records = [
        {"arm": arm, "seed": seed, **_run_columns(run)} for arm, seed, run in runs_of(summary, "training_diagnostics")
    ]
    title = "Table 3B. Training: step classes, active steps, pre-clip gradient norms and token volumes"
    return Table("table3b", title, headers, rows, records, TOKEN_NOTE if rows else "")


TOKEN_NOTE = (
    "Fed counts every position of a sequence with a backward pass, prompt included; loss counts the tokens that carry "
    "loss. A norm under accumulation is that of the mean of several steps and not comparable with one step's."
)


def _generated(runs: Mapping[str, Any]) -> int:
    return sum(run["tokens"]["gen_tokens"]["total"] for run in runs.values())


def _generated_cell(summary: Summary, name: str, runs: Mapping[str, Any]) -> str:
    reference = summary["training_diagnostics"].get(summary["token_reference"])
    parts = " + ".join(f"{run['tokens']['gen_tokens']['total']:,}" for run in runs.values())
    lines = [parts if len(runs) == 1 else f"{parts} = {_generated(runs):,}"]
    if cap := arm_of(summary, name)["cap"]:
        steps = sum(run["steps"] for run in runs.values())
        lines.append(f"{100 * _generated(runs) / (cap * steps):.1f} % of the cap")
    if reference and name != summary["token_reference"] and set(runs) <= set(reference):
        same_seeds = {seed: reference[seed] for seed in runs}
        change = 100 * (_generated(runs) / _generated(same_seeds) - 1)
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


def table3c(summary: Summary) -> Table:
    """Gradient anatomy per run: groups without signal, norm per loss term, cosines between terms, clipping, alarms."""
    rows, records = [], []
    for arm, seed, run in runs_of(summary, "training_diagnostics"):
        causes, clip = run["no_signal"], run["clip"]
        norms = "\n".join(
            f"{term} {norm['mean']:.3f}, {norm['max']:.3f} ({norm['steps']})"
            for term, norm in run["term_norms"].items()
        )
        cosines = "\n".join(f"{p} {c['mean']:+.3f} ({c['steps']})" for p, c in run["term_cosines"].items())
        factor = "-" if clip["mean"] is None else f"{clip['mean']:.3f}\n{clip['clipped']}/{clip['updates']} clipped"
        groups = f"{causes['all_wrong']}, {causes['all_right']}, {causes['masked']}"
        verdicts = ", ".join(map(str, run["verdicts"].values())) if any(run["verdicts"].values()) else "-"
        rows.append([arm, seed, groups, norms or "-", cosines or "-", factor, verdicts, collapse_text(run)])
        records.append(
            {"arm": arm, "seed": seed, **{f"no_signal_{cause}": n for cause, n in causes.items()}}
            | {"updates": clip["updates"], "clipped": clip["clipped"]}
            | {"clip_mean": "" if clip["mean"] is None else clip["mean"]}
            | {
                f"norm_{t}_{key}": norm[key]
                for t, norm in run["term_norms"].items()
                for key in ("steps", "mean", "max")
            }
            | {f"cosine_{p}_{key}": c[key] for p, c in run["term_cosines"].items() for key in ("steps", "mean")}
            | {f"verdicts_{verdict.lower()}": n for verdict, n in run["verdicts"].items()}
            | {"collapse": collapse_text(run)}
        )
    headers = ["Arm", "Seed", "No signal: all wrong, all right, masked", "Norm per term: mean, max (steps)"]
    headers += ["Cosine between terms (steps)", "Clip factor", "Verdicts: Yes, No, Invalid", "Collapse"]
    title = "Table 3C. Gradient anatomy: where the signal came from, and what was clipped"
    return Table("table3c", title, headers, rows, records)


def collapse_text(run: Mapping[str, Any]) -> str:
    """The stretches of training in which the verifier had collapsed, in words; a dash when there were none."""
    return "; ".join(f"{a['verdict']}, steps {a['first_step']} to {a['last_step']}" for a in run["collapse"]) or "-"
