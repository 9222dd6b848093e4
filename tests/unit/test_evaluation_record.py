"""Evaluation records, and the scripts that grade and merge (thinker-spec 15, C33)."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dosematch.errors import UserError
from dosematch.evaluation import VERIFY_SLOW
from dosematch.evaluation_record import (
    GRADES,
    evaluation_record,
    grade_rows,
    in_panel_order,
    panel_order,
    regrade_counts,
    verify_slow_record,
)
from dosematch.grading import GRADER_VERSION, Grader
from dosematch.identity import sha1_12
from dosematch.questions.question import Question
from dosematch.records import read_json, read_parquet, sha256_file, write_jsonl, write_parquet

ROOT = Path(__file__).parents[2]
SUITES = {"all6": ["beta", "alpha"], "within": ["beta"]}
EVAL = {"batch_size": 50, "dtype": "float32", "temperature": 0.0, "max_tokens": 64, "sort": "prompt_length_descending"}
TEXTS = [r"\boxed{4}", "The answer is 7.", r"\boxed{1+x}", r"\boxed{3}", "none"]
GOLDS = ["4", "7", "x+1", "5", "6"]


def questions(panel: str) -> list[Question]:
    return [
        Question(id=f"{panel}/{i}", text=f"{panel} question {i}?", answer=gold, source="s")
        for i, gold in enumerate(GOLDS)
    ]


def completion_rows(panel: str) -> list[dict[str, Any]]:
    return [
        {"index": i, "sha1_12": sha1_12(q.text), "text": text, "n_tokens": len(text), "finish_reason": "stop"}
        for i, (q, text) in enumerate(zip(questions(panel), TEXTS, strict=True))
    ]


@cache
def graded(panel: str) -> list[dict[str, Any]]:
    with Grader() as grader:
        return grade_rows(questions(panel), grader.grade_many(zip(TEXTS, GOLDS, strict=True)))


VERDICTS = ["Yes", "Yes", "No", "No", "Invalid"]  # and items 1 and 4 have no box
SLOW_TEXTS = [None, r"\boxed{8}", r"\boxed{x+1}", r"\boxed{5}", "6 or so"]


def verify_slow_rows(panel: str) -> list[dict[str, Any]]:
    """Item 0 keeps its Fast answer, the others are solved again."""
    return [
        {
            "index": i,
            "sha1_12": sha1_12(question.text),
            "verify_text": verdict,
            "verify_token_ids": [1],
            "verdict": verdict,
            "missing_fast_box": i in (1, 4),
            "triggered": slow is not None,
            "slow_text": slow,
            "slow_token_ids": slow and [2],
            "slow_finish_reason": slow and "stop",
        }
        for i, (question, verdict, slow) in enumerate(zip(questions(panel), VERDICTS, SLOW_TEXTS, strict=True))
    ]


@cache
def slow_grades(panel: str) -> list[dict[str, Any]]:
    with Grader() as grader:
        texts = [text or "" for text in SLOW_TEXTS]
        return grade_rows(questions(panel), grader.grade_many(zip(texts, GOLDS, strict=True)))


def verified() -> dict[str, Any]:
    """What the record says of the verified panel beta."""
    return {"beta_verify_slow": verify_slow_record(graded("beta"), verify_slow_rows("beta"), slow_grades("beta"))}


def record() -> dict[str, Any]:
    identity = {"arm": "std", "seed": 7, "run": 1, "checkpoint_sha256": "00"}
    panels = {name: (completion_rows(name), graded(name)) for name in ("beta", "alpha", "dev")}
    return evaluation_record(identity, EVAL, SUITES, panels)


def test_the_record_holds_counts_and_every_item() -> None:
    made = record()
    assert {key: made[key] for key in ("arm", "seed", "run", "checkpoint_sha256", "grader", "eval")} == {
        "arm": "std", "seed": 7, "run": 1, "checkpoint_sha256": "00", "grader": GRADER_VERSION, "eval": EVAL,
    }  # fmt: skip
    assert list(made["panels"]) == ["beta", "alpha", "dev"]
    assert made["panels"]["dev"] == {
        "n": 5,
        "correct": 3,
        "accuracy": 0.6,
        "extraction": {"boxed": 3, "fallback": 1, "none": 1},
        "outcomes": {"correct": 3, "wrong": 1, "no_answer": 1, "unparsable": 0, "timeout": 0, "error": 0},
        "per_item_sha1": [sha1_12(question.text) for question in questions("dev")],
        "per_item_extracted": ["4", "7", "1+x", "3", None],
        "per_item_tokens": [len(text) for text in TEXTS],
        "per_item_has_box": [True, False, True, True, False],
        "per_item_correct": [True, True, True, False, False],
        "per_item_outcome": ["correct", "correct", "correct", "wrong", "no_answer"],
        "per_item_finish": ["stop"] * 5,
    }
    assert made["totals"] == {"all6": {"n": 10, "correct": 6}, "within_math": {"n": 5, "correct": 3}}


def test_verify_slow_keeps_untriggered_answers_and_counts_the_rest() -> None:
    made = verified()["beta_verify_slow"]
    right = [True, True, True, False, False]
    final = [True, False, True, True, made["per_item_slow_correct"][4]]
    assert made["per_item_final_correct"] == final
    assert made["per_item_slow_correct"][0] is None and made["per_item_slow_extracted"][0] is None
    assert made["per_item_triggered"] == [False, True, True, True, True]
    assert made["triggers"] == {"no_only": 2, "nobox_only": 2, "both": 0, "total": 4}
    assert made["confusion_matrix"] == {
        "fast_right": {"yes": 2, "no": 1, "invalid": 0, "nobox": 1},
        "fast_wrong": {"yes": 0, "no": 1, "invalid": 1, "nobox": 1},
    }
    assert (made["slow_wins"], made["slow_losses"]) == (sum(final) - 2, 1)
    assert made["fast_correct"] + made["slow_wins"] - made["slow_losses"] == made["correct"] == sum(final)
    assert made["fast_correct"] == sum(right)
    assert made["accuracy"] == sum(final) / made["n"] == sum(final) / 5


def test_every_count_can_be_rebuilt_from_the_json_alone() -> None:
    made = json.loads(json.dumps(record()))
    golds = {sha1_12(question.text): question.answer for panel in made["panels"] for question in questions(panel)}
    stored = {name: {key: panel[key] for key in ("n", "correct")} for name, panel in made["panels"].items()}
    assert regrade_counts(made, golds) == stored
    made["panels"]["alpha"]["per_item_extracted"][3] = "5.0"
    assert regrade_counts(made, golds)["alpha"]["correct"] == stored["alpha"]["correct"] + 1
    del golds[sha1_12("dev question 2?")]
    with pytest.raises(UserError, match="panel dev: no gold answer"):
        regrade_counts(made, golds)


def test_rows_are_joined_by_index_and_identity() -> None:
    rows = completion_rows("alpha")
    assert in_panel_order(questions("alpha"), rows[::-1], "f") == rows
    for bad in (rows[:-1], rows + rows[:1], [*rows[:-1], rows[0]]):
        with pytest.raises(UserError, match="f: index"):
            in_panel_order(questions("alpha"), bad, "f")
    with pytest.raises(UserError, match="f: sha1_12: row 0 .* alpha/0"):
        in_panel_order(questions("alpha"), completion_rows("beta"), "f")


def test_missing_panels_suites_and_mixed_graders_are_refused() -> None:
    rows = (completion_rows("beta"), graded("beta"))
    with pytest.raises(UserError, match="all6: no grades for panel alpha"):
        evaluation_record({}, EVAL, SUITES, {"beta": rows})
    with pytest.raises(UserError, match="no suite 'within'"):
        evaluation_record({}, EVAL, {"all6": ["beta"]}, {"beta": rows})
    old = [row | {"grader": "older"} for row in rows[1]]
    with pytest.raises(UserError, match="one version"):
        evaluation_record({}, EVAL, SUITES, {"beta": rows, "alpha": (rows[0], old)})


def test_panel_order_is_the_suites_then_the_rest_by_name() -> None:
    assert panel_order(SUITES, ["zeta", "alpha", "dev", "beta"]) == ["beta", "alpha", "dev", "zeta"]


def call(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "workflow" / "scripts" / script), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    )


@pytest.fixture
def arm(tmp_path: Path) -> Path:
    """A folder with panels and shuffled completions of three panels, and a checkpoint."""
    for name in ("alpha", "beta", "dev"):
        write_jsonl(tmp_path / "panels" / f"{name}.jsonl", [question.model_dump() for question in questions(name)])
        write_completions(tmp_path, name, completion_rows(name)[::-1])
    write_parquet(tmp_path / "verify_slow.parquet", verify_slow_rows("beta"), VERIFY_SLOW)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def write_completions(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    types = [("index", pa.int32()), ("sha1_12", pa.string()), ("text", pa.string())]
    schema = pa.schema([*types, ("n_tokens", pa.int32()), ("finish_reason", pa.string())])
    write_parquet(folder / "completions" / f"{name}.parquet", rows, schema)


def grade_all(arm: Path) -> subprocess.CompletedProcess[str]:
    options = []
    for name in ("alpha", "beta", "dev"):
        options += [
            "--panel",
            arm / "panels" / f"{name}.jsonl",
            "--completions",
            arm / "completions" / f"{name}.parquet",
        ]
        options += ["--out", arm / "grades" / f"{name}.parquet"]
    options += ["--verify-slow", arm / "verify_slow.parquet", "--verify-slow-panel", "beta"]
    return call("grade_panel.py", *options, "--verify-slow-out", arm / "verify_slow_grades.parquet")


def merge(arm: Path, settings: str) -> subprocess.CompletedProcess[str]:
    folders = [f"--{name}={arm / name}" for name in ("panels", "completions", "grades")]
    folders += [f"--verify-slow={arm / 'verify_slow.parquet'}"]
    folders += [f"--verify-slow-grades={arm / 'verify_slow_grades.parquet'}"]
    identity = ["--arm=std", "--seed=7", "--run=1", f"--checkpoint={arm / 'model.safetensors'}"]
    return call("merge_eval.py", *identity, *folders, f"--settings={settings}", f"--out={arm / 'record.json'}")


def test_the_scripts_grade_and_merge(arm: Path) -> None:
    done = grade_all(arm)
    assert done.returncode == 0, done.stderr
    rows = read_parquet(arm / "grades" / "dev.parquet")
    assert rows == graded("dev") and list(rows[0]) == GRADES.names
    assert read_parquet(arm / "verify_slow_grades.parquet") == slow_grades("beta")
    done = merge(arm, json.dumps({"eval": EVAL, "suites": SUITES, "verify_slow_panel": "beta"}))
    assert done.returncode == 0, done.stderr
    expected = record() | verified() | {"checkpoint_sha256": sha256_file(arm / "model.safetensors")}
    assert read_json(arm / "record.json") == expected


def test_the_scripts_end_user_errors_in_one_line(arm: Path) -> None:
    done = merge(arm, '{"eval": {}}')
    assert (done.returncode, done.stderr) == (1, "error: --settings: suites: Field required\n")
    write_completions(arm, "dev", completion_rows("alpha"))
    done = grade_all(arm)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "dev.parquet: sha1_12" in done.stderr
    assert not (arm / "grades").exists()
