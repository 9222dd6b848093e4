"""Rebuilds every count of a study from its supplement alone and compares it with the recorded one."""

from pathlib import Path
from typing import Annotated

from typer import Option

from dosematch.cli import run
from dosematch.records import write_json
from dosematch.reporting.supplement import regrade


def main(
    supplement: Annotated[Path, Option(help="supplement.zip of make_supplement.py")],
    out: Annotated[Path | None, Option(help="JSON with what was rebuilt")] = None,
) -> None:
    """Exit with status 1 and one line that names the first difference, if there is one."""
    found = regrade(supplement)
    records = f"{found['answers']} answers of {found['evaluations']} evaluations"
    print(f"{records}, the summary and {found['tables']} tables agree")
    if out:
        write_json(out, found)


if __name__ == "__main__":
    run(main)
