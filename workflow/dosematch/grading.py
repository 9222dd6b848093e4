"""Grades answers: by text and exact fractions here, by mathematics in a process that can be killed (thinker-spec 4).

Model text is never evaluated in this process, which imports neither sympy nor math-verify.
"""

import json
import os
import re
import select
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, get_args

from dosematch.answers import extract_answer, normalise, plain_number, split_unit
from dosematch.errors import UserError
from dosematch.questions.question import Question

if TYPE_CHECKING:  # only the worker process imports it; named here so that source digests follow it
    import dosematch.math_worker  # noqa: F401

Outcome = Literal["correct", "wrong", "no_answer", "unparsable", "timeout", "error"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)
GRADER_VERSION = f"dosematch-grader 1, math-verify {version('math-verify')}"
MAX_ANSWER_CHARS = 1000
MEMORY_BYTES = 2 << 30
STARTUP_SECONDS = 120.0  # imports on a busy machine; not part of any answer's limit
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


class Grader:
    """Grades completions; start it in a `with` block, which ends the worker process.

    The worker starts at the first answer that text and fractions cannot decide, and again after it was killed. Verdicts
    are remembered by (answer, gold). Safe to call from several threads.
    """

    def __init__(self, time_limit: float = 2.0, memory_bytes: int = MEMORY_BYTES) -> None:
        """Limit one comparison to `time_limit` wall-clock seconds and the worker to `memory_bytes` of address space."""
        self.time_limit = time_limit
        self.memory_bytes = memory_bytes
        self._verdicts: dict[tuple[str, str], tuple[Outcome, bool]] = {}
        self._worker: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

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
            self._verdicts[key] = compare_as_text(extracted, gold) or (self._compare_as_mathematics(*key), False)
        return self._verdicts[key]

    def close(self) -> None:
        """End the worker process, if there is one."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.communicate()
            self._worker = None

    def _compare_as_mathematics(self, extracted: str, gold: str) -> Outcome:
        request = {"answer": split_unit(extracted)[0], "gold": split_unit(gold)[0]}
        with self._lock:
            worker = self._running_worker()
            assert worker.stdin is not None
            try:
                worker.stdin.write(json.dumps(request).encode() + b"\n")
            except BrokenPipeError:
                self.close()
                return "error"
            return self._answer_within(self.time_limit)

    def _running_worker(self) -> subprocess.Popen[bytes]:
        if self._worker is not None and self._worker.poll() is None:
            return self._worker
        self.close()
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "dosematch.math_worker", str(self.memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        )
        if self._answer_within(STARTUP_SECONDS) != "correct":
            raise UserError(f"grader: the worker does not start under a memory limit of {self.memory_bytes} bytes")
        return self._worker

    def _answer_within(self, seconds: float) -> Outcome:
        """The worker's one-line reply; a silent or dead worker is killed, and the next request starts a new one."""
        assert self._worker is not None and self._worker.stdout is not None
        poller = select.poll()
        poller.register(self._worker.stdout, select.POLLIN)
        line = self._worker.stdout.readline() if poller.poll(1000 * seconds) else None
        if line:
            return json.loads(line)["outcome"]
        self.close()
        return "timeout" if line is None else "error"


def compare_as_text(extracted: str, gold: str) -> tuple[Outcome, bool] | None:
    """(outcome, strict) where normalised text, exact fractions or units decide; None where mathematics must."""
    if len(extracted) > MAX_ANSWER_CHARS:
        return "unparsable", False
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
