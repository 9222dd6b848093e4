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

from dosematch.arm import Arm
from dosematch.config import StudyConfig, plain
from dosematch.errors import UserError
from dosematch.settings import EvalSettings, TrainSettings

ROOT = Path(__file__).parents[2]
MAIN, DEFAULTS = "config/config.yaml", "config/arms/thinker/_defaults.yaml"
TWO_ARMS = "config/two_arms.yaml"
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
    "unknown panel to verify": (MAIN, put("thinker", "verify_slow_panel", value="x"), "thinker.verify_slow_panel"),
    "unknown reward": (ARM, put("reward", value="praise"), "reward"),
    "unknown gate": (ARM, put("gate", value="entropy"), "gate"),
    "minimum of a stage above its maximum": (ARM, put("verify", value={"max_tokens": 4, "min_tokens": 5}), "verify"),
    "fork without lengths": (ARM, put("fork", value={"k": 4, "max_tokens": 768}), "fork.min_length"),
    "share above one": (ARM, put("alpha", value=1.5), "alpha"),
    "no weight on distillation": (ARM, put("lambda_distill", value=0.0), "lambda_distill"),
    "evaluation without budget": (SCALE, put("evaluation", "slow_max_tokens", value=0), "evaluation.slow_max_tokens"),
    "one panel twice": (MAIN, put("thinker", "suites", "all6", value=["val350", "val350"]), "thinker.suites.all6"),
}


STAGES = {
    "episode": "thinker",
    "verify": {"max_tokens": 192},
    "slow": {"max_tokens": 768},
    "summary": {"max_tokens": 512},
}
FORK = {
    "k": 4,
    "max_tokens": 768,
    "min_length": 64,
    "margin": 16,
    "first_start": 32,
    "first_end": 160,
    "second_floor": 56,
    "second_start": 96,
    "second_end": 288,
    "max_sequence": 896,
}
FORKING = {"episode": "forking", "fork": FORK}
CONTRADICTIONS = {
    "thinker without verify": (STAGES | {"verify": None}, "verify"),
    "thinker without slow": (STAGES | {"slow": None}, "slow"),
    "thinker without summary": (STAGES | {"summary": None}, "summary"),
    "stage of a single turn": ({"verify": {"max_tokens": 192}}, "verify"),
    "stage of a forking arm": (FORKING | {"summary": {"max_tokens": 192}}, "summary"),
    "forking without forks": ({"episode": "forking"}, "fork"),
    "forks of a single turn": ({"fork": FORK}, "fork"),
    "forks of the thinker": (STAGES | {"fork": FORK}, "fork"),
    "prefix mask without forks": ({"prefix_mask": True}, "prefix_mask"),
    "training on forks without forks": ({"fork_sft": True}, "fork_sft"),
    "summaries without a thinker": (FORKING | {"summary_sft": True}, "summary_sft"),
    "stage gradients without stages": ({"pg_stages": True}, "pg_stages"),
    "isolation with stage gradients": (STAGES | {"pg_fast": False, "pg_stages": True}, "pg_stages"),
    "KL without teacher": (FORKING | {"fork_sft": True, "alpha": 0.5, "teacher_top_k": 16}, "alpha"),
    "KL of a single turn": ({"alpha": 0.5, "teacher_top_k": 16}, "alpha"),
    "KL to no token": (STAGES | {"summary_sft": True, "alpha": 0.5, "teacher_top_k": 0}, "teacher_top_k"),
    "gate of nothing": ({"gate": "brier"}, "gate"),
    "gate of the policy gradient": (STAGES | {"pg_stages": True, "gate": "brier"}, "gate"),
    "anchors on failure without anchors": (STAGES | {"anchor_on_failure": True}, "anchor_on_failure"),
    "nothing trained": ({"pg_fast": False}, "pg_fast"),
    "accumulation that does not divide the steps": ({"accumulation": 4}, "accumulation"),
}


