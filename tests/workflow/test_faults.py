"""Kills, full disks, damaged files and wrong settings: the same bytes in the end, or one clear line and no harm."""

import json
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from dosematch.config import StudyConfig
from dosematch.errors import UserError
from dosematch.policy import load_policy, load_tokenizer, save_policy
from dosematch.records import read_yaml
from dosematch.resume import ResumeFolder

ARM, SEED = "std_stabilized_g8", 42  # accumulates over five steps, so states hold half-accumulated gradients
TARGET = "results/thinker/smoke/arms/std_rlvr_cont/seed102/model/model.safetensors"
EVALUATION = "results/thinker/smoke/arms/std_rlvr_cont/seed42"


def training_command(project, out_dir: Path, **switches: Any) -> list[str | Path]:
    """The command by which the workflow trains ARM, with other switches and another folder for its results."""
    config = read_yaml(project.root / "config/config.yaml") | {"scale": "smoke"}
    settings = json.loads(StudyConfig(config, project.root).train_settings(ARM))
    settings["arm"] |= switches
    meta = json.loads((project.results / f"arms/{ARM}/seed{SEED}/train_meta.json").read_text(encoding="utf-8"))
    options = {
        "settings": json.dumps(settings, sort_keys=True),
        "code": meta["code_version"].split("+")[-1],
        "seed": str(SEED),
        "start": project.results / f"parents/seed{SEED}/model/model.safetensors",
        "stream": project.results / f"streams/seed{SEED}.json",
        "development": project.results / "panels/val500.jsonl",
        "out-dir": out_dir,
    }
    return ["python", "workflow/scripts/train_arm.py", *(p for k, v in options.items() for p in (f"--{k}", v))]


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """The lines of stderr up to the first that holds `text`."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"{text!r} never came; the process wrote:\n{''.join(lines)}")


def kill_at(process: subprocess.Popen[str], text: str, delay: float = 0.0) -> list[str]:
    """Kill the whole process group `delay` seconds after `text` was logged; returns what was logged until then."""
    lines = read_until(process, text)
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return lines


def resumed_after(lines: list[str]) -> list[int]:
    return [int(line.split()[3]) for line in lines if line.startswith("resumed after step")]


def contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


def error_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("error: ")]


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """Refuse to let any file grow beyond `limit` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# --- kills ---------------------------------------------------------------------------------------------------------


