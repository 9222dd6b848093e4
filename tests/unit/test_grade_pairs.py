"""`make grade`: a row in, a row out, whatever the row holds."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dosematch.grading import OUTCOMES, Grader

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "workflow/scripts/grade_pairs.py"
sys.path.insert(0, str(SCRIPT.parent))
from grade_pairs import graded  # noqa: E402

KEYS = {"id", "outcome", "extracted", "strict", "flexible"}


def run_script(pairs: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, "--pairs", pairs, "--out", out]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)


def grade_file(tmp_path: Path, lines: list[bytes], end: bytes = b"\n") -> list[dict[str, Any]]:
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines) + end)
    done = run_script(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().split(b"\n")[:-1]]


def pair(identity: Any, gold: Any, output: Any) -> bytes:
    return json.dumps({"id": identity, "gold": gold, "model_output": output}).encode()


ROWS = [
    (pair("a", "1/2", r"so \boxed{\frac{1}{2}}"), ("a", "correct", False, True)),
    (pair("b", "7", r"\boxed{7}"), ("b", "correct", True, True)),
    (pair("c", "7", "the answer is 7"), ("c", "correct", False, True)),  # without a box never strict
    (pair("d", "7", r"\boxed{8}"), ("d", "wrong", False, False)),
    (pair("e", "7", "I do not know"), ("e", "no_answer", False, False)),
    (pair("f", "7", r"\boxed{7"), ("f", "no_answer", False, False)),
    (pair("g", 7, r"\boxed{7.0}"), ("g", "correct", False, True)),
    (pair(12, "7", r"\boxed{7}"), (12, "correct", True, True)),
    (pair("h", "7", None), ("h", "error", False, False)),
    (b'{"id": "i", "gold": "7"}', ("i", "error", False, False)),
    (b"not json", (None, "error", False, False)),
    (b"[1, 2]", (None, "error", False, False)),
    (b"", (None, "error", False, False)),
    (b"\xff\xfe", (None, "error", False, False)),
    (b"[" * 100_000, (None, "error", False, False)),
    (b'{"id": "j", "gold": ' + b"9" * 10_000 + b', "model_output": "9"}', (None, "error", False, False)),
    (b'{"id": "k", "gold": "7", "model_output": "\\ud800 \\\\boxed{\\ud800}"}', ("k", "wrong", False, False)),
    (pair("l", "7", "line\u2028break \x00\x85 \\boxed{7}"), ("l", "correct", True, True)),
    (pair("m", "7", r"\boxed{9^{9^{9^{9}}}}"), ("m", "unparsable", False, False)),
    (pair("n", "7", r"\boxed{" + "{" * 50_000), ("n", "no_answer", False, False)),
    (pair("o", "7", r"\boxed{__import__('os').system('true')}"), ("o", "wrong", False, False)),
]


def test_every_kind_of_row_gets_its_row_in_order(tmp_path: Path) -> None:
    rows = grade_file(tmp_path, [line for line, _ in ROWS])
    found = [(row["id"], row["outcome"], row["strict"], row["flexible"]) for row in rows]
    for (line, wanted), got in zip(ROWS, found, strict=True):
        if wanted[1] in ("wrong", "unparsable"):  # both say that it earns nothing
            assert got[1] in ("wrong", "unparsable"), line[:80]
            got = (got[0], wanted[1], *got[2:])
        assert got == wanted, line[:80]
    assert all(row.keys() - {"message"} == KEYS for row in rows)
    assert all(("message" in row) == (row["outcome"] == "error") for row in rows)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_the_last_line_feed_is_optional(tmp_path: Path, end: bytes) -> None:
    assert len(grade_file(tmp_path, [pair("a", "1", r"\boxed{1}")] * 2, end)) == 2


@settings(deadline=None, max_examples=200)
@given(line=st.binary(max_size=40) | st.text().map(lambda text: pair("x", text, text)))
def test_any_line_gives_one_row(line: bytes) -> None:
    with Grader() as grader:
        row = graded(grader, line)
    assert row["outcome"] in OUTCOMES
    assert "\n" not in json.dumps(row)
    assert row["flexible"] == (row["outcome"] == "correct")


def test_a_missing_file_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    done = run_script(tmp_path / "none.jsonl", tmp_path / "out.jsonl")
    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 1
    assert "none.jsonl" in done.stderr
    assert not (tmp_path / "out.jsonl").exists()
