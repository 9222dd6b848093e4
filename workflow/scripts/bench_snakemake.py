"""Measures what Snakemake adds: seconds per trivial local job, and a call of the smoke study with nothing to do."""

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from dosematch.benchmarks.timing import at_most, environment, seconds
from dosematch.cli import run
from dosematch.errors import UserError
from dosematch.records import write_json

FEW, MANY = 10, 110  # the difference of two runs holds no start-up
JOB_GOAL, NO_OP_GOAL = 0.060, 4.0  # seconds
SMOKE = ["--cores", "2", "--configfile", "config/two_arms.yaml", "--config", "scale=smoke"]
WORKFLOW = """
rule all:
    input: expand("{{i}}.txt", i=range({jobs}))
rule trivial:
    output: "{{i}}.txt"
    shell: "true > {{output}}"
"""


def snakemake(*options: str, folder: str = ".") -> str:
    """Run Snakemake of this environment in `folder`; what it said, or a `UserError` with its last lines."""
    command = [sys.executable, "-m", "snakemake", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"snakemake {' '.join(options)}: " + " | ".join(done.stderr.splitlines()[-3:]))
    return done.stdout + done.stderr


def jobs(n: int) -> float:
    """Seconds of a workflow of `n` trivial jobs, one at a time, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Snakefile").write_text(WORKFLOW.format(jobs=n), encoding="utf-8")
        return seconds(lambda: snakemake("--cores", "1", folder=folder))


def shell() -> float:
    """Seconds of the shell alone, as Snakemake starts it."""
    command = ["bash", "-c", "set -euo pipefail; true > /dev/null"]
    return seconds(lambda: subprocess.run(command, check=True))


def main(out: Annotated[Path, typer.Option()], repeats: Annotated[int, typer.Option(help="counted runs")] = 5) -> None:
    """Few and many jobs in turn; then calls of the finished smoke study (`make smoke` finishes it)."""
    said = snakemake(*SMOKE, "--dry-run")
    if "Nothing to be done" not in said:
        raise UserError("the smoke study is not finished: run `make smoke` first")
    per_job = [(jobs(MANY) - jobs(FEW)) / (MANY - FEW) for _ in range(1 + repeats)][1:]
    alone = median(shell() for _ in range(MANY))
    no_op = [seconds(lambda: snakemake(*SMOKE)) for _ in range(1 + repeats)][1:]
    overhead = median(per_job) - alone
    record = {"jobs": [FEW, MANY], "warm_up": 1, "job_s": per_job, "shell_s": alone, "overhead_s": overhead}
    record |= {
        "no_op_s": no_op,
        "goal_job": at_most(overhead, JOB_GOAL),
        "goal_no_op": at_most(median(no_op), NO_OP_GOAL),
    }
    write_json(out, environment(1, "snakemake") | record)
    typer.echo(
        f"Snakemake: {1000 * overhead:.0f} ms per local job beside the shell's {1000 * alone:.0f} (goal "
        f"{1000 * JOB_GOAL:.0f}); smoke study with nothing to do {median(no_op):.2f} s (goal {NO_OP_GOAL:.0f})"
    )


if __name__ == "__main__":
    run(main)
