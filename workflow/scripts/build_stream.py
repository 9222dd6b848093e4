"""Builds one seed's training stream, as in the study or without panel questions."""

from pathlib import Path
from typing import Annotated

import typer

from dosematch.cli import run
from dosematch.identity import sha1_12
from dosematch.questions.files import read_questions
from dosematch.questions.manifest import identities, read_manifest
from dosematch.records import write_json
from dosematch.streams import build_stream


def main(
    seed: Annotated[int, typer.Option()],
    steps: Annotated[int, typer.Option(min=1)],
    clean: Annotated[bool, typer.Option("--clean/--study", help="drop panel questions, or keep them")],
    stencil: Annotated[Path, typer.Option()],
    pool: Annotated[Path, typer.Option()],
    parent: Annotated[Path, typer.Option()],
    manifest: Annotated[Path, typer.Option(help="manifest of panels")],
    out: Annotated[Path, typer.Option()],
) -> None:
    """Write the stream of one seed."""
    stream = build_stream(
        seed=seed,
        n_steps=steps,
        stencil=read_questions(stencil),
        pool=read_questions(pool),
        parent=frozenset(sha1_12(question.text) for question in read_questions(parent)),
        panels=identities(read_manifest(manifest)) if clean else None,
    )
    write_json(out, stream.model_dump())


if __name__ == "__main__":
    run(main)
