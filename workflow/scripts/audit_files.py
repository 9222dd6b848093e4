"""Audits any training question files against any panel files, and prints the overlaps."""

from pathlib import Path
from typing import Annotated

import typer

from dosematch.audit import audit_questions
from dosematch.cli import run
from dosematch.errors import UserError
from dosematch.questions.files import read_questions
from dosematch.records import write_json

ROW = "{:<20} {:>7} {:>7} {:>11} {:>13}  {}"


def main(
    questions: Annotated[list[Path], typer.Option(help="training questions; may be repeated")],
    panel: Annotated[list[str], typer.Option(help="NAME=FILE, or FILE; may be repeated")],
    out: Annotated[Path, typer.Option()],
) -> None:
    """Print a table of overlaps, and write it with every match as JSON."""
    files: dict[str, Path] = {}
    for text in panel:
        name, _, path = text.rpartition("=")
        name = name or Path(path).name.split(".")[0]
        if name in files:
            raise UserError(f"--panel {text}: a panel {name} is given twice")
        files[name] = Path(path)
    training = [question for path in questions for question in read_questions(path)]
    result = audit_questions(training, {name: read_questions(path) for name, path in files.items()})
    write_json(out, result)
    print(f"{result['n_training']} training questions, distinct: {result['n_training_distinct']}")
    print(ROW.format("panel", "n", "exact", "normalised", "alphanumeric", "matches"))
    for name, entry in result["panels"].items():
        found = [f"{match['sha1_12']}/{match['identity']}" for match in entry["matches"]]
        print(ROW.format(name, entry["n"], *entry["overlap"].values(), " ".join(found) or "-"))


if __name__ == "__main__":
    run(main)
