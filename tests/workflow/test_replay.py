"""One step, or one graded answer, again from its record; a record that was changed is found out."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

ITEM = "val350:3"


def replay(study, script: str, **options: Any) -> subprocess.CompletedProcess[str]:
    chosen = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    return study.run(sys.executable, study.root / f"workflow/scripts/replay_{script}.py", *chosen)


def step_files(study, arm: str, seed: int = 102) -> dict[str, Path]:
    return {
        "run_dir": study.results / f"arms/{arm}/seed{seed}",
        "start": study.results / f"parents/seed{seed}/model/model.safetensors",
        "stream": study.results / f"streams/seed{seed}.json",
    }


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.fixture
def copied_run(study, tmp_path: Path) -> Path:
    """A run's folder that may be changed."""
    shutil.copytree(study.results / "arms/fork_thinker/seed102", tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("arm", ["std_rlvr_cont", "thinker_unweighted_sumsft", "bc_thinker", "fork_thinker"])
def test_a_step_is_taken_again_with_every_field_equal(study, arm: str) -> None:
    """Step 4 has three steps, their anchors and their running pass rate behind it."""
    done = replay(study, "step", step=4, **step_files(study, arm))
    assert done.returncode == 0, done.stderr
    row = json.loads((study.results / f"arms/{arm}/seed102/training.jsonl").read_text().splitlines()[3])
    assert f"step 4: all {len(row)} fields equal the record" in done.stdout
    assert done.stdout.count(" -> ") == sum(
        (len(row["fast_len"]), len(row.get("verdicts", ())), row.get("n_slow", 0), row.get("n_summary", 0))
    ) + row.get("n_fork", 0)


@pytest.mark.parametrize(("field", "value"), [("entropy", 0.5), ("fast_sha1", []), ("unheard_of", 1)])
def test_a_changed_record_of_a_step_is_found_out(study, copied_run: Path, field: str, value: Any) -> None:
    rows = [json.loads(line) for line in (copied_run / "training.jsonl").read_text().splitlines()]
    rows[1][field] = value
    (copied_run / "training.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = step_files(study, "fork_thinker") | {"run_dir": copied_run}
    assert f"step 2: replay differs in {field}" in one_line(replay(study, "step", step=2, **files))


def test_files_of_another_run_are_refused(study) -> None:
    files, others = step_files(study, "fork_thinker"), step_files(study, "fork_thinker", 42)
    for key in ("start", "stream"):
        message = one_line(replay(study, "step", step=1, **files | {key: others[key]}))
        assert str(others[key]) in message
        assert "train_meta.json" in message


def test_bad_records_of_a_step_end_in_one_line(study, copied_run: Path) -> None:
    files = step_files(study, "fork_thinker") | {"run_dir": copied_run}
    assert "has no step 99" in one_line(replay(study, "step", step=99, **files))
    meta = json.loads((copied_run / "train_meta.json").read_text())
    del meta["settings"]["arm"]["censor"]
    (copied_run / "train_meta.json").write_text(json.dumps(meta))
    assert "train_meta.json: settings.arm.censor" in one_line(replay(study, "step", step=1, **files))


def item_files(study) -> dict[str, Path]:
    return {"arm_dir": study.results / "arms/fork_thinker/seed102", "panels": study.results / "panels"}


def test_an_answer_is_graded_again(study) -> None:
    done = replay(study, "item", item=ITEM, **item_files(study))
    assert done.returncode == 0, done.stderr
    outcome = pd.read_parquet(item_files(study)["arm_dir"] / "grades/val350.parquet")["outcome"][3]
    assert [line.split(",")[0].split()[-1] for line in done.stdout.splitlines()[-2:]] == [outcome, outcome]


def test_a_changed_grade_is_found_out(study, copied_run: Path) -> None:
    path = copied_run / "grades/val350.parquet"
    grades = pd.read_parquet(path)
    grades.loc[3, "outcome"] = "wrong" if grades.loc[3, "outcome"] == "correct" else "correct"
    grades.to_parquet(path)
    done = replay(study, "item", item=ITEM, **item_files(study) | {"arm_dir": copied_run})
    assert "item 3: the current grader decides otherwise" in one_line(done)


@pytest.mark.parametrize("item", ["val350", "val350:", "val350:\u00b2", "val350:999", "unheard_of:1"])
def test_an_item_that_is_not_there_ends_in_one_line(study, item: str) -> None:
    assert item.split(":")[0] in one_line(replay(study, "item", item=item, **item_files(study)))
