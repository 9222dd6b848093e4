"""Rebuilds one training step from its record and asserts that nothing differs.

The steps before it are run again, since they made its weights; on CPU every field must be equal.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from transformers import PreTrainedTokenizerBase

from dosematch.cli import run
from dosematch.config import check
from dosematch.errors import UserError
from dosematch.grading import Grader
from dosematch.policy import load_policy, load_tokenizer
from dosematch.records import read_json, read_jsonl, sha256_file
from dosematch.rollout.engine import Completion, Generator, Request
from dosematch.runtime import prepare_runtime
from dosematch.settings import TrainSettings
from dosematch.streams import read_training_questions
from dosematch.training import Trainer


class PrintingEngine:
    """The trainer's engine, showing every prompt and completion."""

    def __init__(self, engine: Generator, tokenizer: PreTrainedTokenizerBase) -> None:
        self.engine, self.tokenizer = engine, tokenizer

    def generate(self, requests: Sequence[Request], batch_size: int | None = None) -> list[Completion]:
        """Generate as the trainer does, and print."""
        completions = self.engine.generate(requests, batch_size)
        for request, completion in zip(requests, completions, strict=True):
            prompt, answer = (self.tokenizer.decode(list(ids)) for ids in (request.prompt_ids, completion.token_ids))
            typer.echo(f"{prompt!r} -> {answer!r}")
        return completions


def main(
    run_dir: Annotated[Path, typer.Option(help="folder with training.jsonl and train_meta.json")],
    start: Annotated[Path, typer.Option(help="weights that the training started from")],
    stream: Annotated[Path, typer.Option(help="stream, or parent slice")],
    step: Annotated[int, typer.Option()],
) -> None:
    """Train up to `step`, print it, and compare its row with the recorded one."""
    meta, recorded = read_json(run_dir / "train_meta.json"), read_jsonl(run_dir / "training.jsonl")
    settings = check(TrainSettings, meta.get("settings"), f"{run_dir}/train_meta.json", "settings.")
    if not 1 <= step <= len(recorded):
        raise UserError(f"{run_dir}/training.jsonl: has no step {step} (1..{len(recorded)})")
    for file, key in ((start, "parent_sha256"), (stream, "stream_sha256")):
        if sha256_file(file) != meta.get(key):
            raise UserError(f"{file}: is not the file that {run_dir} was trained with (train_meta.json: {key})")
    prepare_runtime(settings.runtime)
    model = load_policy(start.parent, settings.runtime.dtype, settings.runtime.device)
    tokenizer = load_tokenizer(start.parent)
    items = read_training_questions(stream)[:step]
    with Grader() as grader:
        trainer = Trainer(settings, meta["seed"], model, tokenizer, grader, [])
        for item in items[:-1]:
            trainer.advance(item)
        trainer.context = replace(trainer.context, engine=PrintingEngine(trainer.engine, tokenizer))
        row = json.loads(json.dumps(trainer.advance(items[-1])))
    record = recorded[step - 1]
    differences = sorted(key for key in row.keys() | record.keys() if row.get(key) != record.get(key))
    for key in ("fast_correct", "adv_fast", "censored", "grad_norm_micro", "grad_norm", "lr_used"):
        typer.echo(f"{key}: {row[key]}")
    if differences:
        raise UserError(f"{run_dir}/training.jsonl: step {step}: replay differs in {', '.join(differences)}")
    typer.echo(f"step {step}: all {len(row)} fields equal the record")


if __name__ == "__main__":
    run(main)
