"""Numbers in the text, each with the expression over table cells that recomputes it (thinker-spec 20, items 9-10).

`statements.csv` has one row per number: `printed`, an `operation` and its `operands`, separated by `;`. An operand is a
signed sum of references `file/row key.../column`, for example `table1/arm_x/all6 - table1/arm_y/all6`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from dosematch.errors import UserError
from dosematch.published.cells import Cell, Published, Row
from dosematch.published.checks import Check, show

SIGNS = {"+": 1, "-": -1}
RANGE = " to "


@dataclass(frozen=True)
class Operand:
    """A signed sum of cells."""

    value: Fraction
    cells: tuple[Cell, ...]


def check_statements(published: Published) -> Iterator[Check]:
    """Every number of `statements.csv` against the tables; raises `UserError` for an expression that has no value."""
    for row in published.rows("statements").values():
        if missing := _missing(row, published):
            yield Check("statement_operands", row["operands"], f"{missing} is printed", False)
        else:
            yield _check(row, [_operand(text, row, published) for text in row["operands"].text.split(";")])


def _missing(row: Row, published: Published) -> str | None:
    """The first reference that names no printed value, as after a misprint in the key of a row."""
    references = [token for token in row["operands"].text.replace(";", " ").split() if token not in SIGNS]
    return next((reference for reference in references if _find(reference, published) is None), None)


def _find(reference: str, published: Published) -> Cell | None:
    file, *address = reference.split("/")
    return published.cell(file, *address) if file in published.tables else None


def _check(row: Row, operands: list[Operand]) -> Check:
    printed, operation = row["printed"], row["operation"].text
    cells = tuple(cell for operand in operands for cell in operand.cells)
    values = [operand.value for operand in operands]
    match operation, values:
        case "value", [value]:
            recomputed = value
        case "percent", [part, whole] if whole:
            recomputed = 100 * part / whole
        case "change", [new, old] if old:
            recomputed = 100 * (new / old - 1)
        case "ratio", [part, whole] if whole:
            recomputed = part / whole
        case "range", [_, _, *_]:
            return _range(printed, min(values), max(values), cells)
        case _:
            raise UserError(f"{row.name}: operation {operation!r} does not fit {len(values)} operands")
    exact = operation == "value" and max(cell.decimals for cell in cells) <= printed.decimals
    ok = printed.number == round(recomputed, printed.decimals)
    pinned, bounded = ((printed, *cells), ()) if exact else ((printed,), cells)
    return Check("statement", printed, show(recomputed), ok, pinned, bounded)


def _range(printed: Cell, low: Fraction, high: Fraction, cells: tuple[Cell, ...]) -> Check:
    """`LOW to HIGH`: the smallest and the largest operand, each rounded as printed."""
    ends = [Cell(*_address(printed), text) for text in printed.text.split(RANGE)]
    ok = len(ends) == 2 and [end.number for end in ends] == [
        round(value, end.decimals) for value, end in zip((low, high), ends, strict=True)
    ]
    return Check("statement", printed, f"{show(low)}{RANGE}{show(high)}", ok, (printed,), cells)


def _address(cell: Cell) -> tuple[str, str, str]:
    return cell.file, cell.row, cell.column


def _operand(text: str, row: Row, published: Published) -> Operand:
    sign, value, cells = 1, Fraction(0), []
    for token in text.split():
        if token in SIGNS:
            sign = SIGNS[token]
            continue
        cell = _find(token, published)
        assert cell is not None, token
        value += sign * cell.number
        cells.append(cell)
    if not cells:
        raise UserError(f"{row.name}: operands: {text!r} names no printed value")
    return Operand(value, tuple(cells))
