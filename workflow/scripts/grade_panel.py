"""Grades the completions of one or several panels; regrading never regenerates."""

from pathlib import Path
from typing import Annotated

import typer

from dosematch.cli import run
from dosematch.errors import UserError
from dosematch.evaluation_record import GRADES, grade_rows, in_panel_order
from dosematch.grading import Grader, check_golds
from dosematch.questions.files import read_questions
from dosematch.records import read_parquet, write_parquet


def main(
    panel: Annotated[list[Path], typer.Option(help="panel file; repeat the option for several")],
    completions: Annotated[list[Path], typer.Option(help="completions of each panel, in the same order")],
    out: Annotated[list[Path], typer.Option(help="grades file of each panel, in the same order")],
    verify_slow: Annotated[Path, typer.Option(help="Verify -> Slow continuation")],
    verify_slow_panel: Annotated[str, typer.Option(help="name of its panel")],
    verify_slow_out: Annotated[Path, typer.Option(help="grades file of the slow answers")],
) -> None:
    """Write one grades file per panel, after every panel's gold answers have been checked.

    A `verify_slow` file is graded too, against the panel that its rows belong to: the slow answers of triggered items.
    """
    if not len(panel) == len(completions) == len(out):
        raise UserError(f"{len(panel)} --panel, {len(completions)} --completions and {len(out)} --out do not pair up")
    questions = [read_questions(path) for path in panel]
    for panel_questions in questions:
        check_golds(panel_questions)
    rows = [in_panel_order(*pair) for pair in zip(questions, map(read_parquet, completions), completions, strict=True)]
    with Grader() as grader:
        for panel_questions, panel_rows, path in zip(questions, rows, out, strict=True):
            pairs = [(row["text"], question.answer) for row, question in zip(panel_rows, panel_questions, strict=True)]
            write_parquet(path, grade_rows(panel_questions, grader.grade_many(pairs)), GRADES)
        asked = questions[[path.stem for path in panel].index(verify_slow_panel)]
        answers = in_panel_order(asked, read_parquet(verify_slow), verify_slow)
        pairs = [(row["slow_text"] or "", question.answer) for row, question in zip(answers, asked, strict=True)]
        write_parquet(verify_slow_out, grade_rows(asked, grader.grade_many(pairs)), GRADES)


if __name__ == "__main__":
    run(main)
