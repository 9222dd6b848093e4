"""A paired comparison of two evaluations of the same items (thinker-spec 13)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dosematch.errors import UserError
from dosematch.interchange.items import PLAIN, Item, Key, item_name
from dosematch.reporting.table import Table, percent, signed
from dosematch.statistics import paired
from dosematch.statistics.bootstrap import percentile_intervals
from dosematch.statistics.mcnemar import format_p, holm
from dosematch.statistics.settings import StatisticsSettings

Evaluation = Mapping[Key, Item]
CHECKED = ("prompt", "gold", "doc")
HEADERS = ["task", "n", "A", "B", "A - B, points", "interval", "wins", "losses", "p", "p, Holm"]


def compare_evaluations(
    evaluations: tuple[Evaluation, Evaluation],
    names: tuple[str, str],
    options: StatisticsSettings,
    chosen: bool = False,
) -> dict[str, Any]:
    """Counts, exact McNemar p and question-bootstrap interval per task and over all; Holm's adjustment over tasks.

    Wins are items that A solves and B does not. Items are ordered by task and id, so that the order of files does not
    matter. `names` are the two sides in messages; `chosen` says that metrics were named, so that they may differ.
    Raises `UserError` naming the first item that one side lacks, or whose prompt, gold answer or document differs.
    """
    a, b = evaluations
    keys = sorted(a, key=lambda key: (key[0], len(key[1]), key[1]))  # by length first: 2 comes before 10
    checked = _refuse_differences(a, b, names, chosen)
    items = paired.Items(panel=np.array([task for task, _ in keys]), sha1_12=np.array([i for _, i in keys]))
    sides = tuple(np.array([[side[key].correct for key in keys]], dtype=bool) for side in (a, b))
    tasks = list(dict.fromkeys(task for task, _ in keys))
    rows = [_row(task, [task], items, sides, options) for task in tasks]
    for row, adjusted in zip(rows, holm([row["p_exact"] for row in rows]), strict=True):
        row["p_holm"] = adjusted
        row["metric"] = [next(i.metric for i in side.values() if i.task == row["task"]) for side in evaluations]
    return {
        "a": names[0],
        "b": names[1],
        "checked": checked,
        "statistics": options.model_dump(include={"resamples", "rng_seed", "level"}),
        "tasks": rows,
        "pooled": _row("all tasks", tasks, items, sides, options) if len(tasks) > 1 else None,
    }


def _row(
    name: str,
    tasks: Sequence[str],
    items: paired.Items,
    sides: tuple[paired.Bools, ...],
    options: StatisticsSettings,
) -> dict[str, Any]:
    keep, (a, b) = items.keep(tasks), sides
    counts = paired.compare(a, b, keep)
    differences = paired.cluster_differences(a, b, keep)[None]
    interval = percentile_intervals(differences, 1, options.resamples, options.rng_seed, options.level)[0]
    correct = {"a_correct": int(a[:, keep].sum()), "b_correct": int(b[:, keep].sum())}
    return {"task": name, **correct, **counts.as_dict(), "pp": counts.pp, "ci": interval.tolist()}


def _refuse_differences(a: Evaluation, b: Evaluation, names: tuple[str, str], chosen: bool) -> dict[str, int]:
    """Refuse what cannot be paired; how many items had both digests, by kind."""
    for one, other, name in ((a, b, names[1]), (b, a, names[0])):
        if missing := [key for key in one if key not in other]:
            item = one[missing[0]]
            raise UserError(
                f"{name}: id {item_name(*missing[0])}: is missing ({len(missing)} in all); {item.place} has it"
            )
    checked = dict.fromkeys(CHECKED, 0)
    for key, mine in a.items():
        theirs = b[key]
        if mine.metric != theirs.metric and not chosen and PLAIN not in (mine.metric, theirs.metric):
            raise UserError(
                f"task {mine.task}: {names[0]} has {mine.metric}, {names[1]} has {theirs.metric}; choose with METRIC="
            )
        for kind in CHECKED:
            digests = getattr(mine, kind), getattr(theirs, kind)
            if None not in digests:
                checked[kind] += 1
                if digests[0] != digests[1]:
                    raise UserError(f"{theirs.place}: id {item_name(*key)}: has another {kind} than {mine.place}")
    return checked


def summary_lines(result: Mapping[str, Any]) -> list[str]:
    """One readable line per task, one for all, and what was checked."""
    rows = [*result["tasks"], *([result["pooled"]] if result["pooled"] else [])]
    return [*(_line(row, len(result["tasks"]) > 1) for row in rows), checked_line(result)]


def _line(row: Mapping[str, Any], several: bool) -> str:
    shares = [f"{name} {percent(row[key], row['n'])} %" for name, key in (("A", "a_correct"), ("B", "b_correct"))]
    adjusted = f", Holm {format_p(row['p_holm'])}" if several and "p_holm" in row else ""
    return (
        f"{row['task'] or 'items'}: {', '.join(shares)} of {row['n']}; {signed(row['pp'])} points [{_interval(row)}]; "
        f"{row['wins']} wins, {row['losses']} losses, exact McNemar p {format_p(row['p_exact'])}{adjusted}"
    )


def checked_line(result: Mapping[str, Any]) -> str:
    """How many items had prompt, gold answer and document on both sides, all of them equal."""
    n = sum(row["n"] for row in result["tasks"])
    return "equal on both sides: ids of all items; " + ", ".join(
        f"{k} of {v}/{n}" for k, v in result["checked"].items()
    )


def comparison_table(result: Mapping[str, Any]) -> Table:
    """The comparison as a table, a row per task and one for all of them."""
    records = [*result["tasks"], *([result["pooled"]] if result["pooled"] else [])]
    rows = [
        [
            row["task"] or "items",
            str(row["n"]),
            percent(row["a_correct"], row["n"]),
            percent(row["b_correct"], row["n"]),
            signed(row["pp"]),
            _interval(row),
            str(row["wins"]),
            str(row["losses"]),
            format_p(row["p_exact"]),
            format_p(row["p_holm"]) if "p_holm" in row else "-",
        ]
        for row in records
    ]
    return Table("comparison", f"{result['a']} (A) against {result['b']} (B)", HEADERS, rows, records)


def _interval(row: Mapping[str, Any]) -> str:
    return " to ".join(signed(value) for value in row["ci"])


def render_comparison(result: Mapping[str, Any]) -> str:
    """The comparison as one HTML page that needs no network; all text from files is escaped."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.get_template("compare.html.j2")
    return template.render(table=comparison_table(result), result=result, checked=checked_line(result))
