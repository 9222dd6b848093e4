"""Trains the base checkpoint of the mid-training study from its recipe."""

import logging
from pathlib import Path
from typing import Annotated

import torch
import transformers
import typer

from dosematch import __version__
from dosematch.cli import run
from dosematch.config import check
from dosematch.midtrain.base import BaseRecipe, pretrain
from dosematch.policy import save_policy
from dosematch.records import read_yaml, sha256_file, write_json

log = logging.getLogger(__name__)


def main(
    recipe: Annotated[Path, typer.Option()],
    out_dir: Annotated[Path, typer.Option()],
    steps: Annotated[int, typer.Option(help="stop early, 0: as the recipe says")] = 0,
) -> None:
    """Train and write model, tokenizer and provenance."""
    chosen = check(BaseRecipe, read_yaml(recipe), str(recipe))
    torch.set_num_threads(chosen.threads)
    losses: list[float] = []

    def record(step: int, loss: float) -> None:
        losses.append(round(loss, 4))
        if step % 50 == 0:
            log.info("step %d loss %.4f", step, loss)

    model, tokenizer = pretrain(chosen, record, steps or None)
    provenance = {
        "recipe": chosen.model_dump(mode="json"),
        "recipe_sha256": sha256_file(recipe),
        "code_version": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "loss": losses[::10],
    }
    write_json(out_dir / "provenance.json", provenance)
    save_policy(model, tokenizer, out_dir)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    run(main)
