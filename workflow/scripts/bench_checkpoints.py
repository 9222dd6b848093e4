"""Measures what resume states cost a training at micro scale: seconds in `ResumeFolder.save` against all seconds."""

import tempfile
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer

from dosematch.benchmarks.checkpoints import timed_training
from dosematch.benchmarks.timing import at_most, environment
from dosematch.benchmarks.workload import study
from dosematch.cli import run
from dosematch.records import write_json
from dosematch.runtime import quiet_transformers
from dosematch.settings import TrainSettings

GOAL = 0.03  # of a training's time


def main(
    out: Annotated[Path, typer.Option()],
    arm: Annotated[str, typer.Option(help="the cheaper the arm, the larger the share")] = "std_rlvr_cont",
    repeats: Annotated[int, typer.Option(help="counted trainings, after one of warm-up")] = 5,
) -> None:
    """Train an arm several times with the study's own settings, on the disk that holds the output."""
    settings = TrainSettings.model_validate_json(study().train_settings(arm))
    torch.set_num_threads(settings.runtime.threads)
    quiet_transformers()
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for _ in range(1 + repeats):
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".resume-") as folder:
            rows.append(timed_training(settings, Path(folder)))
    share, of_steps = (median(row[name] for row in rows[1:]) for name in ("share", "share_of_steps"))
    training = settings.training
    record = {"arm": arm, "checkpoint_every": training.checkpoint_every, "steps": training.steps, "warm_up": 1}
    record |= {"trainings": rows[1:], "share": share, "share_of_steps": of_steps, "goal": at_most(share, GOAL)}
    write_json(out, environment(settings.runtime.threads) | record)
    typer.echo(
        f"resume states of {arm}: {share:.2%} of a training's time (goal {GOAL:.0%}), {of_steps:.2%} without its "
        "development curve"
    )


if __name__ == "__main__":
    run(main)
