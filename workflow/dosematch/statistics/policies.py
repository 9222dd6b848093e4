"""Totals under four policies for panel questions that were trained on: a sensitivity analysis beside the claims."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dosematch.statistics.mcnemar import exact_p
from dosematch.statistics.paired import Bools, Items
from dosematch.statistics.settings import StudySettings

POLICIES = {
    "keep": "every item counts",
    "drop_pair": "an exposed item leaves the seed whose stream held it",
    "drop_both": "an exposed item leaves all seeds: the decontaminated counts of the study",
    "drop_near": "so does an item that the normalised, 8-gram or 13-gram detector finds",
}
# The number template is reported only: questions from one generator share their template without being copies.
DROPPED_AS_NEAR = frozenset({"normalised", "8gram", "13gram"})


def policy_totals(
    correct: Mapping[str, Mapping[int, Bools]], items: Items, ancestry: Mapping[str, Any], settings: StudySettings
) -> dict[str, Any]:
    """Counts and contrasts of every suite under every policy of `POLICIES`.

    Returns `{policy: {arms: {arm: {suite: {correct, n}}}, contrasts: [{a, b, label, suite, net, n, wins, losses,
    p_exact}]}}`; `correct` is `{arm: {seed: bool [clusters]}}`. An audit without `near_duplicates` has no `drop_near`.
    """
    totals = {}
    for policy, removed in _removed(ancestry, settings.seeds).items():
        keep = {
            suite: {seed: items.keep(panels, removed[seed]) for seed in settings.seeds}
            for suite, panels in settings.suites.items()
        }
        totals[policy] = {
            "arms": {
                arm: {suite: _count(by_seed, keep[suite]) for suite in settings.suites}
                for arm, by_seed in correct.items()
            },
            "contrasts": [
                {"a": contrast.a, "b": contrast.b, "label": contrast.label, "suite": suite}
                | _compare(correct[contrast.a], correct[contrast.b], keep[suite])
                for contrast in settings.contrasts
                for suite in settings.suite_order
            ],
        }
    return totals


def _removed(ancestry: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, dict[int, set[str]]]:
    """The identities that each policy removes from each seed."""
    exposed = ancestry["exposed"]
    own = {seed: {entry["sha1_12"] for entry in exposed if entry["train_seed"] == seed} for seed in seeds}
    everywhere = {entry["sha1_12"] for entry in exposed}
    removed = {
        "keep": {seed: set() for seed in seeds},
        "drop_pair": own,
        "drop_both": dict.fromkeys(seeds, everywhere),
    }
    if "near_duplicates" in ancestry:
        matches = ancestry["near_duplicates"]["matches"]
        near = {match["sha1_12"] for match in matches if DROPPED_AS_NEAR & match["steps"].keys()}
        removed["drop_near"] = dict.fromkeys(seeds, everywhere | near)
    return removed


def _count(by_seed: Mapping[int, Bools], keep: Mapping[int, Bools]) -> dict[str, int]:
    return {
        "correct": sum(int(right[keep[seed]].sum()) for seed, right in by_seed.items()),
        "n": sum(int(keep[seed].sum()) for seed in by_seed),
    }


def _compare(a: Mapping[int, Bools], b: Mapping[int, Bools], keep: Mapping[int, Bools]) -> dict[str, Any]:
    wins = sum(int(np.sum(a[seed] & ~b[seed] & keep[seed])) for seed in keep)
    losses = sum(int(np.sum(~a[seed] & b[seed] & keep[seed])) for seed in keep)
    n = sum(int(mask.sum()) for mask in keep.values())
    return {"net": wins - losses, "n": n, "wins": wins, "losses": losses, "p_exact": exact_p(wins, losses)}
