"""Builds panels, pools and the manifest of panels; checks gold answers, and panels against a frozen manifest."""

from pathlib import Path
from typing import Annotated

import typer

from dosematch.cli import run
from dosematch.grading import check_golds
from dosematch.questions.manifest import check_frozen
from dosematch.questions.panels import build_questions, write_questions
from dosematch.questions.settings import parse_settings


def main(
    settings: Annotated[str, typer.Option(help="question settings as JSON")],
    out_dir: Annotated[Path, typer.Option(help="folder that receives panels/ and pools/")],
    frozen: Annotated[Path | None, typer.Option(help="frozen manifest that the panels must equal")] = None,
) -> None:
    """Build the question sets of a scale; a gold answer that fails against itself stops it before any training."""
    prepared = build_questions(parse_settings(settings))
    if frozen is not None:
        check_frozen(prepared.manifest(), frozen)
    for questions in (*prepared.panels.values(), *prepared.pools.values()):
        check_golds(questions)
    write_questions(prepared, out_dir)


if __name__ == "__main__":
    run(main)
