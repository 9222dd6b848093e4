"""Arms are rows of switches: what is refused, and that no arm is known by name (t5-spec 2)."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from dosematch.errors import UserError
from dosematch.midtrain.config import T5Config
from dosematch.midtrain.study import T5Study
from dosematch.records import read_yaml

ROOT = Path(__file__).parents[2]
ARMS = sorted(path.stem for path in (ROOT / "config/arms/t5").glob("[!_]*.yaml"))
STUDY = T5Study(**read_yaml(ROOT / "config/config.yaml")["t5"])
MANDATORY = "base ntp qs_ppo qs_grpo rlp t5 rlp_orig qs_grpo_mixed t5_mean t5_state t5_single t5_noqual".split()


@pytest.fixture
def project(tmp_path) -> Path:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    return tmp_path


def load(project: Path, arm: str) -> T5Config:
    return T5Config(STUDY.model_copy(update={"arms": [arm]}), "xs", project)


@pytest.mark.parametrize("scale", sorted(path.stem for path in (ROOT / "config/t5").glob("*.yaml")))
def test_every_arm_is_valid_at_every_scale(scale):
    loaded = T5Config(STUDY.model_copy(update={"arms": ARMS}), scale, ROOT)
    assert all(arm.about and arm.label for arm in loaded.arms.values())
    assert set(MANDATORY) <= set(STUDY.arms) <= set(loaded.arms)


REFUSED = {
    "rlp": {"group: 1": "adv.kind: group_loo needs a group of at least 2, group is 1"},
    "qs_grpo": {
        "group: 1": "adv.kind: group_std needs a group of at least 2",
        "reward: {placement: prefix_delta}": "reward.placement: group_std uses whole returns",
        "critics: {n: 1, warmup: none, qualify: false}": "critics.n: only adv.kind gae has critics",
    },
    "t5": {
        "critics: {n: 1}": "mix.kind: learned needs critics.n 2, it is 1",
        "critics: {n: 0}": "adv.kind: gae needs a critic, critics.n is 0",
        "critics: {n: 3}": "critics.n: Input should be 0, 1 or 2",
        "critics: {qualify: false}": "critics.warmup: r2 needs critics.qualify",
        "critics: {warmup: fixed_steps}": "critics.qualify: needs critics.warmup r2",
        "mix: {kind: single}": "mix.kind: single cannot use critics.n 2",
        "mix: {kapa: 0.1}": "mix.kapa: Extra inputs are not permitted",
        "mix: {kappa: 1.0}": "mix.kappa: Input should be less than 1",
        "adv: {kind: none}": "critics.n: only adv.kind gae has critics",
        "thought: false": "adv.kind: gae needs thought",
        "reward: {kind: mixed}\npred_gate: {enabled: false}": "reward.kind: mixed needs pred_gate.enabled",
        "loss: {minibatches: 3}": "loss.minibatches: 3 does not divide the",
        "loss: {clip_low: 1.0}": "loss.clip_low: Input should be less than 1",
        "rollout: {weights: fp8}": "rollout.weights: Input should be 'fp32', 'bf16' or 'int8'",
        "label: 1.0e-6": "label: Input should be a valid string",
    },
    "ntp": {"loss: {c_ntp: 0.0}": "loss.c_ntp: nothing would be trained"},
    "base": {"thought: true": "adv.kind: none leaves the thoughts untrained"},
}


@pytest.mark.parametrize(("arm", "change"), [(arm, change) for arm, changes in REFUSED.items() for change in changes])
def test_a_combination_that_makes_no_sense_is_refused_by_file_and_key(project, arm, change):
    path = project / f"config/arms/t5/{arm}.yaml"
    own = yaml.safe_load(path.read_text())
    for key, value in yaml.safe_load(change).items():
        own[key] = {**own.get(key, {}), **value} if isinstance(value, dict) else value
    path.write_text(yaml.safe_dump(own))
    with pytest.raises(UserError) as caught:
        load(project, arm)
    message = str(caught.value)
    assert message.startswith(f"config/arms/t5/{arm}.yaml") and REFUSED[arm][change] in message
    assert "\n" not in message


def test_a_scale_with_a_wrong_key_and_names_of_missing_files_are_refused(project):
    path = project / "config/t5/xs.yaml"
    path.write_text(path.read_text().replace("l_max: 24", "l_max: 0"))
    with pytest.raises(UserError, match=r"config/t5/xs.yaml: task.l_max: Input should be greater than 0"):
        load(project, "t5")
    with pytest.raises(UserError, match=r"config/config.yaml: t5.arms: no file config/arms/t5/t6.yaml \(known: base"):
        T5Config(STUDY.model_copy(update={"arms": ["t6"]}), "smoke", project)
    with pytest.raises(UserError, match=r"config/config.yaml: t5.scale: no file config/t5/xl.yaml"):
        T5Config(STUDY, "xl", project)


def test_an_arm_says_only_what_differs(project):
    """An arm file overrides keys of a section, and keeps the section's other keys."""
    assert load(project, "t5_state").arms["t5_state"].mix.kappa == load(project, "t5").arms["t5"].mix.kappa
    assert load(project, "t5_state").arms["t5_state"].mix.gate_inputs == "state"


def test_no_arm_is_named_in_library_code():
    names = re.compile(r"[\"'](%s)[\"']" % "|".join(set(ARMS) - {"base", "t5"}))
    compared = re.compile(r"arm\.name\s*(==|!=|in\b)|name\s*==\s*[\"']t5")
    for path in (ROOT / "workflow").rglob("*.py"):
        if "published" not in path.parts:
            text = path.read_text()
            assert not names.search(text) and not compared.search(text), path
