"""Downloads a model folder from the Hugging Face hub: configuration, tokenizer and safetensors weights."""

import os
from pathlib import Path
from typing import Annotated

os.environ["HF_HUB_OFFLINE"] = "0"  # the one script that may ask the network; read when the hub is imported

import typer
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from dosematch.cli import run
from dosematch.errors import UserError

FILES = ["*.json", "*.safetensors", "*.txt"]  # never pickled weights, never code


def main(
    repository: Annotated[str, typer.Option()],
    revision: Annotated[str, typer.Option(help="commit, branch or tag")],
    out_dir: Annotated[Path, typer.Option()],
) -> None:
    """Download what is not there yet; an interrupted download goes on where it stopped."""
    try:
        snapshot_download(repository, revision=revision, local_dir=out_dir, allow_patterns=FILES)
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"{out_dir}: {repository}@{revision} not downloaded: {first}") from None


if __name__ == "__main__":
    run(main)
