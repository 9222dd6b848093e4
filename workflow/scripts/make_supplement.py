"""Packs the records of a study into one archive from which every count can be rebuilt."""

import json
from pathlib import Path
from typing import Annotated

from typer import Option

from dosematch.cli import run
from dosematch.questions.files import read_questions
from dosematch.reporting.supplement import collect_golds, member_name, write_supplement
from dosematch.statistics.settings import parse_settings


def main(
    evals: Annotated[list[Path], Option(help="eval_6panel_bs50.json of one arm and seed; repeat the option")],
    panels: Annotated[list[Path], Option(help="panels/PANEL.jsonl, for the gold answers; repeat the option")],
    summary: Annotated[Path, Option(help="summary.json of compare_arms.py")],
    ancestry: Annotated[Path, Option(help="the audit that the summary was made with")],
    settings: Annotated[str, Option(help="study settings as JSON text, the same as for compare_arms.py")],
    out: Annotated[Path, Option(help="supplement.zip to write")],
    training: Annotated[list[Path] | None, Option(help="training.jsonl of one arm and seed; repeat the option")] = None,
    tables: Annotated[list[Path] | None, Option(help="tables/TABLE.csv; repeat the option")] = None,
    file: Annotated[list[Path] | None, Option(help="further file to pack; repeat the option")] = None,
    root: Annotated[Path, Option(help="folder that the names in the archive are relative to")] = Path("."),
    max_bytes: Annotated[int, Option(help="largest size of the archive")] = 2_000_000,
) -> None:
    """Write the archive, or nothing when it would be too large."""
    parse_settings(settings)
    runs, made = training or [], tables or []
    index = {
        "settings": json.loads(settings),
        "golds": collect_golds({path.stem: read_questions(path) for path in panels}),
        "summary": member_name(summary, root),
        "ancestry": member_name(ancestry, root),
        "evals": [member_name(path, root) for path in evals],
        "training": [member_name(path, root) for path in runs],
        "tables": [member_name(path, root) for path in made],
    }
    write_supplement(out, root, [*evals, *runs, *made, summary, ancestry, *(file or [])], index, max_bytes)


if __name__ == "__main__":
    run(main)
