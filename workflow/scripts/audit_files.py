"""Audits any training question files against any panel files, and prints the overlaps."""

from pathlib import Path
from typing import Annotated

import typer

from dosematch.audit import audit_near, audit_questions, repeated
from dosematch.cli import run
from dosematch.errors import UserError
from dosematch.near_duplicates import DETECTORS, PLANTED
from dosematch.questions.files import read_questions
from dosematch.records import write_json

NEAR_ROW = "{:<20} {:>7}" + " {:>11}" * len(DETECTORS)
PLANTED_ROW = "{:<20} {:<11}" + " {:>12}" * len(PLANTED)
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
    panels = {name: read_questions(path) for name, path in files.items()}
    result, near = audit_questions(training, panels), audit_near(training, panels)
    write_json(out, {**result, "near_duplicates": near})
    print(f"{result['n_training']} training questions, distinct: {result['n_training_distinct']}")
    print(ROW.format("panel", "n", "exact", "normalised", "alphanumeric", "matches"))
    for name, entry in result["panels"].items():
        found = [f"{match['sha1_12']}/{match['identity']}" for match in entry["matches"]]
        print(ROW.format(name, entry["n"], *entry["overlap"].values(), " ".join(found) or "-"))
    print("\n" + NEAR_ROW.format("near-duplicates", "n", *DETECTORS))
    for name, entry in near.items():
        print(NEAR_ROW.format(name, entry["n"], *entry["overlap"].values()))
    print("\nplanted copies: recall/precision")
    print(PLANTED_ROW.format("panel", "detector", *PLANTED))
    for name, entry in near.items():
        for detector, kinds in entry["planted"].items():
            cells = [f"{_ratio(score['recall'])}/{_ratio(score['precision'])}" for score in kinds.values()]
            print(PLANTED_ROW.format(name, detector, *cells))
    for name, groups in {"training": repeated(training), **{n: repeated(p) for n, p in panels.items()}}.items():
        conflicting = [" = ".join(group["ids"]) for group in groups if group["conflicting"]]
        print(f"{name}: {len(groups)} repeated questions, with different answers: {', '.join(conflicting) or 'none'}")


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    run(main)
