"""Properties of the paired statistics for open inputs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binom

from dosematch.statistics.bootstrap import percentile_intervals
from dosematch.statistics.diagnostics import tail_weight
from dosematch.statistics.mcnemar import exact_p, format_p, holm
from dosematch.statistics.paired import Items, cluster_differences, compare

COUNTS = st.integers(0, 400)
SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 40))
PAIRS = SHAPES.flatmap(lambda shape: st.tuples(arrays(bool, shape), arrays(bool, shape)))


@given(COUNTS, COUNTS)
def test_p_is_symmetric_and_as_defined(wins: int, losses: int) -> None:
    p = exact_p(wins, losses)
    assert p == exact_p(losses, wins)
    assert p == pytest.approx(min(1.0, 2 * binom.cdf(min(wins, losses), wins + losses, 0.5)), rel=1e-9)


@given(st.floats(0, 1))
def test_printed_p_never_claims_too_little(p: float) -> None:
    text = format_p(p)
    assert p < float(text[1:]) if text.startswith("<") else abs(p - float(text)) <= 0.00005 + 1e-12


@settings(max_examples=25)
@given(st.lists(st.floats(0, 1), max_size=20))
def test_holm_keeps_order_and_bounds(p: list[float]) -> None:
    adjusted = holm(p)
    assert all(before <= after <= 1 for before, after in zip(p, adjusted, strict=True))
    ranked = sorted(range(len(p)), key=p.__getitem__)
    assert [adjusted[i] for i in ranked] == sorted(adjusted)


@given(PAIRS)
def test_swapping_the_arms_swaps_wins_and_losses(pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    keep = np.ones(a.shape[1], dtype=bool)
    forward, backward = compare(a, b, keep), compare(b, a, keep)
    assert (forward.wins, forward.losses, forward.n) == (backward.losses, backward.wins, a.size)
    assert forward.net == int(a.sum()) - int(b.sum()) == cluster_differences(a, b, keep).sum()


@given(PAIRS, st.data())
def test_decontaminated_counts_equal_counts_of_a_smaller_study(pair: tuple, data: st.DataObject) -> None:
    a, b = pair
    clusters = a.shape[1]
    sha1 = np.array(data.draw(st.lists(st.sampled_from("abcdef"), min_size=clusters, max_size=clusters)))
    removed = data.draw(st.sets(st.sampled_from("abcdef")))
    keep = Items(np.full(clusters, "p"), sha1).keep(["p"], removed)
    left = [c for c in range(clusters) if sha1[c] not in removed]
    assert compare(a, b, keep) == compare(a[:, left], b[:, left], np.ones(len(left), dtype=bool))


@settings(max_examples=30)
@given(PAIRS, st.integers(0, 2**32))
def test_interval_mirrors_when_the_arms_are_swapped(pair: tuple, rng_seed: int) -> None:
    a, b = pair
    differences = cluster_differences(a, b, np.ones(a.shape[1], dtype=bool))
    low, high = percentile_intervals(differences[None], a.shape[0], 200, rng_seed, 0.9)[0]
    mirrored = percentile_intervals(-differences[None], a.shape[0], 200, rng_seed, 0.9)[0]
    assert mirrored == pytest.approx([-high, -low], abs=1e-9)
    assert -100 <= low <= high <= 100


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 9))
def test_tail_weights_fall_with_the_step(steps: int, start: int, accumulation: int) -> None:
    start = min(start, steps)
    weights = [tail_weight(step, steps, start, accumulation) for step in range(1, steps + 1)]
    assert weights == sorted(weights, reverse=True)
    assert all(0 <= weight <= 1 for weight in weights)
