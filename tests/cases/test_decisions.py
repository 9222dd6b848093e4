"""Every public case has an existing test or a decision in words (decisions.jsonl, docs/cases.md)."""

import ast
import json
import os
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [json.loads(line) for line in (ROOT / "tests/cases/decisions.jsonl").read_text(encoding="utf-8").splitlines()]
SHARED = Path(os.environ.get("DATA_DIR", "../shared/data")).parent / "cases/grading_and_training_cases.jsonl"


@cache
def definitions(file: str) -> dict[str, str]:
    """Source of every test function of a file, by name."""
    text = (ROOT / file).read_text(encoding="utf-8")
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {function.name: ast.get_source_segment(text, function) or "" for function in functions}


def is_there(node: str) -> bool:
    """Whether a node id `file::test` or `file::test[kind]` names a test with a check in it, and a kind that exists."""
    file, _, name = node.partition("::")
    function, _, kind = name.partition("[")
    source = definitions(file).get(function, "") if (ROOT / file).is_file() else ""
    text = (ROOT / file).read_text(encoding="utf-8") if source else ""
    return ("assert" in source or "raises" in source) and (not kind or f'"{kind.rstrip("]")}": [' in text)


def test_every_case_is_listed_once() -> None:
    identities = [row["id"] for row in ROWS]
    assert len(set(identities)) == len(identities) == 224
    assert {identity.split("-")[1] for identity in identities} == set("abcdef")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_every_row_names_a_test_that_exists_or_says_what_was_decided(row: dict[str, str]) -> None:
    assert row.keys() in ({"id", "test"}, {"id", "decision"})
    assert is_there(row["test"]) if "test" in row else len(row["decision"].split()) >= 4


def test_a_node_that_does_not_exist_is_noticed() -> None:
    kinds = "tests/cases/test_grading_kinds.py::test_kind"
    assert is_there(f"{kinds}[matrix]")
    assert not is_there(f"{kinds}[no such kind]")
    assert not is_there(f"{kinds}s")
    assert not is_there("tests/cases/none.py::test_kind")


def test_the_list_covers_the_cases_at_hand() -> None:
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is not there")
    lines = SHARED.read_text(encoding="utf-8").splitlines()
    assert [row["id"] for row in ROWS] == [json.loads(line)["id"] for line in lines]
