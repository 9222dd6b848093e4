"""Pairs of every kind of grading failure that was reported in public, on inputs of our own (docs/cases.md)."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dosematch.grading import Grader, check_golds
from dosematch.questions.files import read_questions

SHARED = Path(os.environ.get("DATA_DIR", "../shared/data")).parent / "cases/grading_and_training_cases.jsonl"
# kind -> (completion, or boxed content where it holds no box; gold; whether it is right)
KINDS: dict[str, list[tuple[str, str, bool]]] = {
    "nested_braces": [(r"\frac{\sqrt{7}}{3}", r"\frac{\sqrt{7}}{3}", True), ("5^{12}", "5^{21}", False)],
    "several_boxes": [
        (r"\boxed{3}, no: \boxed{8}", "8", True),
        (r"\boxed{3}, no: \boxed{8}", "3", False),
    ],
    "box_no_braces": [(r"It is $\boxed 4$", "4", True), (r"It is $\boxed 4$", "5", False)],
    "fbox": [(r"\fbox{$\frac{2}{9}$}", r"\frac{2}{9}", True)],
    "box_space_nested": [(r"\boxed  {11}", "11", True), (r"\boxed{so \boxed{6}}", "6", True)],
    "truncated_box": [(r"we get \boxed{512", "512", False), (r"\boxed{\frac{1}{2}", r"\frac{1}{2}", False)],
    "empty": [(r"\boxed{}", "0", False), (r"\boxed{ }", "0", False), (r"\boxed{$$}", "0", False)],
    "prompt_echo": [(r"I was told to use \boxed{}. Perhaps it is six.", "6", False)],
    "units": [(r"30\text{ km}", "30", True), ("30", r"30\text{ km}", True), (r"13\text{ kg}", r"31\text{ kg}", False)],
    "currency": [(r"\$27.00", "27", True), (r"\$27.50", "27", False)],
    "percent": [(r"62\%", "62", True), ("0.62", "62", False), (r"6\%", r"60\%", False)],
    "degrees": [(r"75^\circ", "75", True), (r"75^{\circ}", r"15^{\circ}", False)],
    "thousands": [("7{,}654{,}321", "7654321", True), ("2,4,6", "246", False), ("65,43", "6543", False)],
    "mixed_number": [
        (r"2\frac{3}{4}", "11/4", True),
        (r"2\frac34", r"\frac{3}{2}", False),
        (r"3\frac{y}{5}", r"\frac{3y}{5}", True),
    ],
    "frac_forms": [(r"\tfrac57", "5/7", True), (r"\dfrac{5}{7}", r"\frac57", True), (r"\frac75", r"\frac57", False)],
    "decimal_forms": [(".75", "0.75", True), (r"2.5\times 10^{2}", "250", True), ("0.375", r"\frac38", True)],
    "repeating": [(r"0.\overline{6}", r"\frac23", True), ("0.6", r"0.\overline{6}", False)],
    "plus_minus": [("5", r"\pm 5", False), ("5, -5", r"\pm 5", True), (r"1-\sqrt{2}", r"1\pm\sqrt{2}", False)],
    "complex": [("-2i+7", "7-2i", True), ("7+2i", "7-2i", False), (r"\frac{2}{i}", "-2i", True)],
    "base": [("2101_{3}", "2101_3", True), ("1201_3", "2101_3", False)],
    "interval": [("(0,7]", "[0,7]", False), (r"\left[3,\infty\right)", r"[3,\infty)", True), ("[4,9]", "(4,9)", False)],
    "union": [(r"(5,6)\cup(1,2)", r"(1,2)\cup(5,6)", True), (r"(-\infty,\infty)", r"(-\infty,0)\cup(0,\infty)", False)],
    "tuple": [("(8,1)", "(1,8)", False), ("(a,b)=(6,-5)", "(6,-5)", True)],
    "set": [(r"\{9,4,7\}", r"\{4,7,9\}", True), ("4", "4, 7", False), (r"x=4\text{ or }x=7", "7, 4", True)],
    "matrix": [
        (r"\begin{bmatrix}5&6\\7&8\end{bmatrix}", r"\begin{pmatrix}5&6\\7&8\end{pmatrix}", True),
        (r"\begin{pmatrix}5&7\\6&8\end{pmatrix}", r"\begin{pmatrix}5&6\\7&8\end{pmatrix}", False),
        (r"\begin{pmatrix}5&7\\6&8\end{pmatrix}", "5", False),
    ],
    "assignment": [("n=12", "12", True), ("12", "n=12", True), ("n=-12", "n=12", False)],
    "equation": [("y=4+3x", "y=3x+4", True), ("x+y=3", "x-y=3", False), ("2x+2y=6", "y=3-x", True)],
    "inequality": [(r"t<9", r"t\leq 9", False)],
    "text": [("friday", r"\text{Friday}", True), (r"\text{odd}", r"\text{prime}", False), (r"\text{21}", "21", True)],
    "choice": [(r"\textbf{(B)}", "B", True), ("A", "B", False), (r"\boxed{\Delta S}>0, hence \boxed{A}", "A", True)],
    "time_ratio": [("2:45", "2:45", True), ("2:00", "10:00", False), ("5:4", "4:5", False)],
    "punct": [("58.", "58", True), (r"**\boxed{64}**", "64", True)],
    "unicode": [("−12", "-12", True), ("5π", r"5\pi", True), ("−4/9", r"-\frac{4}{9}", True)],
    "huge": [("7^{7^{7^{7}}}", "7", False), ("(10^{8})!", "2", False), ("18446744073709551616", "2^{64}", True)],
    "bigint": [("90000000001", "90000000000", False)],
    "approx": [("2.72", "e", False), ("1.414", r"\sqrt{2}", False)],
    "leading_zero": [("007", "7", True)],
    "algebra": [(r"\sqrt{45}", r"3\sqrt{5}", True), ("y^2+4", "(y+2)^2", False), ("z(z-1)", "z^2-z", True)],
    "text_spacing": [(r"\displaystyle \frac{3}{8} \,", r"\frac{3}{8}", True)],
    "code_injection": [("__import__('os').getcwd()", "3", False), ("(3).__class__", "3", False)],
    "answer_in_tags": [(r"<answer>\boxed{86}</answer>", "86", True)],
}


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader() as grader:
        yield grader


@pytest.mark.parametrize("kind", KINDS)
def test_kind(grader: Grader, kind: str) -> None:
    for text, gold, right in KINDS[kind]:
        completion = text if "box" in text else rf"So the result is $\boxed{{{text}}}$."
        grade = grader.grade(completion, gold)
        assert grade.correct == right, (text, gold, grade)
        assert grade.outcome not in ("timeout", "error"), (text, gold, grade)


def test_an_answer_without_a_box_is_the_fallback_and_is_counted_apart(grader: Grader) -> None:
    texts = ["The answer is 42.", r"\boxed{42}", "No idea.", r"\boxed{42", r"\boxed{}"]
    found = [grader.grade(text, "42") for text in texts]
    assert [grade.extraction for grade in found] == ["fallback", "boxed", "none", "none", "none"]
    assert [grade.correct for grade in found] == [True, True, False, False, False]


def test_public_cases_where_they_are_at_hand(grader: Grader) -> None:
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is not there")
    cases = [json.loads(line) for line in SHARED.read_text(encoding="utf-8").splitlines()]
    pairs = [case for case in cases if case["type"] == "grade_pair"]
    assert len(pairs) == 106
    differing = [
        case["id"] for case in pairs if grader.grade(case["model_output"], case["gold"]).correct != case["expected"]
    ]
    assert differing == ["dev-a-009"]  # credited by the fallback that the study's specification asks for


REAL_SETS = [
    *("math500.jsonl", "math_train_12k.jsonl.gz", "gsm8k_test.jsonl", "gsm8k_train.jsonl.gz", "amc23.jsonl"),
    *("aime_2024_2025_2026.jsonl", "commonsenseqa_dev_500.jsonl", "piqa_valid_500.jsonl", "mmlu_math_physics.jsonl"),
]


@pytest.mark.parametrize("name", REAL_SETS)
def test_every_gold_of_the_real_sets_grades_correct_against_itself(name: str) -> None:
    path = SHARED.parents[1] / "data" / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    check_golds(read_questions(path))
