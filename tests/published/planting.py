"""Changing single printed values in a copy of resources/published."""

import csv
import json
import random
import shutil
from pathlib import Path
from typing import Any

from dosematch.errors import UserError
from dosematch.published.audit import audit, failures
from dosematch.published.cells import KEY_COLUMNS, Cell

PUBLISHED = Path(__file__).parents[2] / "resources" / "published"


def copied(target: Path) -> Path:
    """A copy of the published files that a test may change."""
    return Path(shutil.copytree(PUBLISHED, target / "published"))


def plant(folder: Path, cell: Cell, text: str) -> None:
    """Write `text` where `cell` stands in `folder`."""
    if cell.file not in KEY_COLUMNS:
        plant_in_document(folder / f"{cell.file}.json", cell, text)
        return
    path = folder / f"{cell.file}.csv"
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    row = next(row for row in rows if "/".join(row[key] for key in KEY_COLUMNS[cell.file]) == cell.row)
    assert row[cell.column] == cell.text
    row[cell.column] = text
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def plant_in_document(path: Path, cell: Cell, text: str) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    keys = [cell.row, *cell.column.split(".")] if cell.column else [cell.row]
    parent: Any = content
    for key in keys[:-1]:
        parent = parent[int(key) if isinstance(parent, list) else key]
    last: Any = int(keys[-1]) if isinstance(parent, list) else keys[-1]
    assert str(parent[last]) == cell.text
    parent[last] = type(parent[last])(text)
    path.write_text(json.dumps(content), encoding="utf-8")


def other_digit(text: str, rng: random.Random, places: list[int] | None = None) -> str:
    """`text` with one digit replaced by another."""
    place = rng.choice(places or [i for i, letter in enumerate(text) if letter.isdigit()])
    digit = rng.choice([d for d in "0123456789" if d != text[place]])
    return text[:place] + digit + text[place + 1 :]


def found(folder: Path) -> frozenset[tuple[str, ...]] | str:
    """The inconsistencies of a folder, or the error that ends its audit: either differs after a planted error."""
    try:
        return frozenset(check.identity for check in failures(audit(folder)))
    except UserError as error:
        return str(error)
