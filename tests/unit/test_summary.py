"""The pooled summary of the synthetic study, and the checks on it."""

import json
from copy import deepcopy
from typing import Any

import pytest

from dosematch.errors import UserError
from dosematch.reporting.checks import checks
from dosematch.statistics.diagnostics import tail_weight
from dosematch.statistics.settings import StudySettings, parse_settings
from dosematch.statistics.summary import build_summary

from .fixtures import synthetic_study as study


def summarise(evals: Any = None, training: Any = None, ancestry: Any = None, **changes: Any) -> dict[str, Any]:
    settings = StudySettings.model_validate({**study.settings(), **changes})
    evals = study.evaluations() if evals is None else evals
    training = study.training() if training is None else training
    return build_summary(evals, study.ancestry() if ancestry is None else ancestry, training, settings)


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    return summarise()


def contrast(summary: dict[str, Any], number: int, suite: str) -> dict[str, Any]:
    return [row for row in summary["contrasts"] if row["suite"] == suite][number]


def without_second_seed(arm: str) -> list[dict[str, Any]]:
    return [record for record in study.evaluations() if (record["arm"], record["seed"]) != (arm, 42)]


def single_seed(arm: str) -> list[dict[str, Any]]:
    return [{**entry, "seeds": [102] if entry["name"] == arm else study.SEEDS} for entry in study.settings()["arms"]]


def test_counts_are_those_of_the_evaluations(summary: dict[str, Any]) -> None:
    for arm in study.ARMS:
        right = [study.evaluation(arm, seed)["panels"]["math500"]["correct"] for seed in study.SEEDS]
        panel = summary["arms"][arm]["panels"]["math500"]
        assert [panel["s102"], panel["s42"], panel["pooled"], panel["n"]] == [*right, sum(right), 100]
        totals = [study.evaluation(arm, seed)["totals"]["within_math"]["correct"] for seed in study.SEEDS]
        assert summary["arms"][arm]["within"]["pooled"] == sum(totals)


def test_the_development_panel_is_left_out(summary: dict[str, Any]) -> None:
    assert "val500" not in summary["panels"]
    assert "val500" not in summary["arms"]["parent_step100"]["panels"]


def test_suites_are_ordered_by_size_whatever_the_key_order(summary: dict[str, Any]) -> None:
    assert summary["suite_order"] == ["all6", "within", "math500"]
    assert [row["suite"] for row in summary["contrasts"]] == ["all6", "within", "math500"] * 3


def test_decontamination_removes_each_place_from_both_seeds(summary: dict[str, Any]) -> None:
    assert summary["removed"]["items"] == {"all6": 3, "within": 2, "math500": 0}
    arm = summary["arms"]["std_rlvr_cont"]
    assert [arm["all6_decontam"]["n"], arm["within_decontam"]["n"]] == [518 - 2 * 3, 370 - 2 * 2]
    assert [arm["panels"]["conf500"]["decontam_n"], arm["panels"]["fresh500"]["decontam_n"]] == [96, 98]
    assert contrast(summary, 0, "all6")["decontam"]["n"] == 512
    assert contrast(summary, 0, "math500")["decontam"] is None


def test_nets_are_differences_of_totals(summary: dict[str, Any]) -> None:
    row = contrast(summary, 0, "within")
    arms = summary["arms"]
    assert row["net"] == arms[row["a"]]["within"]["pooled"] - arms[row["b"]]["within"]["pooled"]
    assert row["net"] == row["wins"] - row["losses"] == sum(part["net"] for part in row["by_seed"].values())
    assert row["pp"] == pytest.approx(100 * row["net"] / row["n"])
    assert row["ci"][0] <= row["pp"] <= row["ci"][1]
    assert row["p_holm"] >= row["p_exact"]


