"""Pairs, masks and decontaminated counts."""

from copy import deepcopy

import numpy as np
import pytest

from dosematch.errors import UserError
from dosematch.statistics.paired import Items, cluster_differences, collect_items, compare, correctness

from .fixtures import synthetic_study as study

SEEDS, CLUSTERS = 2, 60


@pytest.fixture
def items() -> Items:
    sha1 = [f"{i:012x}" for i in range(CLUSTERS)]
    sha1[45] = sha1[5]  # one question in both panels
    return Items(np.array(["p"] * 30 + ["q"] * 30), np.array(sha1))


@pytest.fixture
def arms() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.random((SEEDS, CLUSTERS)) < 0.6, rng.random((SEEDS, CLUSTERS)) < 0.4


def test_removing_identities_takes_them_from_every_seed_and_panel(items: Items, arms: tuple) -> None:
    full = items.keep(["p", "q"])
    clean = items.keep(["p", "q"], [items.sha1_12[5], items.sha1_12[20]])
    assert np.flatnonzero(full & ~clean).tolist() == [5, 20, 45]
    assert compare(*arms, full).n - compare(*arms, clean).n == SEEDS * 3


def test_wins_and_losses_are_recounted_on_the_kept_items(items: Items, arms: tuple) -> None:
    keep = items.keep(["p", "q"], [items.sha1_12[5]])
    counts = compare(*arms, keep)
    pairs = [(arms[0][s, c], arms[1][s, c]) for s in range(SEEDS) for c in range(CLUSTERS) if c not in (5, 45)]
    assert counts.wins == sum(bool(a and not b) for a, b in pairs)
    assert counts.losses == sum(bool(b and not a) for a, b in pairs)
    assert counts.net == sum(int(a) - int(b) for a, b in pairs)
    assert counts.pp == pytest.approx(100 * counts.net / len(pairs))


def test_removing_nothing_changes_nothing(items: Items, arms: tuple) -> None:
    assert compare(*arms, items.keep(["p"])) == compare(*arms, items.keep(["p"], ["not an identity"]))


def test_other_panels_do_not_count(items: Items) -> None:
    assert np.flatnonzero(items.keep(["q"])).tolist() == list(range(30, 60))


def test_cluster_differences_sum_the_seeds(items: Items, arms: tuple) -> None:
    keep = items.keep(["p", "q"])
    differences = cluster_differences(*arms, keep)
    assert differences.shape == (CLUSTERS,)
    assert differences.sum() == compare(*arms, keep).net
    assert set(differences.tolist()) <= {-2, -1, 0, 1, 2}


def test_the_pooled_difference_is_the_mean_of_the_cluster_means(items: Items, arms: tuple) -> None:
    """Every cluster has one answer per seed, so both estimands are one; they differ for clusters of other sizes."""
    keep = items.keep(["p"])
    seeds = len(arms[0])
    cluster_means = cluster_differences(*arms, keep) / seeds
    assert compare(*arms, keep).pp == pytest.approx(100 * cluster_means.mean())


def test_items_follow_the_panel_order_of_the_evaluations() -> None:
    evaluations = study.evaluations()
    items = collect_items(evaluations, ["ext240", "val350"])
    assert items.panel.tolist() == ["ext240"] * 24 + ["val350"] * 35
    assert items.sha1_12[24] == evaluations[0]["panels"]["val350"]["per_item_sha1"][0]
    right = correctness(evaluations[3], ["ext240", "val350"])
    assert right[:24].tolist() == evaluations[3]["panels"]["ext240"]["per_item_correct"]


def test_evaluations_of_other_questions_are_refused() -> None:
    evaluations = deepcopy(study.evaluations())
    evaluations[2]["panels"]["sec500"]["per_item_sha1"][4] = "0" * 12
    with pytest.raises(UserError, match=r"arm std_rlvr_cont seed 102: panels.sec500.per_item_sha1 differs"):
        collect_items(evaluations, ["val350", "sec500"])


def test_a_missing_panel_is_refused() -> None:
    evaluations = deepcopy(study.evaluations())
    del evaluations[1]["panels"]["ext240"]
    with pytest.raises(UserError, match=r"arm parent_step100 seed 42: panels.ext240 is missing"):
        collect_items(evaluations, ["ext240"])


def test_no_evaluation_is_refused() -> None:
    with pytest.raises(UserError, match="none given"):
        collect_items([], ["ext240"])