@pytest.mark.parametrize(("switches", "named"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_switches_that_make_no_sense_together_are_one_line_that_names_arm_and_switch(project, switches, named):
    edit(project, ARM, lambda arm: arm | switches)
    message = complaint(project)
    assert ARM in message
    assert named in message.split(ARM)[1]


SENSIBLE = {
    "shared actor": STAGES | {"pg_stages": True},
    "shared actor with summaries": STAGES | {"pg_stages": True, "summary_sft": True},
    "isolated": STAGES | {"summary_sft": True, "gate": "brier", "alpha": 0.5, "teacher_top_k": 16, "anchor": True},
    "distillation alone": STAGES | {"pg_fast": False, "summary_sft": True, "anchor": True, "anchor_on_failure": True},
    "forks": FORKING | {"fork_sft": True, "gate": "brier", "prefix_mask": True, "anchor": True},
    "anchors alone": {"anchor": True, "gate": "brier"},
}


@pytest.mark.parametrize("switches", SENSIBLE.values(), ids=SENSIBLE)
def test_switches_that_go_together_are_accepted(project, switches):
    edit(project, ARM, lambda arm: arm | switches)
    load(project)


def test_an_unequal_dose_inside_a_family_is_one_line_that_names_arm_and_switch(project):
    for file in (ARM, OTHER):
        edit(project, file, put("dose_family", value="matched"))
    load(project)
    edit(project, OTHER, put("fast", 1, "n", value=3))
    message = complaint(project)
    assert message.startswith(f"{OTHER}: dose_family: ")
    assert "tested" in message
    assert str(4 * 512 + 3 * 768) in message
    assert str(4 * 512 + 2 * 768) in message
    edit(project, OTHER, put("dose_family", value="of its own"))
    load(project)


def test_forks_and_stages_count_in_the_dose(project):
    edit(project, ARM, lambda arm: arm | FORKING | {"fast": [{"n": 4, "max_tokens": 512}]})
    edit(project, OTHER, lambda arm: arm | STAGES | {"fast": [{"n": 4, "max_tokens": 512}]})
    arms = load(project).arms
    assert arms["tested"].cap == 4 * 512 + 4 * 768 == 5120
    assert arms["other"].cap == 4 * (512 + 192 + 768 + 512) == 7936


def test_lengths_of_stages_and_forks_are_scaled_and_their_number_is_not(project):
    edit(project, ARM, lambda arm: arm | FORKING)
    edit(project, OTHER, lambda arm: arm | STAGES)
    forks, stages = (
        TrainSettings.model_validate_json(load(project).train_settings(name)).arm for name in ("tested", "other")
    )
    assert forks.fork.model_dump() == {key: n if key == "k" else n // 8 for key, n in FORK.items()} | {"min_tokens": 0}
    assert [stage.max_tokens for stage in (stages.verify, stages.slow, stages.summary)] == [24, 96, 64]


def test_a_repeated_realisation_differs_in_its_run_alone():
    """C34, of the shipped arms."""
    config = StudyConfig(yaml.safe_load((ROOT / MAIN).read_text()), ROOT)
    repeated = [name for name, arm in config.arms.items() if arm.run != 1]
    assert repeated
    for name in repeated:
        original, again = (json.loads(config.train_settings(arm))["arm"] for arm in (name.removesuffix("_rep2"), name))
        assert {key for key in again if again[key] != original[key]} == {"name", "run"}


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
    budgets = {"max_tokens": 2048, "verify_max_tokens": 192, "slow_max_tokens": 768}
    edit(project, SCALE, lambda scale: scale | {"evaluation": scale["evaluation"] | budgets})
    evaluation = EvalSettings.model_validate_json(load(project).eval_settings()).evaluation
    assert (evaluation.max_tokens, evaluation.verify_max_tokens, evaluation.slow_max_tokens) == (256, 24, 96)


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


def test_two_arms_replace_arms_and_contrasts_alone_and_stay_valid():
    override = yaml.safe_load((ROOT / TWO_ARMS).read_text())
    assert {key: set(section) for key, section in override.items()} == {"thinker": {"arms", "contrasts"}}
    main = yaml.safe_load((ROOT / MAIN).read_text())
    for key in ("arms", "contrasts"):
        assert [entry for entry in override["thinker"][key] if entry not in main["thinker"][key]] == []
    main["thinker"] |= override["thinker"]
    assert StudyConfig(main, ROOT).checkpoints() == [
        (arm, seed) for arm in ("parent_step100", "std_rlvr_cont", "std_stabilized_g8") for seed in (102, 42)
    ]
