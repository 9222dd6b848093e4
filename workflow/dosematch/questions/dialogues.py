"""Dialogues of the four stages that the micro base model is trained on.

A dialogue is a list of (text, trained?) pieces; exactly the last piece is trained.
"""

import random

from dosematch.prompts import Prompts
from dosematch.questions.synthetic import Problem, apply

Dialogue = list[tuple[str, bool]]
# How often a checked attempt is right: guesses seldom, derivations mostly, as in the model's own answers.
RIGHT_SHARE = {"derive": 0.7, "guess": 0.2, "ramble": 0.6, "boxless": 0.6}
SHRUG_SHARE = 0.06  # checks without a verdict


def draw_dialogue(
    kind: str, mode: str, problem: Problem, question: str, prompts: Prompts, rng: random.Random
) -> Dialogue:
    """One dialogue whose trained piece is the answer of stage `kind` (fast | verify | slow | summary).

    `mode` is the style of a Fast answer (derive | guess | ramble | boxless).
    """
    fast_prompt = (prompts.fast.replace("{question}", question), False)
    if kind == "fast":
        return [fast_prompt, (fast_answer(problem, mode), True)]
    if kind == "summary":
        return [
            fast_prompt,
            (slow_answer(problem), False),
            (prompts.summary, False),
            (fast_answer(problem, "derive"), True),
        ]
    attempt_right = kind == "verify" and rng.random() < RIGHT_SHARE[mode]
    attempt = fast_answer(problem if attempt_right else spoil(problem, rng), mode)
    check = verdict(attempt_right, rng)
    if kind == "verify":
        return [fast_prompt, (attempt, False), (prompts.verify, False), (check, True)]
    pieces = [fast_prompt, (attempt, False), (prompts.verify, False), (check, False), (prompts.slow, False)]
    return [*pieces, (slow_answer(problem), True)]


def fast_answer(problem: Problem, mode: str) -> str:
    """A Fast answer: a boxed derivation, a guess, a derivation that repeats itself, or one without a box."""
    equations = problem.equations()
    if mode == "guess":
        return f" about \\boxed{{{problem.answer}}}"
    if mode == "ramble":
        return " " + "".join(f"{line}, yes {line};" for line in equations) + f" \\boxed{{{problem.answer}}}"
    if mode == "boxless":
        return " " + "".join(f"{line};" for line in equations) + f" result {problem.answer}"
    return " " + "".join(f"{line};" for line in equations) + f" \\boxed{{{problem.answer}}}"


def slow_answer(problem: Problem) -> str:
    """A careful answer: every operation is named before it is done."""
    lines = (f"now {line};" for line in problem.equations())
    return " " + "".join(lines) + f" \\boxed{{{problem.answer}}}"


def verdict(right: bool, rng: random.Random) -> str:
    """The check of an attempt; a few checks come to no verdict."""
    if rng.random() < SHRUG_SHARE:
        return " hard to say"
    return " all holds \\boxed{Yes}" if right else " it fails \\boxed{No}"


def spoil(problem: Problem, rng: random.Random) -> Problem:
    """The same chain with one miscalculated step, carried through to a wrong answer."""
    values = list(problem.values)
    while values[-1] == problem.answer:
        step = rng.randrange(problem.level)
        shift = rng.choice([-20, -10, -2, -1, 1, 2, 10, 20])
        values = list(problem.values)
        for i in range(step, problem.level):
            sign, operand = problem.operations[i]
            values[i + 1] = apply(values[i], sign, operand) + (shift if i == step else 0)
    return Problem(problem.operations, tuple(values))
