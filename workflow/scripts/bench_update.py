"""Measures the update alone, time and peak memory, against a plain backward pass on the full logits."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from dosematch.benchmarks.timing import at_most, environment
from dosematch.benchmarks.update import MICRO_BATCH_TOKENS, cases, compare, peaks
from dosematch.cli import run
from dosematch.records import write_json
from dosematch.runtime import quiet_transformers

TIME_GOAL, MEMORY_GOAL = 0.6, 0.5  # of the plain update's


def main(
    out: Annotated[Path, typer.Option()],
    threads: Annotated[int, typer.Option()] = 1,
) -> None:
    """Memory of every case in forked processes, then gradients and times in this one."""
    torch.set_num_threads(threads)
    quiet_transformers()
    chosen = cases()
    memory = [peaks(case) for case in chosen]
    rows = []
    for case, peak in zip(chosen, memory, strict=True):
        row = compare(case) | peak
        row["goal_time"] = at_most(row["share"], TIME_GOAL)
        row["goal_memory"] = at_most(row["memory_share"], MEMORY_GOAL)
        lengths = [[len(segment.context_ids), len(segment.target_ids)] for segment in case.segments]
        rows.append({"case": case.name, "context_and_target_tokens": lengths, **row})
        typer.echo(
            f"update, {case.name}: {row['ours_s']:.3f} s against {row['theirs_s']:.3f} s, share {row['share']:.2f} "
            f"(goal {TIME_GOAL}); peak {row['ours_mib']:.0f} against {row['theirs_mib']:.0f} MiB, share "
            f"{row['memory_share']:.2f} (goal {MEMORY_GOAL}); gradients differ by {row['gradient_relative_gap']:.1e}"
        )
    write_json(out, environment(threads) | {"micro_batch_tokens": MICRO_BATCH_TOKENS, "rows": rows})


if __name__ == "__main__":
    run(main)