def test_an_arm_against_itself_is_exactly_zero() -> None:
    itself = summarise(contrasts=[{"a": "std_rlvr_cont", "b": "std_rlvr_cont", "label": "itself"}])
    for row in itself["contrasts"]:
        assert (row["net"], row["wins"], row["losses"], row["p_exact"], row["ci"]) == (0, 0, 0, 1.0, [0.0, 0.0])


def test_single_seed_arms_stand_apart() -> None:
    evals = without_second_seed("std_rlvr_cont")
    apart = summarise(evals, arms=single_seed("std_rlvr_cont"), contrasts=study.settings()["contrasts"][1:2])
    assert set(apart["arms"]) == {"parent_step100", "std_stabilized_g8"}
    arm = apart["single_seed_arms"]["std_rlvr_cont"]
    assert arm["all6"] == {"s102": arm["all6"]["s102"], "pooled": arm["all6"]["s102"], "n": 259}


def test_a_contrast_that_needs_a_missing_seed_is_refused_by_name() -> None:
    evals = without_second_seed("std_rlvr_cont")
    with pytest.raises(UserError, match=r"contrast 'Level 0 vs\. Arm 0'.*std_rlvr_cont has no evaluation of seed 42"):
        summarise(evals, arms=single_seed("std_rlvr_cont"))


def test_a_missing_evaluation_is_refused() -> None:
    with pytest.raises(UserError, match="arm std_rlvr_cont seed 42 is missing"):
        summarise(without_second_seed("std_rlvr_cont"), contrasts=[])


def test_evaluations_given_twice_or_unknown_are_refused() -> None:
    evals = study.evaluations()
    with pytest.raises(UserError, match="seed 102: given twice"):
        summarise([*evals, evals[0]])
    with pytest.raises(UserError, match="seed 7: the settings list no such arm and seed"):
        summarise([*evals, {**evals[0], "seed": 7}])


def test_training_logs_given_twice_or_unknown_are_refused() -> None:
    rows = study.training()
    with pytest.raises(UserError, match="arm std_rlvr_cont seed 102: step 1 occurs twice"):
        summarise(training=[*rows, rows[0]])
    with pytest.raises(UserError, match="arm stranger is not among"):
        summarise(training=[*rows, {**rows[0], "arm": "stranger"}])


def test_one_seed_and_other_names_work() -> None:
    evals = [{**record, "seed": 9} for record in study.evaluations() if record["seed"] == 102]
    arms = [{**entry, "seeds": [9]} for entry in study.settings()["arms"]]
    alone = summarise(evals, training=[], ancestry={"exposed": []}, seeds=[9], arms=arms)
    assert alone["arms"]["parent_step100"]["all6"]["n"] == 259
    assert alone["contrasts"][0]["n"] == 259


def test_diagnostics_of_a_run(summary: dict[str, Any]) -> None:
    rows = study.training_rows("std_stabilized_g8", 42)
    run = summary["training_diagnostics"]["std_stabilized_g8"]["42"]
    assert run["active_steps"] == 6
    assert run["grad_norm_mean_all"] * 30 == pytest.approx(run["grad_norm_mean_active"] * 6)
    assert run["grad_norm_max"] == 1.3
    assert run["tokens"]["gen_tokens"]["total"] == sum(row["gen_tokens"]["total"] for row in rows)
    assert run["tokens"]["pg_bwd_tokens"]["loss"] == sum(row["pg_bwd_tokens"]["loss"] for row in rows)


def test_a_run_without_any_gradient_has_mean_zero() -> None:
    rows = [{**row, "grad_norm": 0.0} for row in study.training_rows("std_rlvr_cont", 102)]
    run = summarise(training=rows)["training_diagnostics"]["std_rlvr_cont"]["102"]
    assert (run["active_steps"], run["grad_norm_mean_active"], run["grad_norm_mean_all"]) == (0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("step", "accumulation", "weight"),
    [
        *[(21, 5, 6 / 15), (30, 5, 1 / 15), (26, 5, 1 / 15), (25, 5, 6 / 15), (20, 5, 11 / 15), (15, 5, 1), (1, 5, 1)],
        *[(21, 1, 10 / 15), (30, 1, 1 / 15), (16, 1, 1)],
        (29, 7, 0),  # waits for a boundary that never comes
    ],
)
def test_tail_weight(step: int, accumulation: int, weight: float) -> None:
    assert tail_weight(step, 30, 16, accumulation) == pytest.approx(weight)


