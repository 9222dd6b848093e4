"""What a change reruns, counted in dry runs of a finished study: everything that depends on it, and nothing else."""

import os
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

ARMS = "config/arms/thinker"
LIBRARY = "workflow/dosematch"
# The supplement holds code and configuration, so any edit of them packs it again.
SUPPLEMENT = {"make_supplement": 1, "regrade": 1, "make_report": 1, "all": 1}
REPORTING = {"make_tables": 1, "make_figures": 1, **SUPPLEMENT}
STATISTICS = {"compare_arms": 1, "compare_published": 1, **REPORTING}


def evaluations(n: int) -> dict[str, int]:
    """The jobs that evaluate n checkpoints."""
    return {"generate_panel": n, "grade_panel": n, "merge_eval": n}


# Twelve arms continue the parent, two of them with one of the two seeds.
EVERY_TRAINING = {"train_parent": 2, "train_arm": 22, **evaluations(24), **STATISTICS}
ONE_ARM = {"train_arm": 2, **evaluations(2), **STATISTICS}
QUESTIONS = {"prepare_questions": 1, "build_stream": 4, "audit_ancestry": 2}


def touch_everything(root: Path) -> None:
    """Give every file a new time stamp, in an order that makes inputs newer than outputs and the other way round."""
    files = [path for path in root.rglob("*") if path.is_file() and ".snakemake" not in path.parts]
    random.Random(0).shuffle(files)
    for second, path in enumerate(files):
        os.utime(path, (path.stat().st_mtime + second,) * 2)


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(entry) for key, entry in reversed(value.items())}
    return [reversed_keys(entry) for entry in value] if isinstance(value, list) else value


def test_no_change_reruns_nothing(study) -> None:
    assert study.pending() == Counter()


def test_touching_everything_reruns_nothing(project) -> None:
    touch_everything(project.root)
    assert project.pending() == Counter()


def test_the_profile_makes_touching_harmless(project) -> None:
    """Without profiles/default, weights are too large to be compared by content: the test above would fail."""
    assert "profiles/default" in project.snakemake("--dry-run").stderr
    touch_everything(project.root)
    assert project.pending("--workflow-profile", "none")["generate_panel"] > 0


@pytest.mark.parametrize("scale", ["smoke", "micro"])
def test_a_fresh_clone_has_everything_to_do(fresh, scale: str) -> None:
    assert fresh.pending(scale=scale) == QUESTIONS | EVERY_TRAINING | {"check_published": 1}


def test_one_switch_reruns_one_arm(project) -> None:
    project.append(f"{ARMS}/std_rlvr_cont.yaml", "weight_decay: 0.06")
    assert project.pending_with_arms() == (ONE_ARM, {"std_rlvr_cont"})


def test_a_default_reruns_the_arms_that_use_it(project) -> None:
    """The others set their own weight decay; two of these six have one seed."""
    project.edit(f"{ARMS}/_defaults.yaml", "weight_decay: 0.05", "weight_decay: 0.06")
    arms = {"std_rlvr_cont", "thinker_baseline", "thinker_unweighted_sumsft", "bc_thinker"}
    arms |= {"brier_scd_pure", "thinker_unweighted_sumsft_rep2"}
    assert project.pending_with_arms() == ({"train_arm": 10, **evaluations(10), **STATISTICS}, arms)


@pytest.mark.parametrize(
    ("old", "new"),
    [("# Plain single-turn", "# Ordinary single-turn"), ("accumulation 1, unmasked", "accumulation one, unmasked")],
    ids=["comment", "label"],
)
def test_rewording_an_arm_trains_nothing(project, old: str, new: str) -> None:
    project.edit(f"{ARMS}/std_rlvr_cont.yaml", old, new)
    assert project.pending() == STATISTICS


def test_key_order_and_layout_only_pack_the_supplement_again(project) -> None:
    for path in sorted((project.root / "config").rglob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        comments = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
        turned = reversed_keys(yaml.safe_load(text))
        path.write_text(comments + yaml.safe_dump(turned, sort_keys=False), encoding="utf-8")
        assert path.read_text(encoding="utf-8") != text
    assert project.pending() == SUPPLEMENT


def test_a_seed_more_runs_what_is_new(project) -> None:
    project.edit("config/config.yaml", "seeds: [102, 42]", "seeds: [102, 42, 7]")
    new = {"build_stream": 2, "audit_ancestry": 2, "train_parent": 1, "train_arm": 10}
    assert project.pending() == new | evaluations(11) | STATISTICS


def test_the_arm_of_the_readme_runs_what_is_new(project) -> None:
    """The texts are taken from README.md, so that its example stays true."""
    readme = (project.root / "README.md").read_text(encoding="utf-8")
    arm, config = re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL)
    name = re.search(rf"Write `{ARMS}/(\w+)\.yaml`", readme)
    assert name is not None
    assert len(arm.splitlines()) <= 10
    (project.root / f"{ARMS}/{name[1]}.yaml").write_text(arm, encoding="utf-8")
    example = yaml.safe_load(config)
    assert name[1] in example["arms"]
    project.edit("config/config.yaml", "    - std_rlvr_cont\n", f"    - std_rlvr_cont\n    - {name[1]}\n")
    project.edit("config/config.yaml", "  contrasts:\n", f"  contrasts:\n    - {example['contrasts'][0]}\n")
    assert project.pending_with_arms() == (ONE_ARM, {name[1]})


def test_one_arm_less_only_tests_again(project) -> None:
    path = project.root / "config/config.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    thinker = config["thinker"]
    thinker["arms"].remove("std_rlvr_cont")
    thinker["contrasts"] = [c for c in thinker["contrasts"] if "std_rlvr_cont" not in (c["a"], c["b"])]
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert project.pending() == STATISTICS


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (f"{LIBRARY}/reporting/figures.py", {"make_figures": 1, **SUPPLEMENT}),
        (f"{LIBRARY}/reporting/report.html.j2", SUPPLEMENT),
        (f"{LIBRARY}/statistics/bootstrap.py", STATISTICS),
        ("workflow/scripts/grade_panel.py", {"grade_panel": 24, "merge_eval": 24, **STATISTICS}),
        ("workflow/scripts/generate_panel.py", {**evaluations(24), **STATISTICS}),
        (f"{LIBRARY}/objectives.py", EVERY_TRAINING),
        (f"{LIBRARY}/optimizer.py", EVERY_TRAINING),
        (f"{LIBRARY}/questions/synthetic.py", QUESTIONS | EVERY_TRAINING),
        (f"{LIBRARY}/pretraining.py", SUPPLEMENT),
    ],
)
def test_code_reruns_the_stages_that_run_it(project, module: str, expected: dict[str, int]) -> None:
    project.append(module, "{# reworded #}" if module.endswith(".j2") else "# reworded")
    assert project.pending() == expected


def test_a_prompt_reruns_what_generates_with_it(project) -> None:
    project.edit("config/prompts/micro.yaml", "Solve:", "Answer:")
    assert project.pending() == EVERY_TRAINING


def test_statistics_settings_only_test_again(project) -> None:
    project.edit("config/config.yaml", "resamples: 4000", "resamples: 4001")
    assert project.pending() == STATISTICS


def test_a_stage_can_be_forced(study) -> None:
    assert study.pending("--forcerun", "train_arm")["train_arm"] == 22


def test_a_harmless_edit_can_be_accepted(project) -> None:
    project.append(f"{LIBRARY}/objectives.py", "# reworded")
    assert project.snakemake("--cores", "1", "--touch").returncode == 0
    assert project.pending() == Counter()
