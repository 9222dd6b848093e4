"""Readers of lm-eval samples, lighteval details, inspect_ai logs, and plain CSV or JSON lines.

The format is told by a file's content; names only give lm-eval's and lighteval's files their task.
"""

import csv
import json
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile, ZipFile, ZipInfo

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from dosematch.errors import UserError
from dosematch.interchange.items import PLAIN, Item, Key, Row, choose_items, text_digest
from dosematch.questions.files import first_problem
from dosematch.records import read_json, read_jsonl, read_parquet

SUFFIXES = {".jsonl", ".json", ".eval", ".parquet", ".csv"}
ZSTANDARD = 93  # method number in a zip archive, which zipfile knows from Python 3.14 only
DATED = re.compile(r"(?:samples|details)_(.+)_(?:\d{4}-\d\d-\d\dT[\d:.\-]+|[0-9a-f]{12})")
CSV_SCORES = {"1": 1, "0": 0, "1.0": 1, "0.0": 0, "true": 1, "false": 0}
INSPECT_SCORES = {"C": 1, "I": 0, "N": 0}  # correct, incorrect, no answer; P (partial) is neither
ACCEPTED = "lm-eval samples, lighteval details, an inspect_ai log, or CSV or JSON lines with id and correct"
Model = TypeVar("Model", bound=BaseModel)


class LmEvalRow(BaseModel):
    """A line of `samples_*.jsonl`; its metrics are further keys."""

    model_config = ConfigDict(extra="allow")

    doc_id: int | str
    filter: str = ""
    metrics: list[str] | None = None
    doc_hash: str | None = None
    prompt_hash: str | None = None
    target_hash: str | None = None


class PlainRow(BaseModel):
    """A line of a plain file."""

    id: int | str
    correct: Any
    task: str = ""
    prompt: str | None = None
    gold: str | int | float | None = None


class LightevalDoc(BaseModel):
    """Column `doc` of lighteval's details."""

    id: int | str
    query: str
    choices: list[str] = []
    gold_index: int | list[int] | None = None


class LightevalRow(BaseModel):
    """A row of lighteval's details: `doc` and `metric`."""

    doc: LightevalDoc
    metric: dict[str, Any]


class LightevalOldRow(BaseModel):
    """A row of the details of lighteval before `doc`: it has no id but its position."""

    full_prompt: str
    gold: Any = None
    metrics: dict[str, Any]


class InspectScore(BaseModel):
    """What one scorer gave a sample."""

    value: Any


class InspectSample(BaseModel):
    """A sample of an inspect_ai log."""

    id: int | str
    epoch: int = 1
    input: Any
    target: Any = None
    choices: list[str] | None = None
    scores: dict[str, InspectScore] | None = None
    error: Any = None


class InspectEval(BaseModel):
    """What was evaluated."""

    task: str


class InspectHeader(BaseModel):
    """The head of an inspect_ai log."""

    status: str
    eval: InspectEval


def read_evaluation(
    path: Path, metrics: Sequence[str] = (), filters: Sequence[str] = (), tasks: Sequence[str] = ()
) -> dict[Key, Item]:
    """The items of a file, or of all evaluation files below a folder, by (task, id).

    `metrics`, `filters` and `tasks` choose where there are several. Raises `UserError` naming file, line and id.
    """
    rows = [row for file in evaluation_files(path) for row in read_rows(file)]
    rows = [row for row in rows if not tasks or row.task in tasks]
    if missing := [task for task in tasks if task not in {row.task for row in rows}]:
        raise UserError(f"{path}: has no task {missing[0]}")
    if not rows:
        raise UserError(f"{path}: holds no items")
    return choose_items(rows, metrics, filters)


