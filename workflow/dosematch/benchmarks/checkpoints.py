"""A training that knows how long its resume states and its development curve took."""

import time
from pathlib import Path
from typing import Any

import torch

from dosematch.benchmarks.timing import seconds
from dosematch.benchmarks.workload import BASE, questions, stream
from dosematch.grading import Grader
from dosematch.policy import load_policy, load_tokenizer
from dosematch.resume import ResumeFolder
from dosematch.settings import TrainSettings
from dosematch.training import Trainer

PANEL = 500  # questions of the development panel, as at micro scale


class TimedFolder(ResumeFolder):
    """A resume folder that adds up how long its saves took."""

    spent = 0.0

    def save(self, step: int, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Save, timed."""
        save = super().save
        self.spent += seconds(lambda: save(step, tensors, values))


class TimedTrainer(Trainer):
    """A trainer that adds up how long it measured the development panel."""

    measured = 0.0

    def _measure(self, step: int) -> None:
        measure = super()._measure
        self.measured += seconds(lambda: measure(step))


def timed_training(settings: TrainSettings, folder: Path) -> dict[str, float]:
    """One whole training from the base model: seconds in all, in saves and on the development panel, and shares."""
    model, tokenizer = load_policy(BASE), load_tokenizer(BASE)
    resume = TimedFolder(folder)
    with Grader() as grader:
        trainer = TimedTrainer(settings, 0, model, tokenizer, grader, questions(PANEL))
        start = time.perf_counter()
        trainer.train(stream(questions(settings.training.steps, seed=8)), resume)
    total = time.perf_counter() - start
    return {
        "save_s": resume.spent,
        "total_s": total,
        "panel_s": trainer.measured,
        "share": resume.spent / total,
        "share_of_steps": resume.spent / (total - trainer.measured),
        "state_bytes": max(path.stat().st_size for path in folder.glob("*.safetensors")),
    }
