"""Writes the JSON schemas of the configuration files from their models."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from dosematch.arm import Arm
from dosematch.cli import run
from dosematch.pretraining import Recipe
from dosematch.prompts import Prompts
from dosematch.records import write_json
from dosematch.settings import Config, Scale

SCHEMAS: dict[str, type[BaseModel]] = {
    "arm": Arm,
    "config": Config,
    "prompts": Prompts,
    "recipe": Recipe,
    "scale": Scale,
}


def main(out_dir: Annotated[Path, typer.Option()] = Path("config/schemas")) -> None:
    """One file per model."""
    for name, model in SCHEMAS.items():
        write_json(out_dir / f"{name}.json", model.model_json_schema())


if __name__ == "__main__":
    run(main)
