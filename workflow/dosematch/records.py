"""Reading and atomic, byte-reproducible writing of files: JSON with sorted keys, JSON lines, Parquet; digests."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from dosematch.errors import UserError


def write_atomically(path: Path | str, write: Callable[[Path], None]) -> None:
    """Call `write(temporary path)` and move the result to `path`; on any failure nothing is left behind."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def write_text(path: Path | str, text: str) -> None:
    """Write UTF-8 text atomically."""

    def write(target: Path) -> None:
        target.write_text(text, encoding="utf-8")

    write_atomically(path, write)


def write_json(path: Path | str, value: Any) -> None:
    """Write `value` as JSON with sorted keys; NaN and infinities are refused, since JSON has none."""
    write_text(path, json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_jsonl(path: Path | str, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object per line with sorted keys."""
    write_text(path, "".join(json_line(row) for row in rows))


def json_line(row: dict[str, Any]) -> str:
    """One row of a JSON-lines file, newline included."""
    return json.dumps(row, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def write_parquet(path: Path | str, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    """Write rows as one Parquet file under a fixed schema (same rows, same bytes)."""
    table = pa.Table.from_pylist(rows, schema=schema)
    write_atomically(path, lambda target: pq.write_table(table, target, compression="zstd"))


def read_json(path: Path | str) -> Any:
    """Read JSON; raises `UserError` naming the file when it is missing, unreadable or not JSON."""
    return _read(path, lambda p: json.loads(p.read_text(encoding="utf-8")))


def read_jsonl(path: Path | str) -> list[dict[str, Any]]:
    """Read JSON lines; raises `UserError` naming the file (and line) when something is wrong with it."""

    def parse(p: Path) -> list[dict[str, Any]]:
        rows = []
        lines = p.read_text(encoding="utf-8").split("\n")  # splitlines() would also cut at U+2028 inside a string
        for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, 1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise UserError(f"{p}: line {number} is not JSON: {error}") from None
        return rows

    return _read(path, parse)


def read_parquet(path: Path | str) -> list[dict[str, Any]]:
    """Read a Parquet file as a list of rows; raises `UserError` naming the file when it cannot be read."""
    return _read(path, lambda p: pq.read_table(p).to_pylist())


def read_yaml(path: Path | str) -> dict[str, Any]:
    """Read a YAML mapping (an empty file is an empty one); raises `UserError` naming the file."""
    path = Path(path)
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {error}") from None
    if value is not None and not isinstance(value, dict):
        raise UserError(f"{path}: must hold keys and values, not a {type(value).__name__}")
    return value or {}


def _read(path: Path | str, parse: Callable[[Path], Any]) -> Any:
    path = Path(path)
    try:
        return parse(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (ValueError, pa.ArrowException) as error:
        raise UserError(f"{path}: unreadable: {error}") from None


def sha256_file(path: Path | str) -> str:
    """Hex SHA-256 of a file's bytes."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(value: Any) -> str:
    """12-character SHA-256 of a JSON-serialisable value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
