"""Benchmark of grading: hostile answers one by one, and 5,000 mixed ones against math-verify called one by one."""

import logging
import os
from functools import partial
from pathlib import Path
from statistics import median
from timeit import default_timer, timeit
from typing import Annotated, Any

from typer import Option

from dosematch.benchmarks.grading import all_theirs, mixed_pairs
from dosematch.cli import run
from dosematch.grading import GRADER_VERSION, Grader
from dosematch.hostile import hostile_completions, kinds
from dosematch.math_process import Cost
from dosematch.records import write_json


def main(
    out: Annotated[Path, Option(help="JSON to write")],
    data: Annotated[Path, Option(help="folder with graded answers; made up if absent")] = Path("../shared/data"),
    mixed: Annotated[int, Option(help="answers graded by both sides")] = 5000,
    hostile_mixed: Annotated[int, Option(help="hostile ones among them")] = 20,
    blocks: Annotated[int, Option(help="paired blocks: graded by us, then by math-verify")] = 10,
) -> None:
    """Write the cost of every hostile answer, and the median ratio of times over paired blocks."""
    logging.disable(logging.CRITICAL)  # math-verify logs every timeout
    completions, pairs = hostile_completions(), mixed_pairs(data, mixed, hostile_mixed)
    times: dict[str, list[float]] = {"ours": [], "math_verify": []}
    with Grader() as grader, Grader() as fresh:  # the second has no verdicts to remember
        _ = [each.grade(r"\boxed{x+1}", "1+x") for each in (grader, fresh)]  # starts the workers
        costs = {name: cost(grader, text) for name, text in completions.items()}
        for block in (pairs[start::blocks] for start in range(blocks)):
            times["ours"].append(timeit(partial(fresh.grade_many, block), number=1))
            times["math_verify"].append(timeit(partial(all_theirs, block), number=1))
    record = {
        "grader": GRADER_VERSION,
        "hostile": {"n": len(costs), "kinds": kinds(completions), "costs": costs},
        "hostile_worst": {key: max(row[key] for row in costs.values()) for key in ("wall", "cpu", "peak_mb")},
        "mixed": {"n": len(pairs), "hostile": hostile_mixed, "made_up": not data.is_dir()},
        "seconds": {name: sum(values) for name, values in times.items()},
        "median_ratio": median(b / a for a, b in zip(times["ours"], times["math_verify"], strict=True)),
        "load_average": os.getloadavg()[0],
    }
    write_json(out, record)
    print(*(f"{key}: {record[key]}" for key in ("hostile_worst", "seconds", "median_ratio", "load_average")), sep="\n")


def cost(grader: Grader, text: str) -> dict[str, Any]:
    """Outcome, wall seconds, and CPU seconds and peak megabytes of the worker's child: 0 where text decides."""
    grader.last_cost = None
    start = default_timer()
    outcome = grader.grade(text, "5").outcome
    wall = default_timer() - start
    _, cpu, peak = grader.last_cost or Cost(outcome, 0.0, 0)
    return {"outcome": outcome, "wall": wall, "cpu": cpu, "peak_mb": peak / 1e6}


if __name__ == "__main__":
    run(main)
