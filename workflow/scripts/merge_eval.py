"""Merges the graded panels of one checkpoint into its evaluation record."""

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ValidationError

from dosematch.cli import run
from dosematch.errors import UserError
from dosematch.evaluation_record import evaluation_record, in_panel_order, panel_order, verify_slow_record
from dosematch.questions.files import first_problem, read_questions
from dosematch.records import read_parquet, sha256_file, write_json


class MergeSettings(BaseModel):
    """Engine settings of the evaluation, the suites of panels, and the panel that was verified."""

    eval: dict[str, Any]
    suites: dict[str, list[str]]
    verify_slow_panel: str


def main(
    arm: Annotated[str, typer.Option()],
    seed: Annotated[int, typer.Option()],
    run: Annotated[int, typer.Option(help="index of a repeated realisation")],
    checkpoint: Annotated[Path, typer.Option(help="model.safetensors of the evaluated checkpoint")],
    settings: Annotated[str, typer.Option(help="eval and suites as JSON")],
    panels: Annotated[Path, typer.Option(help="folder of panels")],
    completions: Annotated[Path, typer.Option(help="folder of completions")],
    grades: Annotated[Path, typer.Option(help="folder of grades")],
    verify_slow: Annotated[Path, typer.Option(help="Verify -> Slow continuation of the panel that was verified")],
    verify_slow_grades: Annotated[Path, typer.Option(help="grades of its slow answers")],
    out: Annotated[Path, typer.Option()],
) -> None:
    """Write the evaluation record."""
    try:
        merge = MergeSettings.model_validate_json(settings)
    except ValidationError as error:
        raise UserError(f"--settings: {first_problem(error)}") from None
    rows = {}
    for name in panel_order(merge.suites, [path.stem for path in grades.glob("*.parquet")]):
        questions = read_questions(panels / f"{name}.jsonl")
        files = [folder / f"{name}.parquet" for folder in (completions, grades)]
        rows[name] = [in_panel_order(questions, read_parquet(path), path) for path in files]
    name = merge.verify_slow_panel
    again = [
        in_panel_order(read_questions(panels / f"{name}.jsonl"), read_parquet(path), path)
        for path in (verify_slow, verify_slow_grades)
    ]
    identity = {"arm": arm, "seed": seed, "run": run, "checkpoint_sha256": sha256_file(checkpoint)}
    record = evaluation_record(identity, merge.eval, merge.suites, rows)
    write_json(out, record | {f"{name}_verify_slow": verify_slow_record(rows[name][1], *again)})


if __name__ == "__main__":
    run(main)