def test_killed_training_ends_with_the_bytes_of_an_undisturbed_one(study, tmp_path: Path) -> None:
    """Killed at two random steps and while it writes its results, with a torn state and another arm in between."""
    rng = random.Random(20260101)
    out = tmp_path / "arm"
    command = training_command(study, out)

    first, second = rng.randrange(3, 6), rng.randrange(7, 10)
    lines = kill_at(study.start(*command), f"step {first} fast_acc", rng.uniform(0, 0.2))
    assert resumed_after(lines) == []

    lines = kill_at(study.start(*training_command(study, out, weight_decay=0.5)), "step 1 fast_acc")
    assert resumed_after(lines) == [], "a changed arm resumed the state of another"

    lines = kill_at(study.start(*command), f"step {second} fast_acc", rng.uniform(0, 0.2))
    assert resumed_after(lines)[0] >= (first - 1) // 2 * 2

    (states,) = (path for path in out.glob(".resume-*") if any(path.glob("*.safetensors")))
    intact, torn = sorted(states.glob("*.safetensors"))
    os.truncate(torn, torn.stat().st_size // 2)
    lines = kill_at(study.start(*command), "step 10 development")
    assert resumed_after(lines) == [int(intact.stem.removeprefix("step"))]

    done = study.run(*command)
    assert done.returncode == 0, done.stderr
    undisturbed = contents(study.results / f"arms/{ARM}/seed{SEED}")
    trained = {k: v for k, v in undisturbed.items() if k.startswith(("model/", "train", "val500_curve"))}
    assert len(trained) >= 7
    assert contents(out) == trained, "another result, or leftovers of killed runs"


@pytest.mark.parametrize("damage", ["truncate", "no digest", "garbage digest", "flip", "empty"])
def test_a_torn_state_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    folder = ResumeFolder(tmp_path)
    for step in (2, 4, 6):
        folder.save(step, {"weights": torch.full((64,), float(step))}, {"step": step})
    weights, record = tmp_path / "step000006.safetensors", tmp_path / "step000006.json"
    data = weights.read_bytes()
    if damage == "truncate":
        weights.write_bytes(data[: len(data) // 2])
    elif damage == "no digest":
        record.unlink()
    elif damage == "garbage digest":
        record.write_text('{"sha256": "', encoding="utf-8")
    elif damage == "flip":
        weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    else:
        weights.write_bytes(b"")
    state = folder.load()
    assert state is not None
    assert state[1] == {"step": 4}
    assert state[0]["weights"].eq(4.0).all()
    (tmp_path / "step000004.json").unlink()
    assert folder.load() is None


def training_process(group: int) -> int:
    """Process id of the training that runs in a process group."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and os.getpgid(int(folder.name)) == group:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            if len(arguments) > 1 and arguments[1].endswith(b"train_arm.py"):
                return int(folder.name)
    raise AssertionError("no training runs")


def test_killed_workflow_continues_and_refuses_a_second_one(project) -> None:
    """The training is killed, then Snakemake with everything below it; the third run is not disturbed by a fourth."""
    before = project.digests()

    def start(*options: str) -> subprocess.Popen[str]:
        return project.start_snakemake("--cores", "1", *options, target=TARGET)

    run = start("--forcerun", "train_arm")
    read_until(run, "step 3 fast_acc")
    os.kill(training_process(run.pid), signal.SIGKILL)
    run.communicate()
    assert run.returncode == 1
    assert not (project.root / TARGET).exists()

    lines = kill_at(start("--rerun-incomplete"), "step 6 fast_acc")
    assert resumed_after(lines)[0] >= 2
    assert not (project.root / TARGET).exists()

    stale = project.snakemake("--cores", "1", "--rerun-incomplete", target=TARGET)
    assert stale.returncode == 1
    assert "--unlock" in stale.stdout + stale.stderr
    assert project.snakemake("--unlock").returncode == 0

    run = start("--rerun-incomplete")
    while not any((project.root / ".snakemake").glob("locks/*")):
        assert run.poll() is None
        time.sleep(0.05)
    refused = project.snakemake("--cores", "1", "--rerun-incomplete", target=TARGET)
    assert run.poll() is None, "the run had ended before it could be disturbed"
    assert refused.returncode == 1
    assert "cannot be locked" in refused.stdout + refused.stderr
    _, log = run.communicate()
    assert run.returncode == 0, log
    assert resumed_after(log.splitlines())[0] >= 4

    assert project.digests() == before
    assert project.pending() == Counter()


# --- full disks ----------------------------------------------------------------------------------------------------


def grading_command(project, completions: Path, out: Path) -> list[str | Path]:
    panels = ["val350", "ext240"]
    options = {"panel": project.results / "panels", "completions": completions, "out": out}
    suffixes = {"panel": ".jsonl", "completions": ".parquet", "out": ".parquet"}
    parts = [(f"--{key}", options[key] / f"{panel}{suffixes[key]}") for key in options for panel in panels]
    parts += [("--verify-slow", project.root / EVALUATION / "verify_slow.parquet"), ("--verify-slow-panel", "val350")]
    parts += [("--verify-slow-out", out / "verify_slow_grades.parquet")]
    return ["python", "workflow/scripts/grade_panel.py", *(part for pair in parts for part in pair)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 kB; only root can mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", folder]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no permission to mount a small file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_full_disk_while_grading(study, small_disk: Path) -> None:
    done = study.run(*grading_command(study, study.root / EVALUATION / "completions", small_disk))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert str(small_disk) in line
    assert "No space left on device" in line
    whole = contents(study.root / EVALUATION / "grades")
    assert contents(small_disk).items() <= whole.items()


def test_no_room_for_a_resume_state(study, tmp_path: Path) -> None:
    with file_size_limit(100_000):  # inherited by the training
        done = study.run(*training_command(study, tmp_path / "arm"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = error_lines(done.stderr)
    assert "step000002.safetensors" in line
    assert "File too large" in line
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("stopped", ["weights", "tokenizer"])
def test_no_room_for_a_model(study, tmp_path: Path, stopped: str) -> None:
    folder = study.results / f"parents/seed{SEED}/model"
    model, tokenizer = load_policy(folder), load_tokenizer(folder)
    if stopped == "tokenizer":
        one = ("vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        four = ("hidden_size", "head_dim", "intermediate_size")
        config = type(model.config)(**dict.fromkeys(one, 1), **dict.fromkeys(four, 4), pad_token_id=None)
        model = type(model)(config)
    with file_size_limit(5_000), pytest.raises(UserError, match=r"model: not written: .*File too large"):
        save_policy(model, tokenizer, tmp_path / "model")
    assert contents(tmp_path) == {}


# --- damaged and missing files -------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite(path: Path) -> None:
    path.write_bytes(b"\x00\xff not what it was")


@pytest.mark.parametrize("damage", [truncate, overwrite, Path.unlink], ids=["truncated", "overwritten", "missing"])
@pytest.mark.parametrize("file", ["panels/ext240.jsonl", "completions/ext240.parquet"])
def test_damaged_input_of_grading(study, tmp_path: Path, file: str, damage: Callable[[Path], None]) -> None:
    shutil.copytree(study.results / "panels", tmp_path / "panels")
    shutil.copytree(study.root / EVALUATION / "completions", tmp_path / "completions")
    damage(tmp_path / file)
    command = grading_command(study, tmp_path / "completions", tmp_path / "grades")
    command = [str(part).replace(str(study.results), str(tmp_path)) for part in command]
    done = study.run(*command)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {tmp_path / file}: ")
    assert not (tmp_path / "grades").exists()


def test_completions_of_another_panel_are_refused(study, tmp_path: Path) -> None:
    shutil.copytree(study.root / EVALUATION / "completions", tmp_path / "completions")
    shutil.copy(tmp_path / "completions/math500.parquet", tmp_path / "completions/val350.parquet")
    done = study.run(*grading_command(study, tmp_path / "completions", tmp_path / "grades"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path}/completions/val350.parquet: sha1_12: row 0 belongs to another")


def test_damaged_completions_stop_the_workflow_until_mended(project) -> None:
    before = project.digests()
    record, damaged = f"{EVALUATION}/eval_6panel_bs50.json", project.root / EVALUATION / "completions/math500.parquet"
    whole = damaged.read_bytes()
    truncate(damaged)
    stopped = project.snakemake("--cores", "1", target=record)
    assert stopped.returncode == 1
    (line,) = error_lines(stopped.stderr)
    assert line.startswith(f"error: {EVALUATION}/completions/math500.parquet: unreadable: ")
    assert not any((project.root / EVALUATION / "grades").glob("*"))
    damaged.write_bytes(whole)
    assert project.snakemake("--cores", "1", target=record).returncode == 0
    assert project.digests() == before
    assert project.pending() == Counter()


@pytest.mark.parametrize("damage", [truncate, overwrite], ids=["truncated", "overwritten"])
def test_unreadable_weights(study, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    shutil.copytree(study.root / "resources/micro_base", tmp_path / "base")
    damage(tmp_path / "base/model.safetensors")
    with pytest.raises(UserError, match=str(tmp_path / "base")):
        load_policy(tmp_path / "base")


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (self.file.write_text, ("exploded",))


@pytest.mark.parametrize("beside", [None, "model.safetensors.index.json"])
def test_pickled_weights_are_refused_unread(study, tmp_path: Path, beside: str | None) -> None:
    base = shutil.copytree(study.root / "resources/micro_base", tmp_path / "base")
    (base / "model.safetensors").unlink()
    (base / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    if beside:
        (base / beside).write_text('{"metadata": {}, "weight_map": {"lm_head.weight": "pytorch_model.bin"}}')
    with pytest.raises(UserError) as error:
        load_policy(base)
    assert str(base) in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("file", ["resources/micro_base/model.safetensors", "resources/panels/micro.json"])
def test_missing_resources_stop_before_any_job(fresh, file: str) -> None:
    path = fresh.root / file
    path.rename(path.with_name("pytorch_model.bin"))
    done = fresh.snakemake("--cores", "1", scale="micro")
    assert done.returncode == 1
    assert file in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (fresh.root / "results").exists()


# --- wrong settings ------------------------------------------------------------------------------------------------

CONFIG = "config/config.yaml"
CONT = "config/arms/thinker/std_rlvr_cont.yaml"
G8 = "config/arms/thinker/std_stabilized_g8.yaml"
ISOLATED = "config/arms/thinker/brier_scd_pure.yaml"
REPEATED = "config/arms/thinker/fork_thinker_rep2.yaml"
SMOKE = "config/scales/smoke.yaml"
PROMPTS = "config/prompts/micro.yaml"


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        (CONT, "fast:", "wieght_decay: 0.1\nfast:", ["wieght_decay"]),
        (CONT, "fast:", "weight_decay: 1e-2\nfast:", ["weight_decay", "number"]),
        (CONT, "max_tokens: 512", "max_tokens: -1", ["fast.0.max_tokens"]),
        (CONT, "fast:", "fast: [", ["not YAML"]),
        (G8, "accumulation: 5", "accumulation: 3", ["accumulation", "10"]),
        (SMOKE, "steps: 10\n  tail_start: 6\n  base_lr", "steps: ten\n  tail_start: 6\n  base_lr", ["training.steps"]),
        (SMOKE, "threads: 1", "threads: 1, cores: 2", ["runtime.cores"]),
        (PROMPTS, 'slow: "\\nAgain:"', "slow: 3", ["slow", "string"]),
        (PROMPTS, "{question}\\nSolve:", "Solve:", ["fast", "{question}"]),
        (CONFIG, "conf500, fresh500, ext240]", "conf500, fresh500, ext241]", ["suites.all6", "ext241"]),
        (CONFIG, "scale: micro", "scale: mirco", ["scale", "mirco", "smoke"]),
        (CONT, "fast:", "prefix_mask: true\nfast:", ["prefix_mask", "forks"]),
        (CONT, "fast:", "alpha: 0.5\nfast:", ["alpha", "teacher"]),
        (ISOLATED, "pg_fast: false", "pg_fast: false\npg_stages: true", ["pg_stages", "isolated"]),
        (REPEATED, "n: 4, max_tokens: 512", "n: 3, max_tokens: 512", ["dose_family", "4608", "5120"]),
        (CONFIG, "- std_rlvr_cont\n", "- std_rlvr_count\n", ["thinker.arms", "std_rlvr_count"]),
        (CONFIG, "b: std_rlvr_cont,", "b: std_rlvr_count,", ["contrasts.0", "std_rlvr_count"]),
        (CONFIG, "seeds: [102, 42]", "seeds: [102, forty-two]", ["thinker.seeds.1", "integer"]),
        (CONFIG, "thinker:", "thinker: [", ["not YAML"]),
        (CONFIG, "  statistics:\n    resamples: 4000", "  statistics:\n    resamples: 0", ["statistics.resamples"]),
    ],
)
def test_wrong_settings_are_one_line_before_any_job(fresh, file: str, old: str, new: str, named: list[str]) -> None:
    fresh.edit(file, old, new)
    options = () if file == CONFIG else ("--config", "scale=smoke")
    done = fresh.run("snakemake", "--dry-run", *options)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = error_lines(done.stderr)
    assert line.startswith(f"error: {file}")
    assert [name for name in named if name not in line] == []


def test_wrong_setting_on_the_command_line(fresh) -> None:
    done = fresh.snakemake("--cores", "1", scale="mirco")
    assert done.returncode == 1
    (line,) = error_lines(done.stderr)
    assert line.startswith("error: config/config.yaml: scale: no file config/scales/mirco.yaml (known: ")
    assert not (fresh.root / "results").exists()
