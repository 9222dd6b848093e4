"""Data parallelism: two and three real processes under torchrun against one, on gloo."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dosematch import parallel
from dosematch.errors import UserError
from dosematch.grading import Grader

from . import parallel_worker as alone

ROOT = Path(__file__).parents[2]
SAMPLED = ("fast_sha1", "fast_correct", "adv_fast", "gen_tokens", "pg_bwd_tokens", "distill_bwd_tokens", "anchor_sha1")


def torchrun(n: int, out: Path, mode: str) -> subprocess.CompletedProcess[str]:
    """Run the worker in `n` processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    return subprocess.run(
        [*command, "-m", "tests.unit.parallel_worker", str(out), mode],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'workflow'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader() as grader:
        yield grader


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """What two processes wrote."""
    out = tmp_path_factory.mktemp("two")
    done = torchrun(2, out, "all")
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> Path:
    """Gradients of three processes: shares of eight rollouts are uneven, and some stages leave one without work."""
    out = tmp_path_factory.mktemp("three")
    done = torchrun(3, out, "gradients")
    assert done.returncode == 0, done.stderr
    return out


def gap(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """Largest absolute difference."""
    assert found.keys() == wanted.keys()
    return max(float((found[name] - wanted[name].detach()).abs().max()) for name in wanted)


@pytest.mark.parametrize("episode", alone.EPISODES)
@pytest.mark.parametrize("processes", ["two", "three"])
def test_tokens_are_identical_and_gradients_equal(episode, processes, grader, request) -> None:
    """Whatever is sampled and decided is the same to the token; gradients of entries up to 1 differ by < 1e-6."""
    out = request.getfixturevalue(processes)
    rows, wanted = alone.gradients(grader, alone.EPISODES[episode])
    found_rows = json.loads((out / f"{episode}.json").read_text())
    for field in [name for name in rows[0] if name in SAMPLED or name.startswith("fork")]:
        assert [row[field] for row in found_rows] == [row[field] for row in rows], field
    assert max(float(tensor.abs().max()) for tensor in wanted.values()) > 1e-3
    found = load_file(out / f"{episode}.0.safetensors")
    assert gap(found, wanted) < 1e-6
    assert gap(load_file(out / f"{episode}.1.safetensors"), found) == 0.0


def test_a_resumed_training_ends_near_one_process(two, grader, tmp_path) -> None:
    """Ten steps, taken up again from their last state: the same samples, and weights as far as rounding goes."""
    run = alone.whole(grader, tmp_path / "resume")
    rows = json.loads((two / "whole.json").read_text())
    assert [row["fast_sha1"] for row in rows] == [row["fast_sha1"] for row in run.rows]
    assert gap(load_file(two / "whole.0.safetensors"), dict(run.model.named_parameters())) < 1e-5
    assert (two / "whole.0.safetensors").read_bytes() == (two / "whole.1.safetensors").read_bytes()


def test_a_forgotten_sum_is_noticed(two, grader) -> None:
    """The comparison can fail: without the sum over processes the gradients are far from one process's."""
    _, wanted = alone.gradients(grader, {})
    assert gap(load_file(two / "mutant.0.safetensors"), wanted) > 1e-4


@pytest.mark.parametrize(
    ("mode", "line"),
    [
        ("fail", "error: step 1: process 1 had enough"),
        ("drift", "error: process 1: its weights differ from those of process 0"),
    ],
)
def test_one_process_stops_all(mode, line, tmp_path) -> None:
    """A failing process ends the others, and says why in one line."""
    done = torchrun(2, tmp_path, mode)
    assert done.returncode != 0
    assert line in done.stderr.splitlines()


def test_alone_everything_is_the_identity() -> None:
    """No group, no torchrun: nothing is cut, gathered or sorted."""
    assert (parallel.size(), parallel.rank(), parallel.gathered("x")) == (1, 0, ["x"])
    assert parallel.in_shares(lambda own: [2 * i for i in own], [1, 2, 3]) == [2, 4, 6]
    items = [3, 1, 2]
    assert parallel.dealt(items, key=lambda i: i) is items
    assert parallel.by_first(len) is len


def test_the_number_of_processes_must_be_the_configured_one(monkeypatch) -> None:
    """Started alone with two configured, or by torchrun with one."""
    with pytest.raises(UserError, match=r"runtime\.processes is 2, started: 1"):
        parallel.join("cpu", 2)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UserError, match=r"runtime\.processes is 1, started: 4"):
        parallel.join("cpu", 1)
