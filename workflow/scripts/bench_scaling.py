"""Measures how speed scales with batch, model size and rollouts, and draws it beside the machine's limits."""

from pathlib import Path
from typing import Annotated

import torch
import typer
from matplotlib.figure import Figure

from dosematch.benchmarks.scaling import TOKENS, decode_row, draw, machine, step_row
from dosematch.benchmarks.timing import WARM_UP, environment
from dosematch.benchmarks.workload import BASE, random_qwen
from dosematch.cli import run
from dosematch.policy import load_policy
from dosematch.records import write_atomically, write_json
from dosematch.runtime import quiet_transformers

BATCHES = [2**i for i in range(9)]
SHAPES = [(128, 4), (192, 4), (256, 4), (384, 6), (512, 9)]  # (hidden, layers): 0.8 to 28 million parameters
ROLLOUTS = [4, 8, 16, 32, 64]
SIZE_BATCH = 32
SPEEDS = {
    "tokens_per_s": "measured",
    "compute_bound_per_s": "arithmetic limit",
    "memory_bound_per_s": "weights from memory",
}


def main(
    out: Annotated[Path, typer.Option(help="JSON; the figure goes beside it as SVG")],
    repeats: Annotated[int, typer.Option()] = 5,
    threads: Annotated[int, typer.Option()] = 1,
) -> None:
    """Limits first, then three curves in the same process."""
    torch.set_num_threads(threads)
    quiet_transformers()
    limits = machine(repeats)
    model = load_policy(BASE)
    by_batch = [decode_row(model, batch, limits, repeats) for batch in BATCHES]
    by_size = [decode_row(random_qwen(*shape, 320), SIZE_BATCH, limits, repeats) for shape in SHAPES]
    by_rollouts = [step_row(rollouts, limits, repeats) for rollouts in ROLLOUTS]
    curves = {"by_batch": by_batch, "by_size": by_size, "by_rollouts": by_rollouts}
    record = {"tokens": TOKENS, "size_batch": SIZE_BATCH, "repeats": repeats, "warm_up": WARM_UP, "limits": limits}
    write_json(out, environment(threads, "matplotlib") | record | curves)
    figure = Figure(figsize=(13, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    draw(left, by_batch, "batch", SPEEDS)
    draw(middle, by_size, "parameters", SPEEDS)
    draw(right, by_rollouts, "rollouts", {"step_s": "measured", "compute_bound_s": "arithmetic limit"})
    left.set_title("micro base, tokens/s")
    middle.set_title(f"batch {SIZE_BATCH}, tokens/s")
    right.set_title("training step, seconds")
    write_atomically(out.with_suffix(".svg"), lambda target: figure.savefig(target, format="svg"))
    gflops, gbytes = limits["flop_per_s"] / 1e9, limits["bytes_per_s"] / 1e9
    typer.echo(f"limits: {gflops:.0f} GFLOP/s, {gbytes:.1f} GB/s; curves in {out} and {out.with_suffix('.svg')}")


if __name__ == "__main__":
    run(main)
