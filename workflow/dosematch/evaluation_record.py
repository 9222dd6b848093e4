"""The record of an evaluated checkpoint, `eval_6panel_bs50.json`, and its rebuilding from answers (thinker-spec 15)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dosematch.errors import UserError
from dosematch.grading import EXTRACTIONS, GRADER_VERSION, OUTCOMES, Grade, Grader
from dosematch.identity import sha1_12
from dosematch.questions.question import Question

Rows = list[dict[str, Any]]

GRADES = pa.schema(
    [
        ("index", pa.int32()),
        ("sha1_12", pa.string()),
        ("extracted", pa.string()),
        ("has_box", pa.bool_()),
        ("extraction", pa.string()),
        ("outcome", pa.string()),
        ("correct", pa.bool_()),
        ("strict", pa.bool_()),
        ("grader", pa.string()),
    ]
)
TOTALS = {"all6": "all6", "within_math": "within"}  # name in the record: suite of the study


def in_panel_order(questions: Sequence[Question], rows: Rows, path: Path | str) -> Rows:
    """The rows of a completions or grades file in panel order.

    Raises `UserError` naming `path` unless there is one row for every question, with that question's identity.
    """
    by_index = {row["index"]: row for row in rows}
    if len(rows) != len(questions) or by_index.keys() != set(range(len(questions))):
        raise UserError(f"{path}: index: {len(rows)} rows do not match the {len(questions)} questions of the panel")
    for index, question in enumerate(questions):
        if by_index[index]["sha1_12"] != sha1_12(question.text):
            raise UserError(f"{path}: sha1_12: row {index} belongs to another question than {question.id}")
    return [by_index[index] for index in range(len(questions))]


def grade_rows(questions: Sequence[Question], grades: Sequence[Grade]) -> Rows:
    """Rows of `grades/<panel>.parquet` under the schema `GRADES`, in panel order."""
    return [
        {
            "index": index,
            "sha1_12": sha1_12(question.text),
            "extracted": grade.extracted,
            "has_box": grade.has_box,
            "extraction": grade.extraction,
            "outcome": grade.outcome,
            "correct": grade.correct,
            "strict": grade.strict,
            "grader": GRADER_VERSION,
        }
        for index, (question, grade) in enumerate(zip(questions, grades, strict=True))
    ]


def panel_record(completions: Rows, grades: Rows) -> dict[str, Any]:
    """Counts and per-item lists of one panel, from its rows in panel order."""
    correct = [row["correct"] for row in grades]
    return {
        "n": len(grades),
        "correct": sum(correct),
        "accuracy": sum(correct) / len(grades),
        "extraction": counts(grades, "extraction", EXTRACTIONS),
        "outcomes": counts(grades, "outcome", OUTCOMES),
        "per_item_sha1": [row["sha1_12"] for row in grades],
        "per_item_extracted": [row["extracted"] for row in grades],
        "per_item_tokens": [row["n_tokens"] for row in completions],
        "per_item_has_box": [row["has_box"] for row in grades],
        "per_item_correct": correct,
        "per_item_outcome": [row["outcome"] for row in grades],
        "per_item_finish": [row["finish_reason"] for row in completions],
    }


def counts(rows: Rows, column: str, values: Sequence[str]) -> dict[str, int]:
    """How many rows hold each of the values; values that no row holds count 0."""
    found = [row[column] for row in rows]
    return {value: found.count(value) for value in values}


def verify_slow_record(fast: Rows, verify_slow: Rows, slow: Rows) -> dict[str, Any]:
    """Verify -> Slow of one panel: per-item lists, 2x3 confusion, disjoint triggers, wins and losses (thinker-spec 12).

    `fast` and `slow` are grades in panel order, `verify_slow` what was generated; an untriggered item keeps its Fast
    result.
    """
    right = [row["correct"] for row in fast]
    final = [s["correct"] if v["triggered"] else f for f, v, s in zip(right, verify_slow, slow, strict=True)]
    verdicts = [row["verdict"] for row in verify_slow]
    boxless = [row["missing_fast_box"] for row in verify_slow]
    return {
        "n": len(fast),
        "per_item_sha1": [row["sha1_12"] for row in fast],
        "per_item_verdict": verdicts,
        "per_item_missing_fast_box": boxless,
        "per_item_triggered": [row["triggered"] for row in verify_slow],
        "per_item_slow_extracted": [
            row["extracted"] if v["triggered"] else None for row, v in zip(slow, verify_slow, strict=True)
        ],
        "per_item_slow_correct": [
            row["correct"] if v["triggered"] else None for row, v in zip(slow, verify_slow, strict=True)
        ],
        "per_item_final_correct": final,
        "confusion_matrix": confusion_matrix(right, verdicts, boxless),
        "triggers": trigger_counts(verdicts, boxless),
        "slow_wins": sum(f and not r for f, r in zip(final, right, strict=True)),
        "slow_losses": sum(r and not f for f, r in zip(final, right, strict=True)),
        "fast_correct": sum(right),
        "correct": sum(final),
        "accuracy": sum(final) / len(final),
    }


def confusion_matrix(
    right: Sequence[bool], verdicts: Sequence[str], boxless: Sequence[bool]
) -> dict[str, dict[str, int]]:
    """Rows Fast right and wrong, columns Yes, No, Invalid; `nobox` overlays them (thinker-spec 12.1)."""
    rows = {}
    for name, value in (("fast_right", True), ("fast_wrong", False)):
        chosen = [(v, b) for r, v, b in zip(right, verdicts, boxless, strict=True) if r == value]
        rows[name] = {column.lower(): sum(v == column for v, _ in chosen) for column in ("Yes", "No", "Invalid")}
        rows[name]["nobox"] = sum(b for _, b in chosen)
    return rows


def trigger_counts(verdicts: Sequence[str], boxless: Sequence[bool]) -> dict[str, int]:
    """Disjoint causes of a trigger; `total` is their sum (thinker-spec 12.1)."""
    causes = [(v == "No", b) for v, b in zip(verdicts, boxless, strict=True)]
    counts = {
        "no_only": causes.count((True, False)),
        "nobox_only": causes.count((False, True)),
        "both": causes.count((True, True)),
    }
    return counts | {"total": sum(counts.values())}


def evaluation_record(
    identity: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    suites: Mapping[str, Sequence[str]],
    panels: Mapping[str, Sequence[Rows]],
) -> dict[str, Any]:
    """The whole record: `identity` (arm, seed, run, checkpoint_sha256), engine settings, panels and totals.

    `panels` maps names to completions and grades, each in panel order; the record keeps its order. Raises `UserError`
    when a suite names a panel that is missing, or when panels were graded by different versions.
    """
    graders = {row["grader"] for _, grades in panels.values() for row in grades}
    if len(graders) != 1:
        raise UserError(f"grades: grader: one version expected, found {sorted(graders)}")
    records = {name: panel_record(*rows) for name, rows in panels.items()}
    return {
        **identity,
        "grader": graders.pop(),
        "eval": dict(evaluation),
        "panels": records,
        "totals": {total: suite_total(records, suites, suite) for total, suite in TOTALS.items()},
    }


def suite_total(
    records: Mapping[str, Mapping[str, Any]], suites: Mapping[str, Sequence[str]], suite: str
) -> dict[str, int]:
    """Items and correct answers of a suite of panels; raises `UserError` naming the suite and what is missing."""
    if suite not in suites:
        raise UserError(f"settings: suites: has no suite {suite!r}")
    if missing := [name for name in suites[suite] if name not in records]:
        raise UserError(f"settings: suites: {suite}: no grades for panel {missing[0]}")
    return {key: sum(records[name][key] for name in suites[suite]) for key in ("n", "correct")}


def panel_order(suites: Mapping[str, Sequence[str]], graded: Sequence[str]) -> list[str]:
    """The panels of suite `all6` in its order, then every further graded panel by name."""
    first = list(suites.get("all6", []))
    return first + sorted(set(graded) - set(first))


def regrade_counts(record: Mapping[str, Any], golds: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Rebuild every panel's n and correct from `per_item_extracted` and the gold answers alone (thinker-spec 15, C33).

    `golds` maps identities to gold answers; raises `UserError` naming the panel when an identity has none.
    """
    counts = {}
    with Grader() as grader:
        for name, panel in record["panels"].items():
            items = list(zip(panel["per_item_sha1"], panel["per_item_extracted"], strict=True))
            if unknown := [identity for identity, _ in items if identity not in golds]:
                raise UserError(f"panel {name}: no gold answer for question {unknown[0]}")
            outcomes = [grader.grade_answer(extracted, golds[identity])[0] for identity, extracted in items]
            counts[name] = {"n": len(items), "correct": outcomes.count("correct")}
    return counts
