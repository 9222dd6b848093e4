"""Questions from JSON-lines files (plain or gzip) and Parquet files."""

import gzip
import zlib
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from dosematch.errors import UserError
from dosematch.questions.question import Question
from dosematch.records import read_parquet


class QuestionRow(BaseModel):
    """One row of a file; the text is called `question` in data sets, `text` in panels; other fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(min_length=1)
    text: str = Field(min_length=1, validation_alias=AliasChoices("question", "text"))
    answer: str = Field(min_length=1)
    source: str
    level: int | None = None


def read_questions(path: Path | str) -> list[Question]:
    """Read a `.jsonl`, `.jsonl.gz` or `.parquet` file in file order.

    Raises `UserError` naming the file, and the line (or row) and key where there is one, when the file is missing,
    truncated or of another kind, or when a row lacks a field or holds a wrong value.
    """
    path = Path(path)
    if path.name.endswith(".parquet"):
        rows = enumerate(read_parquet(path), 1)
        return [_question(QuestionRow.model_validate, row, f"{path}: row {number}") for number, row in rows]
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        lines = enumerate(_read_bytes(path).removesuffix(b"\n").split(b"\n"), 1)
        return [_question(QuestionRow.model_validate_json, line, f"{path}: line {number}") for number, line in lines]
    raise UserError(f"{path}: question files end in .jsonl, .jsonl.gz or .parquet")


def _read_bytes(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as stream:
            return stream.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


def _question(parse: Any, row: Any, place: str) -> Question:
    try:
        return Question(**parse(row).model_dump())
    except ValidationError as error:
        raise UserError(f"{place}: {first_problem(error)}") from None


def first_problem(error: ValidationError) -> str:
    """The first complaint of a validation as `key: message`."""
    problem = error.errors()[0]
    key, message = ".".join(str(part) for part in problem["loc"]), problem["msg"].removeprefix("Value error, ")
    return f"{key}: {message}" if key else message
