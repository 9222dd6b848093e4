import pytest
from hypothesis import given
from hypothesis import strategies as st

from dosematch.errors import UserError
from dosematch.identity import sha1_12
from dosematch.questions.question import Question
from dosematch.streams import build_stream

TEXTS = st.lists(st.integers(0, 60).map("question {}".format), max_size=60)


def questions(texts: list[str]) -> list[Question]:
    return [Question(id=text, text=text, answer="0", source="s") for text in texts]


def hashes(texts: list[str]) -> frozenset[str]:
    return frozenset(map(sha1_12, texts))


@given(st.integers(0, 2**32), st.integers(1, 20), TEXTS, TEXTS, TEXTS, TEXTS)
def test_any_stream_is_refused_or_alternates_without_repeats_parents_or_dropped_questions(
    seed, n_steps, stencil, pool, parent, panels
):
    for blocked in (None, hashes(panels)):
        try:
            stream = build_stream(seed, n_steps, questions(stencil), questions(pool), hashes(parent), blocked)
        except UserError:
            continue
        taken = [item.sha1_12 for item in stream.items]
        assert len(taken) == len(set(taken)) == n_steps
        assert [item.source for item in stream.items] == (["stencil", "pool"] * n_steps)[:n_steps]
        assert not set(taken) & (hashes(parent) | (blocked or frozenset()))
        assert all(
            item.question == {"stencil": stencil, "pool": pool}[item.source][item.index] for item in stream.items
        )
        assert set(stream.dropped) <= (blocked or frozenset())


@given(st.integers(0, 2**32), st.integers(1, 20), st.sets(st.integers(0, 99)), st.sets(st.integers(0, 99)))
def test_distinct_questions_are_refused_only_when_too_few_are_left(seed, n_steps, stencil_blocked, pool_blocked):
    stencil, pool = [f"stencil {i}" for i in range(30)], [f"pool {i}" for i in range(30)]
    blocked = hashes([f"stencil {i}" for i in stencil_blocked] + [f"pool {i}" for i in pool_blocked])
    enough = len(hashes(stencil) - blocked) >= (n_steps + 1) // 2 and len(hashes(pool) - blocked) >= n_steps // 2
    arguments = (seed, n_steps, questions(stencil), questions(pool), frozenset(), blocked)
    if not enough:
        with pytest.raises(UserError):
            build_stream(*arguments)
        return
    clean = build_stream(*arguments)
    study = build_stream(*arguments[:-1])
    assert len(clean.items) == len(study.items) == n_steps
    assert clean == build_stream(*arguments)
    kept = {item.sha1_12 for item in study.items} - blocked
    assert kept <= {item.sha1_12 for item in clean.items}
