"""Question-cluster bootstrap: limits, pairing of seeds, reproducibility, two independent implementations."""

import numpy as np
import pytest
from arch.bootstrap import IIDBootstrap
from scipy import stats

from dosematch.statistics import bootstrap
from dosematch.statistics.bootstrap import bootstrap_sums, cluster_weights, percentile_intervals

RESAMPLES = 4000
# Each limit of 4,000 resamples has a Monte Carlo error of about sqrt(0.025 * 0.975 / 4000) / density(limit) = 0.042
# standard errors of the statistic; two independent implementations then differ by 0.06, and 0.3 is five times that.
MONTE_CARLO = 0.3


@pytest.fixture(scope="module")
def differences() -> np.ndarray:
    rng = np.random.default_rng(3)
    return rng.choice([-2, -1, 0, 1, 2], p=[0.02, 0.08, 0.75, 0.1, 0.05], size=(2, 300))


def intervals(differences: np.ndarray, rng_seed: int = 0) -> np.ndarray:
    return percentile_intervals(np.atleast_2d(differences), 2, RESAMPLES, rng_seed, 0.95)


def test_identical_arms_give_zero() -> None:
    assert intervals(np.zeros((1, 50), dtype=int)).tolist() == [[0.0, 0.0]]


def test_right_everywhere_against_wrong_everywhere_gives_a_hundred() -> None:
    assert intervals(np.full((1, 50), 2)).tolist() == [[100.0, 100.0]]


def test_the_seed_fixes_the_result_and_another_seed_changes_it(differences: np.ndarray) -> None:
    assert np.array_equal(intervals(differences, 7), intervals(differences, 7))
    assert not np.array_equal(bootstrap_sums(differences, 50, 7), bootstrap_sums(differences, 50, 8))


def test_contrasts_share_their_resamples(differences: np.ndarray) -> None:
    together = bootstrap_sums(np.vstack([differences, differences.sum(axis=0)]), 200, 0)
    assert np.array_equal(together[:, 0] + together[:, 1], together[:, 2])
    assert np.array_equal(together[:, :1], bootstrap_sums(differences[:1], 200, 0))


def test_weights_draw_as_many_clusters_as_there_are() -> None:
    weights = np.concatenate(list(cluster_weights(37, 500, 0)))
    assert weights.shape == (500, 37)
    assert (weights.sum(axis=1) == 37).all()
    assert abs(weights.mean(axis=0) - 1).max() < 0.25  # 5.5 standard errors of 1/sqrt(500)


def test_chunks_do_not_change_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(cluster_weights(37, 101, 5)))
    monkeypatch.setattr(bootstrap, "CHUNK_ELEMENTS", 37 * 7)
    parts = list(cluster_weights(37, 101, 5))
    assert len(parts) == 15
    assert np.array_equal(np.concatenate(parts), whole)


def test_sums_are_exact_whole_numbers(differences: np.ndarray) -> None:
    large = differences.astype(np.int64) * 1_000_003  # beyond what float32 holds
    weights = np.concatenate(list(cluster_weights(300, 40, 0)))
    assert np.array_equal(bootstrap_sums(large, 40, 0).astype(np.int64), weights @ large.T)


def test_agrees_with_scipy(differences: np.ndarray) -> None:
    for row, (low, high) in zip(differences, intervals(differences), strict=True):
        other = stats.bootstrap(
            (row,),
            lambda sample, axis: 50 * sample.mean(axis=axis),
            n_resamples=RESAMPLES,
            method="percentile",
            batch=200,
            rng=np.random.default_rng(11),
        )
        tolerance = MONTE_CARLO * other.standard_error
        assert low == pytest.approx(other.confidence_interval.low, abs=tolerance)
        assert high == pytest.approx(other.confidence_interval.high, abs=tolerance)


def test_agrees_with_arch(differences: np.ndarray) -> None:
    row = differences[0].astype(float)
    other = IIDBootstrap(row, seed=11)
    low, high = other.conf_int(lambda sample: 50 * sample.mean(), RESAMPLES, method="percentile").ravel()
    tolerance = MONTE_CARLO * 50 * row.std() / np.sqrt(len(row))
    assert intervals(differences)[0] == pytest.approx([low, high], abs=tolerance)


def test_seeds_of_a_question_travel_together() -> None:
    per_seed = np.random.default_rng(0).choice([-1, 0, 1], p=[0.2, 0.5, 0.3], size=400)
    both = np.stack([per_seed, per_seed])  # fully correlated seeds: the second one adds no information
    low, high = percentile_intervals(both.sum(axis=0)[None], 2, RESAMPLES, 0, 0.95)[0]
    loose_low, loose_high = percentile_intervals(both.reshape(1, -1), 1, RESAMPLES, 0, 0.95)[0]
    assert (high - low) / (loose_high - loose_low) == pytest.approx(np.sqrt(2), rel=0.1)


def test_no_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one cluster"):
        bootstrap_sums(np.zeros((1, 0), dtype=int), 10, 0)
