"""A mid-training small enough for unit tests: a random model, random text, a few items per role."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from dosematch.midtrain.config import T5Config
from dosematch.midtrain.loop import MidTrainer
from dosematch.midtrain.material import Material
from dosematch.midtrain.settings import T5TrainSettings
from dosematch.midtrain.study import T5Study
from dosematch.midtrain.thoughts import Item

from ..tiny import random_model

ROOT = Path(__file__).parents[2]
OPEN, CLOSE = 255, 256
HORIZON, LENGTH = 4, 48


def material(n: int = 300) -> Material:
    """Sequences of random bytes with repeated runs, one item each; a fifth is for calibration."""
    generator = torch.Generator().manual_seed(7)
    sequences = torch.randint(1, 9, (n, LENGTH), generator=generator)
    items = []
    for i in range(n):
        place = int(torch.randint(12, LENGTH - HORIZON, (1,), generator=generator))
        row = sequences[i].tolist()
        context = (*row[max(0, place - 16) : place], OPEN)
        items.append(
            Item(f"i{i}", f"d{i}", ("ledger", "filler")[i % 2], i, context, tuple(row[place : place + HORIZON]))
        )
    return Material(sequences, items[: n * 4 // 5], items[n * 4 // 5 :])


def settings(arm: str, steps: int = 2, **changes: dict[str, Any]) -> T5TrainSettings:
    """The arm at the smoke scale, with short thoughts; `changes` lie over sections of the arm or of the scale."""
    study = T5Study(scale="smoke", seeds=[1], arms=[arm])
    values = T5TrainSettings.model_validate_json(T5Config(study, root=ROOT).train_settings(arm)).model_dump()
    values["task"] |= {"l_max": 8, "horizon": HORIZON, "context": 17}
    values["training"] |= {"steps": steps}
    for section, keys in changes.items():
        where = values if section in values else values["arm"]
        where[section] |= keys
    return T5TrainSettings.model_validate(values)


def trainer(chosen: T5TrainSettings, seed: int = 1, model: PreTrainedModel | None = None) -> MidTrainer:
    """A trainer on `material` of a fresh random model."""
    return MidTrainer(chosen, seed, model or random_model(initializer_range=0.1), CLOSE, material())
