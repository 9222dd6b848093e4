"""Synthetic arithmetic: chains of one to five operations in plain words, with worked derivations.

A level is the number of operations; operands grow with it. Values stay between 0 and 99, so that a model of a million
parameters can learn the steps in minutes and still fails more often the longer the chain.
"""

import random
from dataclasses import dataclass
from itertools import pairwise

from dosematch.errors import UserError
from dosematch.identity import sha1_12
from dosematch.questions.question import Question

WORDS = {"+": "add", "-": "minus", "*": "times"}
PHRASES = {
    "chain": "Start at {start}, {steps}. What is the result?",
    "hard": "Start at {start}, {steps}. What is the result?",
    "short": "Tom has {start}: {steps}. How many now?",
}
LARGEST_VALUE = 99
MAX_DRAWS_PER_QUESTION = 1000


@dataclass(frozen=True)
class Problem:
    """A chain of operations; `values` are the running results, the start included."""

    operations: tuple[tuple[str, int], ...]
    values: tuple[int, ...]

    @property
    def answer(self) -> int:
        """The last running result."""
        return self.values[-1]

    @property
    def level(self) -> int:
        """The number of operations."""
        return len(self.operations)

    def text(self, source: str) -> str:
        """The question in the words of `source`."""
        steps = ", ".join(f"{WORDS[sign]} {operand}" for sign, operand in self.operations)
        return PHRASES[source].format(start=self.values[0], steps=steps)

    def equations(self) -> list[str]:
        """Every step as `before sign operand = after`."""
        return [
            f"{before}{sign}{operand}={after}"
            for (sign, operand), (before, after) in zip(self.operations, pairwise(self.values), strict=True)
        ]


def draw_problem(rng: random.Random, level: int) -> Problem:
    """Draw one problem with `level` operations whose running results stay in [0, 99]."""
    values = [rng.randint(2, 99)]
    operations: list[tuple[str, int]] = []
    for _ in range(level):
        sign, operand = rng.choice(_operations(values[-1], level, rng))
        operations.append((sign, operand))
        values.append(apply(values[-1], sign, operand))
    return Problem(tuple(operations), tuple(values))


def apply(value: int, sign: str, operand: int) -> int:
    """The result of one operation."""
    return {"+": value + operand, "-": value - operand, "*": value * operand}[sign]


def reserved(identity: str) -> bool:
    """Whether a question is for panels and streams: half of all are, by the parity of their SHA-1.

    The micro base is trained on the other half only, so no panel of any scale can hold a question it has seen.
    """
    return int(identity[-1], 16) % 2 == 0


def _operations(value: int, level: int, rng: random.Random) -> list[tuple[str, int]]:
    """One candidate per sign that keeps the running result in range; adding is always possible or subtracting is."""
    step, factor = rng.randint(2, 10 * level), rng.randint(2, 2 + level)
    candidates = [("+", step), ("-", step), ("*", factor)]
    allowed = [(sign, n) for sign, n in candidates if 0 <= apply(value, sign, n) <= LARGEST_VALUE]
    return allowed or [("+", 1) if value < LARGEST_VALUE else ("-", 1)]


def synthetic_questions(
    source: str, n: int, seed: int, level_weights: dict[int, float], exclude: set[str]
) -> list[Question]:
    """Draw `n` reserved questions with distinct texts, none of whose SHA-1 identities is in `exclude`.

    The same arguments give the same questions. Raises `UserError` when the source is unknown or runs out of questions.
    """
    if source not in PHRASES:
        raise UserError(f"questions: unknown synthetic source {source!r} (known: {', '.join(sorted(PHRASES))})")
    rng = random.Random(f"{source}/{seed}")
    levels, weights = zip(*sorted(level_weights.items()), strict=True)
    seen = set(exclude)
    questions: list[Question] = []
    for _ in range(MAX_DRAWS_PER_QUESTION * n):
        if len(questions) == n:
            break
        problem = draw_problem(rng, rng.choices(levels, weights)[0])
        text = problem.text(source)
        identity = sha1_12(text)
        if identity in seen or not reserved(identity):
            continue
        seen.add(identity)
        questions.append(
            Question(
                id=f"{source}/{identity}", text=text, answer=str(problem.answer), source=source, level=problem.level
            )
        )
    if len(questions) < n:
        raise UserError(f"questions: source {source!r} has no {n} distinct questions at levels {list(levels)}")
    return questions
