"""Writes the frozen panel manifest of a scale: run it once when the panels of a scale are decided."""

from pathlib import Path
from typing import Annotated

import typer

from dosematch.cli import run
from dosematch.config import StudyConfig
from dosematch.errors import UserError
from dosematch.questions.manifest import write_manifest
from dosematch.questions.panels import build_questions
from dosematch.records import read_yaml


def main(scale: Annotated[str, typer.Option()] = "micro") -> None:
    """Build the question sets of a scale and freeze the identities of its panels."""
    chosen = StudyConfig({**read_yaml(Path("config/config.yaml")), "scale": scale}).scale
    if chosen.frozen_panels is None:
        raise UserError(f"config/scales/{scale}.yaml: frozen_panels: names no file")
    write_manifest(Path(chosen.frozen_panels), build_questions(chosen.questions).manifest())


if __name__ == "__main__":
    run(main)
