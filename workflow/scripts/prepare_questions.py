"""Builds panels, pools and the manifest of panels; checks them against a frozen manifest."""

from pathlib import Path
from typing import Annotated

import typer

from dosematch.cli import run
from dosematch.errors import UserError
from dosematch.questions.manifest import check_frozen, write_manifest
from dosematch.questions.panels import build_questions, write_questions
from dosematch.questions.settings import parse_settings


def main(
    settings: Annotated[str, typer.Option(help="question settings as JSON")],
    out_dir: Annotated[Path, typer.Option(help="folder that receives panels/ and pools/")],
    frozen: Annotated[Path | None, typer.Option(help="frozen manifest that the panels must equal")] = None,
    freeze: Annotated[bool, typer.Option("--freeze", help="write the frozen manifest instead of checking it")] = False,
) -> None:
    """Build the question sets of a scale."""
    prepared = build_questions(parse_settings(settings))
    if freeze:
        if frozen is None:
            raise UserError("--freeze needs --frozen, the path of the manifest to write")
        write_manifest(frozen, prepared.manifest())
    elif frozen is not None:
        check_frozen(prepared.manifest(), frozen)
    write_questions(prepared, out_dir)


if __name__ == "__main__":
    run(main)