def evaluation_files(path: Path) -> list[Path]:
    """The file itself, or all files below the folder that may hold items (`results_*.json` hold totals only)."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("[!.]*") if file.suffix in SUFFIXES and file.is_file())
    files = [file for file in found if not (file.name.startswith("results_") or file.name == "logs.json")]
    if not files:
        raise UserError(f"{path}: holds no evaluation file ({', '.join(sorted(SUFFIXES))})")
    return files


def read_rows(path: Path) -> list[Row]:
    """The rows of one file, its format told by its content; raises `UserError` when it is none of those known."""
    try:
        with path.open("rb") as stream:
            first = stream.readline()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if first.startswith(b"PK\x03\x04"):
        return _inspect_archive(path)
    if first.startswith(b"PAR1"):
        return [_lighteval(row, path, number) for number, row in enumerate(read_parquet(path))]
    try:
        head = json.loads(first)
    except (ValueError, RecursionError):
        head = None
    if isinstance(head, dict) and "doc_id" in head:
        return [_lm_eval(row, path, number) for number, row in enumerate(read_jsonl(path), 1)]
    if isinstance(head, dict) and {"id", "correct"} <= head.keys():
        return [_plain(row, f"{path}: line {number}") for number, row in enumerate(read_jsonl(path), 1)]
    if {"id", "correct"} <= set(next(csv.reader([first.decode("utf-8-sig", "replace").strip()]), [])):
        return _csv(path)
    log = read_json(path) if first.startswith(b"{") else None
    if isinstance(log, dict) and "eval" in log and "status" in log:
        return _inspect(log, log.get("samples") or [], path)
    raise UserError(f"{path}: is none of these: {ACCEPTED}")


def _parse(model: type[Model], value: Any, place: str) -> Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise UserError(f"{place}: {first_problem(error)}") from None


def _task(path: Path) -> str:
    dated = DATED.fullmatch(path.stem)
    return dated[1] if dated else path.stem.removeprefix("samples_").removeprefix("details_")


def _lm_eval(value: Any, path: Path, number: int) -> Row:
    row = _parse(LmEvalRow, value, f"{path}: line {number}")
    extra = row.model_extra or {}
    names = [name for name, score in extra.items() if isinstance(score, int | float)]  # files before 0.4.3
    scores = {name: extra.get(name) for name in (names if row.metrics is None else row.metrics)}
    place = f"{path}: line {number}"
    return Row(_task(path), str(row.doc_id), scores, place, row.filter, row.prompt_hash, row.target_hash, row.doc_hash)


def _plain(value: Any, place: str) -> Row:
    row = _parse(PlainRow, value, place)
    gold = None if row.gold is None else str(row.gold)
    prompt = text_digest(row.prompt)
    return Row(row.task, str(row.id), {PLAIN: row.correct}, place, prompt=prompt, gold=text_digest(gold))


def _csv(path: Path) -> list[Row]:
    rows = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            for number, row in enumerate(csv.DictReader(stream, strict=True), 1):
                score = row["correct"]
                score = CSV_SCORES.get((score or "").strip().lower(), score)
                rows.append(_plain({**row, "correct": score}, f"{path}: row {number}"))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: not CSV in UTF-8: {error}") from None
    return rows


def _lighteval(value: dict[str, Any], path: Path, number: int) -> Row:
    place = f"{path}: row {number}"
    if "doc" not in value:
        old = _parse(LightevalOldRow, value, place)
        scores = {name: score for name, score in old.metrics.items() if score is not None}
        return Row(
            _task(path), str(number), scores, place, prompt=text_digest(old.full_prompt), gold=text_digest(old.gold)
        )
    row = _parse(LightevalRow, value, place)
    index = row.doc.gold_index
    gold = [index, row.doc.choices] if index is not None else None
    scores = {name: score for name, score in row.metric.items() if score is not None}
    prompt = text_digest(row.doc.query)
    return Row(_task(path), str(row.doc.id), scores, place, prompt=prompt, gold=text_digest(gold))


def _inspect_archive(path: Path) -> list[Row]:
    raw = path.read_bytes()
    try:
        with ZipFile(path) as archive:
            samples = [info for info in archive.infolist() if re.fullmatch(r"samples/[^/]+\.json", info.filename)]
            values = [_member(archive, info, raw) for info in [archive.getinfo("header.json"), *samples]]
    except KeyError:
        raise UserError(f"{path}: has no header.json: the evaluation did not end, or it is no inspect_ai log") from None
    except (BadZipFile, ValueError, struct.error, OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: unreadable: {error}") from None
    return _inspect(values[0], values[1:], path)


def _member(archive: ZipFile, info: ZipInfo, raw: bytes) -> Any:
    if info.compress_type != ZSTANDARD:
        return json.loads(archive.read(info))
    name, extra = struct.unpack_from("<HH", raw, info.header_offset + 26)
    start = info.header_offset + 30 + name + extra
    with pa.input_stream(pa.py_buffer(raw[start : start + info.compress_size]), compression="zstd") as stream:
        return json.loads(stream.read())


def _inspect(head: Any, samples: Sequence[Any], path: Path) -> list[Row]:
    header = _parse(InspectHeader, head, str(path))
    if header.status != "success":
        raise UserError(f"{path}: status: the evaluation ended with {header.status!r}, so answers may be missing")
    return [_inspect_row(header.eval.task, value, f"{path}: sample {n}") for n, value in enumerate(samples, 1)]


def _inspect_row(task: str, value: Any, place: str) -> Row:
    sample = _parse(InspectSample, value, place)
    if sample.epoch != 1:
        raise UserError(f"{place}: id {task}/{sample.id}: epoch {sample.epoch}: only one answer per item can be paired")
    if sample.error is not None:
        raise UserError(f"{place}: id {task}/{sample.id}: ended with an error")
    found = {name: score.value for name, score in (sample.scores or {}).items()}
    scores = {name: INSPECT_SCORES.get(v, v) if isinstance(v, str) else v for name, v in found.items()}
    prompt = sample.input
    if isinstance(prompt, list):  # messages, whose ids differ from run to run
        prompt = [[message.get("role"), message.get("content")] for message in prompt]
    prompt = prompt if sample.choices is None else [prompt, sample.choices]
    return Row(task, str(sample.id), scores, place, prompt=text_digest(prompt), gold=text_digest(sample.target))
