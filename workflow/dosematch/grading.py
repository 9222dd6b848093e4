"""Grades answers: by text and exact fractions here, by mathematics in a process that can be killed (thinker-spec 4).

Model text is never evaluated in this process, which imports neither sympy nor math-verify.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal, Self, cast, get_args

from dosematch.answers import extract_answer, normalise, plain_number, split_unit
from dosematch.errors import UserError
from dosematch.math_process import Cost, MathProcess
from dosematch.questions.question import Question

Outcome = Literal["correct", "wrong", "no_answer", "unparsable", "timeout", "error"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)
Extraction = Literal["boxed", "fallback", "none"]
EXTRACTIONS: tuple[str, ...] = get_args(Extraction)
GRADER_VERSION = f"dosematch-grader 2, math-verify {version('math-verify')}"
MAX_ANSWER_CHARS = 1000
CPU_SECONDS = 1.0
WALL_SECONDS = 20.0  # CPU time decides, so that a busy machine turns no verdict into a timeout
MEMORY_BYTES = 230_000_000  # with the process that it is forked from below 300 MB
# Answers that only equal themselves: prose, times and ratios, numbers in a base (math-verify ignores the base).
WORDS = re.compile(r"[A-Za-z]{3,}(?:[ '-][A-Za-z]+)*|[A-Za-z]+(?: [A-Za-z]{2,})+")
TIME_OR_RATIO = re.compile(r"[0-9]+(?::[0-9]+)+")
BASED_NUMBER = re.compile(r"[0-9A-Za-z]+_(?:[0-9]|\{[0-9]+\})")


@dataclass(frozen=True)
class Grade:
    """Result for one completion; `strict` says that normalised text alone made it correct.

    Outcomes: correct, wrong, no_answer (nothing extracted), unparsable (no or too large mathematics in the answer),
    timeout (over the time or memory limit), error (the grader itself failed, for instance on the gold answer).
    """

    extracted: str | None
    has_box: bool
    outcome: Outcome
    strict: bool

    @property
    def correct(self) -> bool:
        """Whether the outcome is correct."""
        return self.outcome == "correct"

    @property
    def extraction(self) -> Extraction:
        """Where the answer stood: in a box, where the fallback for boxless text found it, or nowhere."""
        if self.extracted is None:
            return "none"
        return "boxed" if self.has_box else "fallback"


class Grader:
    """Grades completions; start it in a `with` block, which ends the worker process.

    The worker starts at the first answer that text and fractions cannot decide. Verdicts are remembered by (answer,
    gold). Safe to call from several threads.
    """

    def __init__(self, time_limit: float = CPU_SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
        """Limit a comparison to `time_limit` seconds of computing and the worker to `memory_bytes` of address space."""
        self._mathematics = MathProcess(time_limit, max(WALL_SECONDS, 4 * time_limit), memory_bytes)
        self.last_cost: Cost | None = None  # of the last new answer, None where text decided; for measurements
        self._verdicts: dict[tuple[str, str], tuple[Outcome, bool]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def grade(self, text: str, gold: str) -> Grade:
        """Grade the answer in a completion against the gold answer (thinker-spec 4)."""
        extracted, has_box = extract_answer(text)
        return Grade(extracted, has_box, *self.grade_answer(extracted, gold))

    def grade_many(self, pairs: Iterable[tuple[str, str]]) -> list[Grade]:
        """Grade (completion, gold) pairs in order, one result each."""
        return [self.grade(text, gold) for text, gold in pairs]

    def grade_answer(self, extracted: str | None, gold: str) -> tuple[Outcome, bool]:
        """(outcome, strict) of an extracted answer."""
        if extracted is None:
            return "no_answer", False
        key = (extracted, gold)
        if key not in self._verdicts:
            self.last_cost = None
            self._verdicts[key] = compare_as_text(extracted, gold) or (self._compare_as_mathematics(*key), False)
        return self._verdicts[key]

    def close(self) -> None:
        """End the worker process, if there is one."""
        self._mathematics.close()

    def _compare_as_mathematics(self, extracted: str, gold: str) -> Outcome:
        self.last_cost = self._mathematics.compare(split_unit(extracted)[0], split_unit(gold)[0])
        return cast(Outcome, self.last_cost.outcome)


def compare_as_text(extracted: str, gold: str) -> tuple[Outcome, bool] | None:
    """(outcome, strict) where normalised text, exact fractions or units decide; None where mathematics must."""
    if len(extracted) > MAX_ANSWER_CHARS:
        return "unparsable", False
    if len(gold) > MAX_ANSWER_CHARS:
        return "error", False
    answer = normalise(extracted)
    if not answer:
        return "no_answer", False
    if answer == normalise(gold):
        return "correct", True
    (value, unit), (gold_value, gold_unit) = split_unit(extracted), split_unit(gold)
    if unit and gold_unit and unit != gold_unit:
        return "wrong", False
    number, gold_number = plain_number(value), plain_number(gold_value)
    if number is not None and gold_number is not None:
        return "correct" if number == gold_number else "wrong", False
    if value == gold_value or (WORDS.fullmatch(value) and value.casefold() == gold_value.casefold()):
        return "correct", False
    sides = (value, gold_value)
    if any(map(TIME_OR_RATIO.fullmatch, sides)) or all(map(WORDS.fullmatch, sides)):
        return "wrong", False
    return ("wrong", False) if all(map(BASED_NUMBER.fullmatch, sides)) else None


def check_golds(questions: Iterable[Question]) -> None:
    """Raise `UserError` naming the first question whose gold answer, boxed, does not grade correct against itself."""
    with Grader() as grader:
        for question in questions:
            gold = question.answer
            grade = grader.grade(rf"\boxed{{{gold}}}", gold)
            if not grade.correct:
                raise UserError(f"question {question.id}: answer {gold!r} grades {grade.outcome} against itself")
