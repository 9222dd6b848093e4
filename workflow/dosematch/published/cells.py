"""Printed numbers as cells: text with an address, read from the tables of resources/published (thinker-spec 20)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd

from dosematch.errors import UserError
from dosematch.records import read_json

KEY_COLUMNS = {  # file -> the columns that name a row
    "table1": ("arm",),
    "table2": ("contrast_id", "suite"),
    "table3a": ("arm", "seed"),
    "table3b": ("arm", "seed"),
    "exposed_items": ("train_seed", "step"),
    "statements": ("id",),
}
DOCUMENTS = ("protocol", "arms")


@dataclass(frozen=True)
class Cell:
    """One printed value: `file` without suffix, `row` as its key parts joined by `/`, `column`, and the text itself."""

    file: str
    row: str
    column: str
    text: str

    @property
    def number(self) -> Fraction:
        """The exact value of the printed decimal; raises `UserError` naming the cell when it is not a number."""
        try:
            return Fraction(self.text)
        except (ValueError, ZeroDivisionError):
            raise UserError(f"{self.where}: {self.text!r} is not a number") from None

    @property
    def divisor(self) -> Fraction:
        """`number`, for dividing by; raises `UserError` naming the cell when it is 0."""
        if self.number == 0:
            raise UserError(f"{self.where}: 0, by which nothing can be divided")
        return self.number

    @property
    def count(self) -> int:
        """`number` as a count; raises `UserError` naming the cell when it is negative or not whole."""
        if self.number < 0 or self.number != int(self.number):
            raise UserError(f"{self.where}: {self.text} is not a count")
        return int(self.number)

    @property
    def decimals(self) -> int:
        """Digits printed after the decimal point."""
        return len(self.text.partition(".")[2])

    @property
    def where(self) -> str:
        """`file row column`, for messages."""
        return f"{self.file} {self.row} {self.column}".strip()


class Row(dict[str, Cell]):
    """Column -> cell; looking up a column that is not printed raises `UserError` naming it."""

    def __init__(self, file: str, key: tuple[str, ...], texts: Iterable[tuple[str, str]]) -> None:
        row = "/".join(key)
        super().__init__((column, Cell(file, row, column, text)) for column, text in texts)
        self.name = f"{file} {row}"

    def __missing__(self, column: str) -> Cell:
        raise UserError(f"{self.name}: nothing is printed for {column}")


@dataclass(frozen=True)
class Published:
    """All printed values: file -> row key -> column -> cell; empty cells are absent."""

    tables: Mapping[str, Mapping[tuple[str, ...], Row]]

    def rows(self, file: str) -> Mapping[tuple[str, ...], Row]:
        """Rows of one file in printed order."""
        return self.tables[file]

    def row(self, file: str, *key: str) -> Row:
        """One row; raises `UserError` when the file has none of that key."""
        if key not in self.tables[file]:
            raise UserError(f"{file}: {'/'.join(key)} is missing")
        return self.tables[file][key]

    def cell(self, file: str, *address: str) -> Cell | None:
        """The cell at (row key..., column), or None where nothing is printed."""
        *key, column = address
        row = self.tables[file].get(tuple(key))
        return None if row is None else row.get(column)

    def need(self, file: str, *address: str) -> Cell:
        """Like `cell`; raises `UserError` when nothing is printed there."""
        found = self.cell(file, *address)
        if found is None:
            raise UserError(f"{file}: {'/'.join(address)} is missing")
        return found

    def cells(self) -> Iterator[Cell]:
        """Every printed value, file by file."""
        for rows in self.tables.values():
            for row in rows.values():
                yield from row.values()


def read_published(folder: Path) -> Published:
    """Read the published tables and settings of one folder.

    Raises `UserError` naming the file when it is missing or unreadable, lacks a key column or repeats a row.
    """
    tables = {file: _read_table(folder / f"{file}.csv", file, keys) for file, keys in KEY_COLUMNS.items()}
    documents = {file: _read_document(folder / f"{file}.json", file) for file in DOCUMENTS}
    return Published({**tables, **documents})


def read_csv(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file as text, empty fields as empty strings; raises `UserError` naming an unreadable file."""
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False).fillna("")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{path}: unreadable: {error}") from None
    return [{str(column): str(text) for column, text in row.items()} for row in frame.to_dict("records")]


def _read_table(path: Path, file: str, keys: tuple[str, ...]) -> dict[tuple[str, ...], Row]:
    rows: dict[tuple[str, ...], Row] = {}
    for record in read_csv(path):
        if missing := [key for key in keys if key not in record]:
            raise UserError(f"{path}: column {missing[0]} is missing")
        key = tuple(record[name] for name in keys)
        if key in rows:
            raise UserError(f"{path}: row {'/'.join(key)} occurs twice")
        rows[key] = Row(file, key, ((column, text) for column, text in record.items() if text))
    return rows


def _read_document(path: Path, file: str) -> dict[tuple[str, ...], Row]:
    """A JSON object as rows: one per top-level key, one column per leaf (`fast.0.1`), texts as JSON prints them."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a JSON object")
    return {
        (key,): Row(file, (key,), ((column, str(leaf)) for column, leaf in _leaves(value)))
        for key, value in content.items()
    }


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(child, f"{path}.{key}" if path else str(key))
    elif value is not None:
        yield path, value
