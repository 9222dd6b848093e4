"""Audits the panels against the parent slice and the training streams."""

from pathlib import Path
from typing import Annotated

import typer

from dosematch.audit import audit_ancestry
from dosematch.cli import run
from dosematch.questions.files import read_questions
from dosematch.questions.manifest import read_manifest
from dosematch.records import write_json
from dosematch.streams import read_stream


def main(
    streams: Annotated[list[Path], typer.Argument(help="one stream per training seed")],
    manifest: Annotated[Path, typer.Option(help="manifest of panels")],
    parent: Annotated[Path, typer.Option(help="questions of the parent slice")],
    panels: Annotated[list[Path], typer.Option(help="questions of a panel, named as the panel; repeat the option")],
    out: Annotated[Path, typer.Option()],
) -> None:
    """Write the ancestry audit."""
    texts = {path.stem: read_questions(path) for path in panels}
    trained_on = [read_stream(path) for path in streams]
    audit = audit_ancestry(read_manifest(manifest), read_questions(parent), trained_on, texts)
    write_json(out, audit)


if __name__ == "__main__":
    run(main)
