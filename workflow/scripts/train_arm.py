"""Trains one arm with one seed (or a parent) and writes model, training rows, development curve and provenance."""

import logging
from pathlib import Path
from typing import Annotated

import torch
import transformers
import typer

from dosematch import __version__
from dosematch.cli import run
from dosematch.grading import Grader
from dosematch.memory import check_memory
from dosematch.parallel import join, leave, rank
from dosematch.policy import load_policy, load_tokenizer, save_policy
from dosematch.questions.files import read_questions
from dosematch.records import digest, sha256_file, write_json, write_jsonl
from dosematch.resume import ResumeFolder, remove_leftovers
from dosematch.runtime import prepare_runtime
from dosematch.settings import TrainSettings
from dosematch.streams import read_training_questions
from dosematch.training import Trainer


def main(
    settings: Annotated[str, typer.Option(help="JSON of TrainSettings")],
    seed: Annotated[int, typer.Option()],
    start: Annotated[Path, typer.Option(help="weights to start from")],
    stream: Annotated[Path, typer.Option(help="stream, or parent slice")],
    development: Annotated[Path, typer.Option(help="development panel")],
    out_dir: Annotated[Path, typer.Option()],
    code: Annotated[str, typer.Option(help="digest of the code, for provenance and resume")] = "unknown",
) -> None:
    """Train, or resume what an interrupted run left, and write the results."""
    chosen = TrainSettings.model_validate_json(settings)
    prepare_runtime(chosen.runtime)
    join(chosen.runtime.device, chosen.runtime.processes)
    panel = read_questions(development)
    items = read_training_questions(stream)[: chosen.training.steps]
    check_memory(start.parent, chosen)
    model = load_policy(start.parent, chosen.runtime.dtype, chosen.runtime.device)
    tokenizer = load_tokenizer(start.parent)
    parent = sha256_file(start)
    identity = digest([settings, seed, parent, sha256_file(stream), sha256_file(development), code])
    resume = ResumeFolder(out_dir / f".resume-{identity}")
    with Grader() as grader:
        trainer = Trainer(chosen, seed, model, tokenizer, grader, panel)
        trainer.train(items, resume)
    first = rank() == 0
    leave()
    if not first:
        return
    meta = {
        "arm": chosen.arm.name,
        "seed": seed,
        "run": chosen.arm.run,
        "settings": chosen.model_dump(mode="json"),
        "base_lr": chosen.training.base_lr,
        "prompt_sha1": chosen.prompts.sha1,
        "parent_sha256": parent,
        "stream_sha256": sha256_file(stream),
        "code_version": f"{__version__}+{code}",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": chosen.runtime.device,
        "dtype": chosen.runtime.dtype,
        "tail_steps": [chosen.training.tail_start, chosen.training.steps],
        "n_updates": trainer.n_updates,
        "certificate": trainer.certificate(),
    }
    write_jsonl(out_dir / "training.jsonl", trainer.rows)
    write_jsonl(out_dir / f"{development.stem}_curve.jsonl", trainer.curve)
    write_json(out_dir / "train_meta.json", meta)
    save_policy(model, tokenizer, out_dir / "model")
    remove_leftovers(out_dir)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    run(main)
