"""Hostile completions: an outcome for every one, within the worker's limits, and the next answer is still graded."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dosematch.grading import CPU_SECONDS, MEMORY_BYTES, OUTCOMES, Grader
from dosematch.hostile import hostile_completions, kinds

ORDINARY = iter(range(1, 1_000_000))


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader() as grader:
        yield grader


def still_works(grader: Grader) -> bool:
    """A fresh ordinary pair, which only the worker can decide, is graded right both ways."""
    n = next(ORDINARY)
    return (
        grader.grade(rf"\boxed{{x+{n}}}", f"{n}+x").correct and not grader.grade(rf"\boxed{{x+{n}}}", f"x-{n}").correct
    )


def test_there_are_many_of_many_kinds() -> None:
    completions = hostile_completions()
    assert len(completions) >= 200
    assert len(kinds(completions)) >= 10
    assert sum(kinds(completions).values()) == len(completions)
    assert max(map(len, completions.values())) >= 1_000_000


@pytest.mark.parametrize("part", range(4))
def test_no_hostile_answer_outlives_its_limits_or_takes_the_pool_down(tmp_path: Path, part: int) -> None:
    path = tmp_path / "was-here"
    with Grader(time_limit=0.3) as grader:
        assert still_works(grader)
        process = grader._mathematics.process
        for name, text in islice(hostile_completions(str(path)).items(), part, None, 8):
            grader.last_cost = None
            grade = grader.grade(text, "25")
            assert grade.outcome in OUTCOMES, name
            if grader.last_cost:
                assert grader.last_cost.peak_bytes < MEMORY_BYTES, name
                assert grader.last_cost.cpu_seconds < 2 * 0.3, name  # of computing: the same on a busy machine
        assert still_works(grader)
        assert grader._mathematics.process is process  # no answer has cost a restart
    assert not path.exists()


@pytest.mark.parametrize("gold", ["9" * 2000, "(" * 300, r"\text{" * 300, "9^{9^{9^{9}}}", "\ud800", "x" * 1_000_000])
def test_a_hostile_gold_answer_never_makes_an_answer_correct(grader: Grader, gold: str) -> None:
    assert grader.grade(r"\boxed{x+1}", gold).outcome != "correct"
    assert still_works(grader)


PIECES = st.sampled_from(
    [
        "{",
        "}",
        "(",
        ")",
        "^",
        "_",
        "!",
        r"\frac",
        r"\sqrt",
        r"\sum",
        r"\int",
        r"\binom",
        r"\boxed",
        r"\left(",
        r"\right)",
        "\\",
        "9",
        "99999",
        "x",
        "+",
        "-",
        ",",
        "=",
        r"\infty",
        r"\{",
        r"\}",
        "&",
        r"\\",
        "٣",
        "\x00",
        "\ud800",
        "__import__('os')",
        " ",
    ]
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(PIECES, max_size=30), repeats=st.integers(1, 40))
def test_any_soup_gets_an_outcome_within_limits(grader: Grader, pieces: list[str], repeats: int) -> None:
    grader.last_cost = None
    grade = grader.grade(rf"\boxed{{{''.join(pieces) * repeats}}}", "x+25")
    assert grade.outcome in OUTCOMES
    if grader.last_cost:
        assert grader.last_cost.cpu_seconds < 2 * CPU_SECONDS
        assert grader.last_cost.peak_bytes < MEMORY_BYTES


SIDES = st.sampled_from(
    [
        "5",
        "x+1",
        "1+x",
        r"\frac{1}{2}",
        "0.5",
        "50\\%",
        r"\{1,2\}",
        r"\{2,1\}",
        "(1,2)",
        "(2,1)",
        "[1,2)",
        r"\pm 3",
        "-3,3",
        "x=5",
        "y=2x+1",
        r"\sqrt{12}",
        r"2\sqrt{3}",
        r"\text{even}",
        "EVEN",
        "12:00",
        "101_2",
        r"90^\circ",
        "90",
        r"12\text{ cm}",
        "12",
        "i",
        "C",
    ]
)


@settings(deadline=None, max_examples=100)
@given(one=SIDES, other=SIDES)
def test_grading_is_symmetric_and_reflexive(grader: Grader, one: str, other: str) -> None:
    assert grader.grade_answer(one, one)[0] == "correct"
    assert grader.grade_answer(one, other) == grader.grade_answer(other, one)


@settings(deadline=None, max_examples=8)
@given(pairs=st.lists(st.tuples(SIDES, SIDES), min_size=2, max_size=8), order=st.randoms(use_true_random=False))
def test_grading_is_idempotent_and_free_of_order(grader: Grader, pairs: list[tuple[str, str]], order) -> None:
    wanted = [grader.grade_answer(*pair) for pair in pairs]
    mixed = list(enumerate(pairs))
    order.shuffle(mixed)
    with Grader() as fresh:  # no remembered verdicts, another order
        found = {index: fresh.grade_answer(*pair) for index, pair in mixed}
    assert [found[index] for index in range(len(pairs))] == wanted
