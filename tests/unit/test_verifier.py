"""Verify -> Slow statistics, the collapse alarm, run-to-run spread, gradient anatomy (thinker-spec 12, C29, C30)."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dosematch.errors import UserError
from dosematch.evaluation_record import verify_slow_record
from dosematch.reporting.verifier_checks import VERIFIER_CHECKS
from dosematch.statistics.anatomy import clipping, term_cosines, term_norms, without_signal
from dosematch.statistics.replicates import replicate_pairs
from dosematch.statistics.settings import StudySettings
from dosematch.statistics.summary import build_summary
from dosematch.statistics.verifier import (
    collapse_in_training,
    collapsed,
    count_verdicts,
    pooled_verify_slow,
    verifier_diagnostics,
)

from .fixtures import synthetic_study as study

ITEM = st.tuples(st.sampled_from(["Yes", "No", "Invalid"]), st.booleans(), st.booleans(), st.booleans())
ALL_ITEMS = list(product(["Yes", "No", "Invalid"], [False, True], [False, True], [False, True]))


def evaluation(items: list[tuple[str, bool, bool, bool]]) -> dict[str, Any]:
    """An evaluation of one panel from (verdict, has box, Fast right, Slow right) per item."""
    fast = [{"correct": right, "sha1_12": f"{i:012d}"} for i, (_, _, right, _) in enumerate(items)]
    rows = [
        {"verdict": verdict, "missing_fast_box": not box, "triggered": verdict == "No" or not box}
        for verdict, box, _, _ in items
    ]
    slow = [{"correct": again, "extracted": None} for *_, again in items]
    panel = {"n": len(items), "per_item_correct": [row["correct"] for row in fast]}
    record = {"arm": "a", "seed": 1, "panels": {"p": panel}}
    return record | {"p_verify_slow": verify_slow_record(fast, rows, slow)}


def test_the_truth_table_of_triggers() -> None:
    """C29: trigger exactly for a No or a missing box; only then does Slow's result replace Fast's."""
    record = evaluation(ALL_ITEMS)["p_verify_slow"]
    for index, (verdict, box, fast, slow) in enumerate(ALL_ITEMS):
        triggered = verdict == "No" or not box
        assert record["per_item_triggered"][index] == triggered
        assert record["per_item_final_correct"][index] == (slow if triggered else fast)
    assert record["triggers"] == {"no_only": 4, "nobox_only": 8, "both": 4, "total": 16}


@given(st.lists(ITEM, min_size=1, max_size=60))
def test_the_sums_of_any_panel_close(items: list[tuple[str, bool, bool, bool]]) -> None:
    """C29, C30 for any items, and the report's checks agree that they hold."""
    evals = [evaluation(items)]
    assert [list(check(evals, "p")) for check in VERIFIER_CHECKS.values()] == [[]] * len(VERIFIER_CHECKS)
    entry = verifier_diagnostics(evals, "p")["a"]["1"]
    cells = [entry["confusion_matrix"][row] for row in ("fast_right", "fast_wrong")]
    sums = [sum(cell[verdict] for verdict in ("yes", "no", "invalid")) for cell in cells]
    assert sums == [entry["fast_correct"], entry["n"] - entry["fast_correct"]]
    triggers = entry["triggers"]
    assert triggers["no_only"] + triggers["nobox_only"] + triggers["both"] == triggers["total"]
    assert triggers["nobox_only"] + triggers["both"] == sum(cell["nobox"] for cell in cells)
    assert entry["fast_correct"] + entry["slow_wins"] - entry["slow_losses"] == entry["correct"]
    assert entry["slow_wins"] + entry["slow_losses"] <= triggers["total"]


def test_pooling_adds_the_seeds() -> None:
    runs = verifier_diagnostics([study.evaluation("std_rlvr_cont", seed) for seed in study.SEEDS], "val350")
    pooled = pooled_verify_slow(runs["std_rlvr_cont"], study.SEEDS)
    first, second = (study.evaluation("std_rlvr_cont", seed)["val350_verify_slow"] for seed in study.SEEDS)
    assert (pooled["s102"], pooled["s42"], pooled["n"]) == (first["correct"], second["correct"], 70)
    assert pooled["trig"] == [first["triggers"]["total"], second["triggers"]["total"]]
    assert pooled["wins"] == first["slow_wins"] + second["slow_wins"]
    assert pooled["accuracy"] == (first["correct"] + second["correct"]) / 70


def test_an_evaluation_without_verify_slow_is_refused() -> None:
    record = {key: value for key, value in study.evaluation("std_rlvr_cont", 42).items() if "verify_slow" not in key}
    with pytest.raises(UserError, match="arm std_rlvr_cont seed 42: val350_verify_slow is missing"):
        verifier_diagnostics([record], "val350")


@pytest.mark.parametrize(
    ("yes", "no", "invalid", "verdict"),
    [(96, 2, 2, "Yes"), (95, 5, 0, None), (0, 96, 4, "No"), (0, 0, 100, None), (0, 0, 0, None)],
)
def test_collapse_is_more_than_95_percent(yes: int, no: int, invalid: int, verdict: str | None) -> None:
    assert collapsed({"Yes": yes, "No": no, "Invalid": invalid}) == verdict


def steps(*verdicts: str) -> list[dict[str, Any]]:
    return [{"step": number, "verdicts": [verdict] * 4} for number, verdict in enumerate(verdicts, 1)]


