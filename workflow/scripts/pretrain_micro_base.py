"""Trains the micro base model from its recipe and writes it with its provenance."""

import logging
from pathlib import Path
from typing import Annotated

import torch
import typer

from dosematch.cli import run
from dosematch.config import check
from dosematch.policy import save_policy
from dosematch.pretraining import Recipe, pretrain, recipe_digest
from dosematch.prompts import load_prompts
from dosematch.records import read_yaml, sha256_file, write_json
from dosematch.runtime import quiet_transformers

log = logging.getLogger(__name__)
CURVE_WINDOW = 50  # steps per point of the recorded loss curve
FIRST_LOSSES = 3


def main(
    recipe: Annotated[Path, typer.Option()],
    out_dir: Annotated[Path, typer.Option()],
) -> None:
    """Train for the recipe's steps; about ten minutes on two cores."""
    chosen = check(Recipe, read_yaml(recipe), str(recipe))
    torch.set_num_threads(chosen.threads)
    quiet_transformers()
    losses: list[float] = []

    def record(step: int, loss: float) -> None:
        losses.append(loss)
        if step % CURVE_WINDOW == 0:
            log.info("step %d loss %.4f", step, sum(losses[-CURVE_WINDOW:]) / CURVE_WINDOW)

    model, tokenizer = pretrain(chosen, load_prompts(chosen.prompts), record)
    save_policy(model, tokenizer, out_dir)
    means = [sum(losses[i : i + CURVE_WINDOW]) / CURVE_WINDOW for i in range(0, len(losses), CURVE_WINDOW)]
    provenance = {
        "recipe": recipe.as_posix(),
        "recipe_digest": recipe_digest(recipe, chosen),
        "weights_sha256": sha256_file(out_dir / "model.safetensors"),
        "seed": chosen.seed,
        "threads": chosen.threads,
        "torch": torch.__version__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "first_losses": losses[:FIRST_LOSSES],
        "loss_curve": {"every": CURVE_WINDOW, "loss": [round(loss, 4) for loss in means]},
    }
    write_json(out_dir / "provenance.json", provenance)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    run(main)
