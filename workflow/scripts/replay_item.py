"""Grades one stored answer again and shows the stored and the current verdict side by side."""

from pathlib import Path
from typing import Annotated

import typer

from dosematch.cli import run
from dosematch.errors import UserError
from dosematch.evaluation_record import in_panel_order
from dosematch.grading import GRADER_VERSION, Grader
from dosematch.questions.files import read_questions
from dosematch.records import read_parquet


def main(
    arm_dir: Annotated[Path, typer.Option(help="folder of one arm and seed")],
    panels: Annotated[Path, typer.Option(help="folder of panels")],
    item: Annotated[str, typer.Option(help="PANEL:INDEX, for instance conf500:17")],
) -> None:
    """Print question, completion, gold answer and both verdicts; fail when they differ."""
    panel, _, index = item.partition(":")
    if not index.isdecimal():
        raise UserError(f"--item {item}: expected PANEL:INDEX, for instance conf500:17")
    questions = read_questions(panels / f"{panel}.jsonl")
    if int(index) >= len(questions):
        raise UserError(f"--item {item}: {panel} has {len(questions)} questions")
    question = questions[int(index)]
    files = [arm_dir / folder / f"{panel}.parquet" for folder in ("completions", "grades")]
    completion, stored = (in_panel_order(questions, read_parquet(path), path)[int(index)] for path in files)
    with Grader() as grader:
        current = grader.grade(completion["text"], question.answer)
    typer.echo(f"question  {question.text}\nanswer    {completion['text']!r}\ngold      {question.answer}")
    typer.echo(f"stored    {stored['outcome']}, extracted {stored['extracted']!r} ({stored['grader']})")
    typer.echo(f"current   {current.outcome}, extracted {current.extracted!r} ({GRADER_VERSION})")
    if current.outcome != stored["outcome"]:
        raise UserError(f"{arm_dir}/grades/{panel}.parquet: item {index}: the current grader decides otherwise")


if __name__ == "__main__":
    run(main)
