"""Grades (gold, completion) pairs of your own: a row in, a row out, whatever the row holds."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ValidationError

from dosematch.cli import run
from dosematch.errors import UserError
from dosematch.grading import GRADER_VERSION, Grader
from dosematch.records import write_text


class Pair(BaseModel):
    """One input row; other keys are ignored, a number is taken as it is written."""

    id: str | int | None = None
    gold: str | int | float
    model_output: str


def main(
    pairs: Annotated[Path, typer.Option(help="JSONL of {id, gold, model_output}")],
    out: Annotated[Path, typer.Option(help="JSONL of {id, outcome, extracted, strict, flexible}, in the same order")],
) -> None:
    """Write one row per input line; a line that cannot be read becomes a row with outcome `error` and a `message`."""
    try:
        lines = pairs.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{pairs}: {error.strerror}") from None
    if not lines[-1].strip():
        lines.pop()  # what follows the last line feed is no row
    with Grader() as grader:
        rows = [graded(grader, line) for line in lines]
    # ASCII, since model text can hold halves of characters that no encoding takes
    write_text(out, "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
    typer.echo(f"{len(rows)} rows, {sum(row['flexible'] for row in rows)} correct ({GRADER_VERSION})")


def graded(grader: Grader, line: bytes) -> dict[str, Any]:
    """The output row of one input line."""
    row: dict[str, Any] = {"id": None, "outcome": "error", "extracted": None, "strict": False, "flexible": False}
    try:
        values = json.loads(line)
        if isinstance(values, dict) and isinstance(values.get("id"), str | int):
            row["id"] = values["id"]
        pair = Pair.model_validate(values)
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON, numbers or nesting beyond Python's limits
        detail = error.errors()[0] if isinstance(error, ValidationError) else None
        message = f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" if detail else str(error)
        return row | {"message": message[:200]}
    grade = grader.grade(pair.model_output, str(pair.gold))
    return row | {
        "outcome": grade.outcome,
        "extracted": grade.extracted,
        "strict": grade.strict and grade.has_box,
        "flexible": grade.correct,
    }


if __name__ == "__main__":
    run(main)
