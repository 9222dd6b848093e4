"""Configuration: every bad input is one line that names file and key; settings hold what can change a result."""

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dosematch.config import StudyConfig, plain
from dosematch.errors import UserError
from dosematch.settings import Arm, EvalSettings, TrainSettings

ROOT = Path(__file__).parents[2]
MAIN, DEFAULTS = "config/config.yaml", "config/arms/thinker/_defaults.yaml"
ARM, OTHER = "config/arms/thinker/tested.yaml", "config/arms/thinker/other.yaml"
PARENT, SCALE, PROMPTS = "config/arms/thinker/parent.yaml", "config/scales/tiny.yaml", "config/prompts/micro.yaml"


@pytest.fixture
def project(tmp_path) -> Path:
    """A project folder with a small study of its own, made from the shipped defaults, scale and prompts."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    edit(tmp_path, "config/scales/micro.yaml", small_scale, to=SCALE)
    groups = [{"n": 4, "max_tokens": 512, "min_tokens": 16}, {"n": 2, "max_tokens": 768, "min_tokens": 24}]
    arm = {"label": "tested", "fast": groups, "accumulation": 5}
    write(tmp_path, ARM, arm)
    write(tmp_path, OTHER, arm | {"label": "other"})
    write(tmp_path, PARENT, arm | {"label": "parent", "starts_from": "base"})
    write(tmp_path, MAIN, main())
    return tmp_path


def small_scale(scale: dict) -> dict:
    """The shipped scale with numbers that the tests below rely on."""
    return scale | {
        "length_factor": 0.125,
        "training": scale["training"] | {"steps": 30, "tail_start": 16},
        "parent_training": {"steps": 100, "tail_start": 86, "curve_every": 25},
        "evaluation": scale["evaluation"] | {"max_tokens": 2048},
    }


def main() -> dict:
    """The contents of config.yaml for the small study."""
    raw = yaml.safe_load((ROOT / MAIN).read_text())
    raw["scale"] = "tiny"
    raw["thinker"] |= {
        "seeds": [1, 2, 3],
        "parent": "parent",
        "arms": ["tested", "other"],
        "contrasts": [{"a": "tested", "b": "other", "label": "a contrast"}],
        "token_reference": "other",
    }
    return raw


def write(root: Path, file: str, value: object) -> None:
    (root / file).write_text("# Why it exists.\n" + yaml.safe_dump(value, sort_keys=False))


def edit(root: Path, file: str, change: Callable[[dict], dict], to: str | None = None) -> None:
    write(root, to or file, change(yaml.safe_load((root / file).read_text())))


def load(root: Path) -> StudyConfig:
    return StudyConfig(yaml.safe_load((root / MAIN).read_text()), root)


def complaint(root: Path) -> str:
    """The one line that a bad configuration ends in."""
    with pytest.raises(UserError) as caught:
        load(root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def put(*keys: str | int, value: object) -> Callable[[dict], dict]:
    """A change that sets one nested key."""

    def change(content: dict) -> dict:
        inner = content
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        return content

    return change


BAD = {
    "unknown arm key": (ARM, put("acumulation", value=5), "acumulation"),
    "unknown scale key": (SCALE, put("training", "speed", value=1), "training.speed"),
    "unknown main key": (MAIN, put("thinker", "panels", value=[]), "thinker.panels"),
    "unknown prompt": (PROMPTS, put("again", value="x"), "again"),
    "string for a boolean": (ARM, put("censor", value="yes"), "censor"),
    "float for an integer": (ARM, put("accumulation", value=5.5), "accumulation"),
    "string for a number": (SCALE, put("training", "base_lr", value="1e-6"), "training.base_lr"),
    "boolean for a number": (ARM, put("weight_decay", value=True), "weight_decay"),
    "number for a string": (ARM, put("label", value=1), "label"),
    "nested wrong type": (ARM, put("fast", 1, "max_tokens", value="768"), "fast.1.max_tokens"),
    "no rollouts": (ARM, put("fast", value=[]), "fast"),
    "zero rollouts": (ARM, put("fast", 0, "n", value=0), "fast.0.n"),
    "negative decay": (ARM, put("weight_decay", value=-0.1), "weight_decay"),
    "minimum above maximum": (ARM, put("fast", 1, "min_tokens", value=769), "fast.1"),
    "accumulation that does not divide the steps": (ARM, put("accumulation", value=7), "accumulation"),
    "unknown episode": (ARM, put("episode", value="double_turn"), "episode"),
    "unknown start": (ARM, put("starts_from", value="nothing"), "starts_from"),
    "missing multiplier": (ARM, put("lr", value={"pg_only": 1.0, "mixed": 1.0}), "lr.distill_only"),
    "missing label": (ARM, lambda arm: {k: v for k, v in arm.items() if k != "label"}, "label"),
    "arm that starts from base": (ARM, put("starts_from", value="base"), "starts_from"),
    "parent that continues": (PARENT, put("starts_from", value="parent"), "starts_from"),
    "seed that the study lacks": (ARM, put("seeds", value=[1, 99]), "seeds"),
    "tail beyond the steps": (SCALE, put("training", "tail_start", value=31), "training"),
    "parent's tail beyond its steps": (SCALE, put("parent_training", "tail_start", value=101), "tail_start"),
    "greedy temperature": (SCALE, put("evaluation", "temperature", value=0.5), "evaluation.temperature"),
    "unknown device": (SCALE, put("runtime", "device", value="tpu"), "runtime.device"),
    "unknown panel": (MAIN, put("thinker", "suites", "all6", value=["val350", "val351"]), "thinker.suites.all6"),
    "unknown development panel": (MAIN, put("thinker", "development_panel", value="x"), "thinker.development_panel"),
    "no main suite": (MAIN, put("thinker", "suites", value={"within": ["val350"]}), "thinker.suites.all6"),
    "unknown suite": (
        MAIN,
        put("thinker", "statistics", "decontaminated_suites", value=["x"]),
        "decontaminated_suites",
    ),
    "unknown arm": (MAIN, put("thinker", "arms", value=["tested", "nobody"]), "thinker.arms"),
    "unknown arm in a contrast": (MAIN, put("thinker", "contrasts", 0, "b", value="nobody"), "thinker.contrasts.0"),
    "unknown token reference": (MAIN, put("thinker", "token_reference", value="nobody"), "thinker.token_reference"),
    "unknown parent": (MAIN, put("thinker", "parent", value="nobody"), "nobody"),
    "no seeds": (MAIN, put("thinker", "seeds", value=[]), "thinker.seeds"),
    "seeds as text": (MAIN, put("thinker", "seeds", value=["1"]), "thinker.seeds.0"),
    "level of one": (MAIN, put("thinker", "statistics", "level", value=1.0), "thinker.statistics.level"),
    "unknown scale": (MAIN, put("scale", value="huge"), "scale"),
    "missing prompt": (PROMPTS, lambda prompts: {"fast": prompts["fast"]}, "verify"),
    "prompt without question": (PROMPTS, put("fast", value="Solve:"), "fast"),
    "betas outside the unit interval": (SCALE, put("training", "adam_betas", value=[0.9, 1.0]), "training.adam_betas"),
    "three betas": (SCALE, put("training", "adam_betas", value=[0.9, 0.9, 0.9]), "training.adam_betas"),
    "infinite rate": (SCALE, put("training", "base_lr", value=float("inf")), "training.base_lr"),
    "rate that is no number": (SCALE, put("training", "base_lr", value=float("nan")), "training.base_lr"),
    "one seed twice": (MAIN, put("thinker", "seeds", value=[1, 2, 1]), "thinker.seeds"),
    "one panel twice": (MAIN, put("thinker", "suites", "all6", value=["val350", "val350"]), "thinker.suites.all6"),
}


def test_the_small_study_and_the_shipped_one_are_valid(project):
    assert load(project).checkpoints() == [(arm, seed) for arm in ("parent", "tested", "other") for seed in (1, 2, 3)]
    for scale in (ROOT / "config/scales").glob("*.yaml"):
        raw = yaml.safe_load((ROOT / MAIN).read_text()) | {"scale": scale.stem}
        StudyConfig(raw, ROOT)


@pytest.mark.parametrize(("file", "change", "key"), BAD.values(), ids=BAD)
def test_a_bad_value_is_one_line_that_names_file_and_key(project, file, change, key):
    edit(project, file, change)
    message = complaint(project)
    assert file in message
    assert key in message.split(file)[1]


@pytest.mark.parametrize("change", [put("token_divisor", value="256"), put("typo", value=1)])
def test_a_bad_value_in_the_defaults_is_not_blamed_on_an_arm_alone(project, change):
    edit(project, DEFAULTS, change)
    assert "_defaults.yaml" in complaint(project)


BROKEN = {
    "unclosed": b"a: [1, 2",
    "list": b"- 1\n- 2\n",
    "text": b"only text",
    "tab": b"a:\n\t- 1",
    "latin": b"a: \xff",
}


@pytest.mark.parametrize("file", [ARM, SCALE, PROMPTS, DEFAULTS])
@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_one_line_that_names_it(project, file, content):
    (project / file).write_bytes(content)
    assert file in complaint(project)


@pytest.mark.parametrize("file", [DEFAULTS, PROMPTS])
def test_a_missing_file_is_one_line_that_names_it(project, file):
    (project / file).unlink()
    assert file in complaint(project)


@pytest.mark.parametrize("raw", [{}, {"scale": "tiny"}, {"scale": "tiny", "thinker": None}, {"thinker": []}])
def test_an_incomplete_config_is_one_line_that_names_it(project, raw):
    with pytest.raises(UserError, match=re.escape(MAIN)):
        StudyConfig(raw, project)


def test_lengths_are_scaled_and_numbers_of_rollouts_are_not(project):
    arm = TrainSettings.model_validate_json(load(project).train_settings("tested")).arm
    limits = [(group.n, group.max_tokens, group.min_tokens) for group in arm.fast]
    assert limits == [(4, 64, 2), (2, 96, 3)]
    assert arm.token_divisor == 32.0
    assert arm.cap == 4 * 64 + 2 * 96


def test_evaluation_lengths_are_scaled(project):
    assert EvalSettings.model_validate_json(load(project).eval_settings()).evaluation.max_tokens == 256


@pytest.fixture(scope="module")
def shipped() -> Arm:
    """An arm at paper scale."""
    return StudyConfig(yaml.safe_load((ROOT / MAIN).read_text()), ROOT).arms["std_rlvr_cont"]


@given(
    factor=st.floats(1e-4, 4),
    longest=st.integers(1, 4096),
    data=st.data(),
)
def test_an_arm_scaled_by_anything_is_still_an_arm(shipped, factor, longest, data):
    group = {"n": 2, "max_tokens": longest, "min_tokens": data.draw(st.integers(0, longest))}
    arm = Arm.model_validate(shipped.model_dump() | {"fast": [group]}).scaled(factor)
    assert Arm.model_validate(arm.model_dump()) == arm
    assert arm.fast[0].max_tokens == pytest.approx(longest * factor, abs=1)
    assert arm.fast[0].min_tokens == pytest.approx(group["min_tokens"] * factor, abs=1)


@pytest.mark.parametrize(("key", "value"), [("about", "Other words."), ("label", "other"), ("seeds", [2])])
def test_words_and_seeds_do_not_change_the_settings_of_a_training(project, key, value):
    before = load(project).train_settings("tested")
    edit(project, ARM, put(key, value=value))
    assert load(project).train_settings("tested") == before


def test_the_leading_comment_is_what_an_arm_is_about(project):
    (project / ARM).write_text("# First line,\n# second.\n" + (project / ARM).read_text().partition("\n")[2])
    config = load(project)
    assert config.arms["tested"].about == "First line, second."
    assert "second" not in config.train_settings("tested")


def test_seeds_of_the_study_do_not_change_the_settings_of_a_training(project):
    before = load(project).train_settings("tested")
    edit(project, MAIN, put("thinker", "seeds", value=[1, 2, 3, 4]))
    assert load(project).train_settings("tested") == before


def test_seeds_of_an_arm_limit_its_checkpoints(project):
    edit(project, ARM, put("seeds", value=[2]))
    config = load(project)
    assert config.seeds("tested") == [2]
    assert [seed for arm, seed in config.checkpoints() if arm == "tested"] == [2]
    assert config.seeds("other") == [1, 2, 3]


@pytest.mark.parametrize(
    ("file", "change"),
    [
        (ARM, put("censor", value=True)),
        (ARM, put("run", value=2)),
        (ARM, put("clip_norm", value=0.5)),
        (DEFAULTS, put("temperature", value=0.9)),
        (SCALE, put("training", "base_lr", value=1e-5)),
        (SCALE, put("length_factor", value=0.25)),
        (PROMPTS, put("fast", value="{question}\nAnswer:")),
    ],
)
def test_what_decides_a_training_is_in_its_settings(project, file, change):
    before = load(project).train_settings("tested")
    edit(project, file, change)
    assert load(project).train_settings("tested") != before


def shuffled(value: object, rng: random.Random) -> object:
    """The same value with the keys of every dictionary in another order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key], rng) for key in rng.sample(list(value), len(value))}
    return [shuffled(inner, rng) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_keys_changes_no_settings(project, seed):
    def settings() -> list[str]:
        config = load(project)
        return [config.train_settings("tested"), config.eval_settings(), config.question_settings()]

    before = settings()
    for file in (MAIN, ARM, DEFAULTS, SCALE, PROMPTS):
        edit(project, file, lambda content: shuffled(content, random.Random(seed)))
    assert settings() == before


def test_settings_are_json_with_sorted_keys_that_reads_back(project):
    text = load(project).train_settings("tested")
    assert text == json.dumps(json.loads(text), sort_keys=True)
    assert json.loads(plain(TrainSettings.model_validate_json(text))) == json.loads(text)


def test_the_parent_trains_with_its_own_steps_and_arms_with_those_of_the_scale(project):
    config = load(project)
    steps = {
        name: TrainSettings.model_validate_json(config.train_settings(name)).training for name in ("parent", "tested")
    }
    assert (steps["parent"].steps, steps["parent"].tail_start) == (100, 86)
    assert (steps["tested"].steps, steps["tested"].tail_start) == (30, 16)