def test_tail_weights_are_those_of_the_averaged_updates() -> None:
    for accumulation in (1, 4, 5, 7):
        for step in range(1, 31):
            update = -(-step // accumulation)
            snapshots = [after // accumulation for after in range(16, 31)]  # updates done after each averaged step
            carried = sum(done >= update for done in snapshots) / 15
            assert tail_weight(step, 30, 16, accumulation) == pytest.approx(carried)


def test_a_step_outside_training_has_no_weight() -> None:
    with pytest.raises(ValueError, match="step 31"):
        tail_weight(31, 30, 16, 5)


def test_exposure_says_what_each_arm_took(summary: dict[str, Any]) -> None:
    unsolved, solved = summary["exposure"]
    assert unsolved["places"] == [{"panel": "conf500", "index": 3}, {"panel": "fresh500", "index": 7}]
    took = unsolved["arms"]["std_stabilized_g8"]
    assert (took["pg_update"], took["is_boundary"], took["applied_at"]) == (False, False, 25)
    assert took["tail_weight"] == pytest.approx(6 / 15)
    took = solved["arms"]["std_stabilized_g8"]
    assert (took["pg_update"], took["is_boundary"], took["tail_weight"]) == (True, True, pytest.approx(1 / 15))
    assert took["grad_norm_micro"] > 0


def test_exposure_ignores_censored_advantages_and_lists_replays() -> None:
    rows = deepcopy(study.training_rows("std_rlvr_cont", 42))
    rows[29]["censored"] = [True] * 8
    rows[29]["pg_bwd_tokens"] = {"fed": 0, "loss": 0}
    rows[20]["anchor_sha1"] = ["ffffffffffff"]
    item = {**study.EXPOSED[2], "step": 11, "sha1_12": rows[10]["sha1_12"]}
    rows[25]["anchor_sha1"] = [item["sha1_12"]] * 2
    rows[9]["anchor_sha1"] = [item["sha1_12"]]  # earlier than the exposure: another occurrence, not a replay of it
    ancestry = {**study.ancestry(), "exposed": [study.EXPOSED[2], item]}
    last, replayed = summarise(training=rows, ancestry=ancestry)["exposure"]
    assert last["arms"]["std_rlvr_cont"]["pg_update"] is False
    replay = {"step": 26, "sequences": 2, "applied_at": 26, "tail_weight": pytest.approx(5 / 15)}
    assert replayed["arms"]["std_rlvr_cont"]["anchor_replays"] == [replay]


def test_settings_name_the_bad_key() -> None:
    with pytest.raises(UserError, match=r"--settings: statistics\.level"):
        parsed_settings(statistics={"level": 95})
    with pytest.raises(UserError, match="arm 'nobody' is used but not listed"):
        parsed_settings(parent="nobody")
    with pytest.raises(UserError, match=r"suites\.more"):
        parsed_settings(suites={"more": ["no such panel"]})


def parsed_settings(**changes: Any) -> StudySettings:
    return parse_settings(json.dumps({**study.settings(), **changes}))


def failing(summary: dict[str, Any], evals: list[dict[str, Any]]) -> list[str]:
    return [check["name"] for check in checks(summary, evals) if not check["ok"]]


def test_checks_pass_on_a_sound_study(summary: dict[str, Any]) -> None:
    assert failing(summary, study.evaluations()) == []


def set_at(record: Any, path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for key in parents:
        record = record[int(key) if isinstance(record, list) else key]
    record[last] = value


@pytest.mark.parametrize(
    ("where", "path", "value", "name"),
    [
        ("evals", "0/panels/sec500/n", 49, "Every panel holds n items"),
        ("evals", "0/panels/val500/correct", 51, "Every panel holds n items"),
        ("evals", "1/totals/all6/correct", 1, "Totals of each evaluation"),
        ("evals", "2/eval/max_tokens", 512, "One evaluation protocol"),
        ("evals", "2/grader", "another", "One evaluation protocol"),
        ("evals", "2/panels/sec500/per_item_outcome", ["timeout"] * 50, "No answer was lost"),
        ("summary", "arms/std_rlvr_cont/within/s42", 0, "Pooled counts"),
        ("summary", "contrasts/0/net", 999, "Net of each contrast"),
        ("summary", "arms/std_rlvr_cont/all6_decontam/n", 513, "Decontaminated N"),
        ("summary", "training_diagnostics/std_rlvr_cont/42/mixed", 1, "Every training log"),
        ("summary", "training_diagnostics/std_rlvr_cont/42/active_steps", 29, "Mean norm"),
        ("summary", "training_diagnostics/std_rlvr_cont/42/gen_tokens_max_step", 4097, "Generated tokens stay"),
        (
            "summary",
            "training_diagnostics/std_rlvr_cont/42/tokens/gen_tokens/fast",
            1,
            "Generated tokens of the stages",
        ),
        ("summary", "training_diagnostics/std_rlvr_cont/42/tokens/teacher_fwd_tokens", 1, "No arm spends"),
        ("summary", "training_diagnostics/std_rlvr_cont/42/tokens/anchor_bwd_tokens/fed", 1, "No arm spends"),
        ("evals", "0/val350_verify_slow/confusion_matrix/fast_right/yes", 99, "Verdicts on right and wrong"),
        ("evals", "0/val350_verify_slow/triggers/both", 99, "Disjoint causes"),
        ("evals", "0/val350_verify_slow/per_item_verdict", ["Yes"] * 35, "Disjoint causes"),
        ("evals", "0/val350_verify_slow/slow_wins", 99, "Fast + wins"),
        ("evals", "0/val350_verify_slow/triggers/total", 0, "Fast + wins"),
        ("evals", "0/val350_verify_slow/per_item_final_correct", [True] * 35, "An untriggered answer"),
        ("summary", "exposure/0/arms", {}, "Every exposed question"),
        ("summary", "arms/parent_step100/math500/pooled", 100, "The parent leaves room"),
    ],
)
def test_each_check_can_fail(summary: dict[str, Any], where: str, path: str, value: Any, name: str) -> None:
    records = {"evals": study.evaluations(), "summary": deepcopy(summary)}
    set_at(records[where], path, value)
    found = failing(records["summary"], records["evals"])
    assert any(check.startswith(name) for check in found), found


def test_two_of_the_four_policies_are_the_full_and_the_decontaminated_counts() -> None:
    summary = summarise()
    for name, arm in summary["arms"].items():
        for policy, suite in (("keep", "all6"), ("drop_both", "all6_decontam")):
            counts = summary["policies"][policy]["arms"][name]["all6"]
            assert counts == {"correct": arm[suite]["pooled"], "n": arm[suite]["n"]}
    for full in summary["contrasts"]:
        named = {key: full[key] for key in ("a", "b", "label", "suite", "net", "n", "wins", "losses", "p_exact")}
        assert named in summary["policies"]["keep"]["contrasts"]
        clean = named | (full["decontam"] or {})
        assert not full["decontam"] or clean in summary["policies"]["drop_both"]["contrasts"]
    n = {policy: entry["arms"]["std_rlvr_cont"]["all6"]["n"] for policy, entry in summary["policies"].items()}
    assert n["keep"] > n["drop_pair"] > n["drop_both"]