def test_collapse_in_training_joins_windows() -> None:
    found = collapse_in_training(steps(*["Yes"] * 3, *["No"] * 7, *["Yes"] * 5))
    assert found == [
        {"verdict": "No", "first_step": 4, "last_step": 10, "n": 28},
        {"verdict": "Yes", "first_step": 11, "last_step": 15, "n": 20},
    ]
    mixed = steps(*["No"] * 5)
    mixed[2]["verdicts"] = ["No", "No", "No", "Yes"]
    assert collapse_in_training(mixed) == []
    assert collapse_in_training([{"step": number} for number in range(1, 31)]) == []


def row(**changes: Any) -> dict[str, Any]:
    plain = {"step_class": "mixed", "adv_fast": [1.0, -1.0], "censored": [False, False], "is_boundary": True}
    gradient = {"skipped_zero_grad": False, "clip_coef": 0.5, "grad_norm_by_term": {"pg": 2.0}, "grad_cosine": {}}
    return plain | gradient | changes


def test_groups_without_signal_by_cause() -> None:
    none = {"adv_fast": [0.0, 0.0]}
    rows = [row(step_class="all_wrong", **none), row(step_class="all_right", **none), row()]
    rows += [row(adv_fast=[0.0, -1.0], censored=[False, True]), row(censored=[False, True])]
    assert without_signal(rows) == {"all_wrong": 1, "all_right": 1, "masked": 1}


def test_term_norms_and_cosines_count_the_steps_in_which_a_term_acted() -> None:
    both = {"grad_norm_by_term": {"pg": 4.0, "distill": 1.0}, "grad_cosine": {"distill/pg": -0.5}}
    rows = [row(), row(**both), row(grad_norm_by_term={})]
    assert term_norms(rows) == {
        "distill": {"steps": 1, "mean": 1.0, "max": 1.0},
        "pg": {"steps": 2, "mean": 3.0, "max": 4.0},
    }
    assert term_cosines(rows) == {"distill/pg": {"steps": 1, "mean": -0.5}}


def test_clipping_is_over_the_updates_alone() -> None:
    off, skipped = row(is_boundary=False, clip_coef=1.0), row(skipped_zero_grad=True, clip_coef=1.0)
    assert clipping([row(), row(clip_coef=1.0), off, skipped]) == {"updates": 2, "clipped": 1, "mean": 0.75}
    assert clipping([off, skipped]) == {"updates": 0, "clipped": 0, "mean": None}


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """The summary of every arm of the project's configuration, with made-up records."""
    settings = study.study_settings()
    contrast = {"a": "fork_thinker", "b": "std_rlvr_cont", "label": "Level 2"}
    rows = [r for run in study.runs(settings)[2:] for r in study.training_rows(*run)]
    evals = [study.evaluation(*run) for run in study.runs(settings)]
    parsed = StudySettings.model_validate({**settings, "contrasts": [contrast]})
    return build_summary(evals, study.ancestry(), rows, parsed)


def test_replicates_are_found_by_their_switches(whole: dict[str, Any]) -> None:
    pairs = [(pair["a"], pair["b"], pair["runs"], pair["seeds"]) for pair in whole["replicates"]]
    assert pairs == [
        ("thinker_unweighted_sumsft", "thinker_unweighted_sumsft_rep2", [1, 2], [102]),
        ("fork_thinker", "fork_thinker_rep2", [1, 2], [102, 42]),
    ]


def test_spread_is_the_difference_of_the_runs(whole: dict[str, Any]) -> None:
    spread = whole["replicates"][1]["suites"]["all6"]
    a, b = whole["arms"]["fork_thinker"], whole["arms"]["fork_thinker_rep2"]
    assert spread["net"] == a["all6"]["pooled"] - b["all6"]["pooled"]
    assert spread["by_seed"]["s42"]["net"] == a["all6"]["s42"] - b["all6"]["s42"]
    assert spread["decontam"]["n"] == a["all6_decontam"]["n"]


def test_any_other_switch_makes_another_arm() -> None:
    def pairs(**changes: Any) -> int:
        arms = study.study_settings()["arms"]
        chosen = [arm for arm in arms if arm["name"].startswith("fork_thinker")]
        chosen[1]["switches"] |= changes
        others = {"contrasts": [], "parent": chosen[0]["name"], "token_reference": ""}
        settings = StudySettings.model_validate({**study.settings(), "arms": chosen, **others})
        return len(replicate_pairs(settings.arms))

    assert (pairs(), pairs(weight_decay=0.05), pairs(run=1)) == (1, 0, 0)


def test_single_seed_arms_have_verifier_diagnostics_too(whole: dict[str, Any]) -> None:
    assert list(whole["verifier"]["brier_scd_pure"]) == ["102"]
    assert len(whole["single_seed_arms"]["brier_scd_pure"]["val_slow"]["trig"]) == 1
    run = whole["training_diagnostics"]["brier_scd_pure"]["102"]
    assert run["collapse"] == [{"verdict": "No", "first_step": 20, "last_step": 30, "n": 44}]
    assert run["verdicts"] == count_verdicts(
        [v for r in study.training_rows("brier_scd_pure", 102) for v in r["verdicts"]]
    )


def test_mean_norms_times_steps_agree(whole: dict[str, Any]) -> None:
    """C35 for every run."""
    for seeds in whole["training_diagnostics"].values():
        for run in seeds.values():
            over_active = run["grad_norm_mean_active"] * run["active_steps"]
            assert run["grad_norm_mean_all"] * run["steps"] == pytest.approx(over_active)
