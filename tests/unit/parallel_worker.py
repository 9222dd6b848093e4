"""What every process of test_parallel.py does under torchrun: `-m tests.unit.parallel_worker OUT MODE`."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from dosematch import optimizer, parallel
from dosematch.errors import UserError
from dosematch.grading import Grader
from dosematch.questions.question import Question
from dosematch.resume import ResumeFolder
from dosematch.training import Trainer

from ..tiny import DIGITS, FORKING, ISOLATED, SHARED, byte_tokenizer, guesser, stream, train_settings

EPISODES = {"single_turn": {}, "shared": SHARED, "isolated": ISOLATED, "forking": FORKING}
PANEL = [Question(id=f"dev/{i}", text=f"dev {i}", answer=digit, source="test") for i, digit in enumerate(DIGITS)]


def trainer(grader: Grader, switches: dict) -> Trainer:
    """A trainer of one kind of episode that updates after four steps."""
    return Trainer(train_settings(switches | {"accumulation": 5}), 7, guesser(), byte_tokenizer(), grader, PANEL)


def gradients(grader: Grader, switches: dict) -> tuple[list[dict], dict[str, torch.Tensor]]:
    """The rows of four steps, and their accumulated gradient by name."""
    run = trainer(grader, switches)
    rows = [run.advance(item) for item in stream()[:4]]
    return rows, dict(zip(run.optimizer.names, run.optimizer.grads, strict=True))


def whole(grader: Grader, folder: Path) -> Trainer:
    """A finished training of ten steps, or what is left of it to do."""
    run = trainer(grader, ISOLATED)
    run.train(stream(), ResumeFolder(folder))
    return run


def write(out: Path, name: str, rows: list[dict], tensors: dict[str, torch.Tensor]) -> None:
    """Process 0's rows and tensors; the others' tensors must be the same bytes."""
    if parallel.rank() == 0:
        (out / f"{name}.json").write_text(json.dumps(rows))
    save_file({k: v.contiguous() for k, v in tensors.items()}, out / f"{name}.{parallel.rank()}.safetensors")


def main(out: Path, mode: str) -> None:
    """Write what `mode` asks for."""
    with Grader() as grader:
        if mode == "fail":
            run = trainer(grader, {})
            if parallel.rank() == 1:
                raise UserError("step 1: process 1 had enough")
            run.train(stream(), ResumeFolder(out / "resume"))
        if mode == "drift":
            run = trainer(grader, {})
            if parallel.rank() == 1:
                run.optimizer.masters[0][0] += 1e-3
            run.train(stream(), ResumeFolder(out / "resume"))
        for name, switches in EPISODES.items():
            write(out, name, *gradients(grader, switches))
        if mode == "gradients":
            return
        for _ in ("first", "again from the state of step 8"):
            run = whole(grader, out / "resume")
        write(out, "whole", run.rows, dict(run.model.named_parameters()))
        optimizer.add_up = lambda _: None  # the mutation: nothing is summed
        write(out, "mutant", *gradients(grader, {}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    parallel.join("cpu", parallel.started())
    try:
        main(Path(sys.argv[1]), sys.argv[2])
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
        sys.exit(1)
    parallel.leave()
