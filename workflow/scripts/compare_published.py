"""Put our contrasts beside the published ones: sign and size of effects, never counts or items."""

from pathlib import Path
from typing import Annotated

from typer import Option

from dosematch.cli import run
from dosematch.published.cells import read_published
from dosematch.published.compare import (
    check_directions,
    compare_contrasts,
    contrast_table,
    direction_table,
    read_directions,
)
from dosematch.records import read_json, write_text


def main(
    summary: Annotated[Path, Option(help="summary.json of compare_arms.py")],
    published: Annotated[Path, Option(help="folder of the published tables")],
    scale: Annotated[str, Option(help="scale of our study, by which it is labelled")],
    out_dir: Annotated[Path, Option(help="folder for compare_published.{csv,md}")],
) -> None:
    """Write compare_published.csv (contrasts) and compare_published.md (contrasts and directional claims)."""
    ours, theirs = read_json(summary), read_published(published)
    records = compare_contrasts(ours, theirs, scale)
    contrasts = contrast_table(records, scale, theirs.need("protocol", "model", "").text)
    directions = direction_table(check_directions(ours, read_directions(published / "directions.csv")), scale)
    write_text(out_dir / f"{contrasts.name}.csv", contrasts.csv())
    write_text(out_dir / f"{contrasts.name}.md", f"{contrasts.markdown()}\n{directions.markdown()}")


if __name__ == "__main__":
    run(main)
