"""Write every table of a study as CSV and Markdown."""

from pathlib import Path
from typing import Annotated

from typer import Option

from dosematch.cli import run
from dosematch.records import read_json, write_text
from dosematch.reporting.tables import all_tables


def main(
    summary: Annotated[Path, Option(help="summary.json of compare_arms.py")],
    out_dir: Annotated[Path, Option(help="folder for table{0,1,2,3a,3b,3c}.{csv,md}")],
) -> None:
    """Write each table as CSV for machines and as Markdown for people."""
    for table in all_tables(read_json(summary)):
        write_text(out_dir / f"{table.name}.csv", table.csv())
        write_text(out_dir / f"{table.name}.md", table.markdown())


if __name__ == "__main__":
    run(main)
