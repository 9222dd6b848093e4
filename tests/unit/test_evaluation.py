"""Verify -> Slow without a reference (thinker-spec 12; C29, C30)."""

from itertools import product

import pytest

from dosematch.evaluation import triggers, verify_slow_rows
from dosematch.evaluation_record import confusion_matrix, trigger_counts
from dosematch.prompts import Prompts
from dosematch.questions.question import Question
from dosematch.settings import Evaluation

from ..tiny import Scripted, byte_tokenizer, completion

PROMPTS = Prompts(fast="{question}:", verify="v:", slow="s:", summary="t:")
EVALUATION = Evaluation(
    batch_size=4, max_tokens=6, verify_max_tokens=4, slow_max_tokens=5, temperature=0.0, sort="none"
)
QUESTIONS = [Question(id=f"q/{i}", text=f"q{i}", answer="3", source="test") for i in range(6)]
BOXED, BARE = r"\boxed{3}", "is 3"
CASES = list(product((r"\boxed{Yes}", r"\boxed{No}", "perhaps"), (BOXED, BARE)))


@pytest.mark.parametrize(
    ("verdict", "has_box", "triggered"),
    [
        ("Yes", True, False),
        ("Yes", False, True),
        ("No", True, True),
        ("No", False, True),
        ("Invalid", True, False),
        ("Invalid", False, True),
    ],
)
def test_slow_is_triggered_by_an_explicit_no_or_a_missing_box(verdict, has_box, triggered):
    assert triggers(verdict, has_box) is triggered


def ids(text):
    return tuple(byte_tokenizer().encode(text))


def test_every_answer_is_verified_and_only_triggered_ones_are_solved_again():
    checks, fast = [completion(check) for check, _ in CASES], [completion(text) for _, text in CASES]
    engine = Scripted(checks, [completion("so 3"), completion("so 4"), completion("so 5"), completion("6", False)])
    rows = verify_slow_rows(engine, byte_tokenizer(), PROMPTS, EVALUATION, QUESTIONS, fast)
    assert [row["verdict"] for row in rows] == ["Yes", "Yes", "No", "No", "Invalid", "Invalid"]
    assert [row["missing_fast_box"] for row in rows] == [False, True] * 3
    assert [row["triggered"] for row in rows] == [False, True, True, True, False, True]
    assert [row["slow_text"] for row in rows] == [None, "so 3", "so 4", "so 5", None, "6"]
    assert [row["slow_finish_reason"] for row in rows] == [None, "stop", "stop", "stop", None, "length"]
    verify, slow = engine.asked
    dialogues = [ids(f"q{i}:{text}v:") for i, (_, text) in enumerate(CASES)]
    assert [request.prompt_ids for request in verify] == dialogues
    assert [request.prompt_ids for request in slow] == [dialogues[i] + ids(f"{CASES[i][0]}s:") for i in (1, 2, 3, 5)]
    assert {request.max_tokens for request in verify} == {4}
    assert {request.max_tokens for request in slow} == {5}
    assert all(request.uniforms is None for request in (*verify, *slow))  # greedy


def test_without_a_trigger_nothing_is_solved_again():
    engine = Scripted([completion(r"\boxed{Yes}")] * 6, [])
    rows = verify_slow_rows(engine, byte_tokenizer(), PROMPTS, EVALUATION, QUESTIONS, [completion(BOXED)] * 6)
    assert not any(row["triggered"] for row in rows)


def test_confusion_and_triggers_count_every_item_once():
    right = [True, True, False, False, False, True]
    verdicts = ["Yes", "Yes", "No", "No", "Invalid", "Invalid"]
    boxless = [False, True] * 3
    matrix = confusion_matrix(right, verdicts, boxless)
    assert matrix == {
        "fast_right": {"yes": 2, "no": 0, "invalid": 1, "nobox": 2},
        "fast_wrong": {"yes": 0, "no": 2, "invalid": 1, "nobox": 1},
    }
    assert trigger_counts(verdicts, boxless) == {"no_only": 1, "nobox_only": 2, "both": 1, "total": 4}
