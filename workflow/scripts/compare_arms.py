"""Pool all evaluations of a study into summary.json: counts, paired contrasts, training diagnostics, exposure."""

from pathlib import Path
from typing import Annotated

from typer import Option

from dosematch.cli import run
from dosematch.records import read_json, read_jsonl, write_json
from dosematch.statistics.settings import parse_settings
from dosematch.statistics.summary import build_summary


def main(
    evals: Annotated[list[Path], Option(help="eval_6panel_bs50.json of one arm and seed; repeat the option")],
    ancestry: Annotated[Path, Option(help="audit/ancestry.json")],
    settings: Annotated[str, Option(help="study settings as JSON text")],
    out: Annotated[Path, Option(help="summary.json to write")],
    training: Annotated[list[Path] | None, Option(help="training.jsonl of one arm and seed; repeat the option")] = None,
) -> None:
    """Pool all evaluations of a study into one summary."""
    study = parse_settings(settings)
    rows = [row for path in training or [] for row in read_jsonl(path)]
    write_json(out, build_summary([read_json(path) for path in evals], read_json(ancestry), rows, study))


if __name__ == "__main__":
    run(main)
