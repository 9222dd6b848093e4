"""The resume certificate: a digest for every part of a state; killed anywhere, a training ends with the same ones.

A real kill: the training runs in a forked process that sends itself SIGKILL before a chosen file operation in its
resume folder. `make test` takes a sample of the places, `make test-resume` all of them (RESUME_KILLS=all).
"""

import json
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dosematch.grading import Grader
from dosematch.resume import ResumeFolder, part_digests, tensor_digest
from dosematch.training import Trainer

from ..tiny import FORKING, ISOLATED, byte_tokenizer, guesser, stream, train_settings
from .test_training import PANEL, SEED

ARMS = {"isolated": ISOLATED, "forking": FORKING}
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.listdir", "os.scandir"}
PARTS = {"master", "adamw", "grad", "tail", "anchors", "sampler", "rows", "curve", "kinds"}


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader() as grader:
        yield grader


def train(folder: Path, arm: str, grader: Grader) -> Trainer:
    """Run or resume a training of ten steps with a state after every step."""
    settings = train_settings(ARMS[arm], checkpoint_every=1, curve_every=10)
    run = Trainer(settings, SEED, guesser(), byte_tokenizer(), grader, PANEL)
    run.train(stream(), ResumeFolder(folder))
    return run


@pytest.fixture(scope="module")
def undisturbed(grader, tmp_path_factory) -> dict[str, dict[str, str]]:
    """Certificates of trainings that nothing interrupted."""
    return {arm: train(tmp_path_factory.mktemp(arm), arm, grader).certificate() for arm in ARMS}


def in_child(action: Callable[[], None]) -> int:
    """Run `action` in a forked process; its exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException as error:
            print(f"child: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def train_until(operation: int, folder: Path, arm: str) -> None:
    """Train in this process and die before file operation number `operation` in the folder."""
    count = 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal count
        if event in EVENTS and isinstance(arguments[0], str | os.PathLike) and str(folder) in str(arguments[0]):
            count += 1
            if count == operation:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    with Grader() as own:
        train(folder, arm, own)


def places() -> list[tuple[str, int]]:
    """Where to kill: a seeded sample, or every place."""
    everywhere = [(arm, operation) for arm in ARMS for operation in range(1, 100)]
    if os.environ.get("RESUME_KILLS") == "all":
        return everywhere
    return random.Random(0).sample(everywhere, 5)


@pytest.mark.parametrize(("arm", "operation"), places())
def test_killed_before_any_file_operation(arm, operation, tmp_path, grader, undisturbed) -> None:
    """Between two steps or inside the write: what is left is taken up, and every part ends the same."""
    folder = tmp_path / "resume"
    status = in_child(lambda: train_until(operation, folder, arm))
    assert status == -signal.SIGKILL
    assert train(folder, arm, grader).certificate() == undisturbed[arm]


def test_there_are_more_places_than_are_killed_at(tmp_path) -> None:
    """The range of `places` lies inside a training; otherwise kills would be asked for that never come."""
    assert in_child(lambda: train_until(99, tmp_path / "resume", "isolated")) == -signal.SIGKILL
    assert in_child(lambda: train_until(100_000, tmp_path / "other", "isolated")) == 0


@pytest.mark.parametrize("damage", ["cut", "flip", "flip_json", "no_json", "empty"])
@pytest.mark.parametrize("steps_lost", [1, 2])
def test_torn_states(damage, steps_lost, tmp_path, grader, undisturbed) -> None:
    """The newest state, or both, damaged: the one before, or the start, gives the same end."""
    folder = tmp_path / "resume"
    train_to(5, folder, grader)
    states = sorted(folder.glob("*.safetensors"))
    assert len(states) == 2
    for state in states[-steps_lost:]:
        record = state.with_suffix(".json")
        target = record if damage.endswith("json") else state
        content = bytearray(target.read_bytes())
        if damage == "no_json":
            record.unlink()
            continue
        if damage.startswith("flip"):
            content[len(content) * 2 // 3] ^= 0x01
        target.write_bytes({"cut": content[: len(content) // 2], "empty": b""}.get(damage, content))
    assert train(folder, "isolated", grader).certificate() == undisturbed["isolated"]


def train_to(step: int, folder: Path, grader: Grader) -> None:
    """Train until the state after `step` is written."""

    class Stop(Exception):
        pass

    class Folder(ResumeFolder):
        def save(self, at: int, tensors, values) -> None:
            super().save(at, tensors, values)
            if at == step:
                raise Stop

    settings = train_settings(ISOLATED, checkpoint_every=1, curve_every=10)
    run = Trainer(settings, SEED, guesser(), byte_tokenizer(), grader, PANEL)
    with pytest.raises(Stop):
        run.train(stream(), Folder(folder))


def test_no_room_in_the_middle_of_a_write(tmp_path, grader, undisturbed, capfd) -> None:
    """A real limit on the size of files, met inside the write of a state: it fails, and nothing torn is taken up."""
    folder = tmp_path / "resume"
    train_to(3, folder, grader)
    size = max(path.stat().st_size for path in folder.glob("*.safetensors"))

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with Grader() as own:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))
            train(folder, "isolated", own)

    assert in_child(limited) == 1
    assert "not written" in capfd.readouterr().err
    assert not list(folder.glob(".*.tmp"))
    assert train(folder, "isolated", grader).certificate() == undisturbed["isolated"]


def test_a_state_names_its_parts(tmp_path, grader) -> None:
    """The digests in a state's JSON are those of its tensors and values, recomputed from the files."""
    train_to(7, tmp_path, grader)
    newest = max(tmp_path.glob("*.safetensors"))
    record = json.loads(newest.with_suffix(".json").read_text())
    assert record["digests"].keys() >= PARTS
    assert record["digests"] == part_digests(load_file(newest), record["values"])
    assert record["values"]["sampler"] == {"study": "thinker", "seed": SEED, "run": 1, "step": 7}


@pytest.mark.parametrize("part", ["master", "adamw", "tail"])
def test_a_changed_part_is_named(part, tmp_path, grader, caplog) -> None:
    """A tensor changed behind the record's back, in a file that reads well."""
    train_to(7, tmp_path, grader)
    newest = max(tmp_path.glob("*.safetensors"))
    tensors = load_file(newest)
    name = min(name for name in tensors if name.startswith(f"{part}.") and tensors[name].numel() > 1)
    tensors[name].view(-1)[0] += 1e-3
    save_file(tensors, newest)
    ResumeFolder(tmp_path).load()
    assert f"{newest}: torn" in caplog.text
    assert f"({part})" in caplog.text


def test_the_digest_of_tensors_is_of_all_they_are() -> None:
    """Name, dtype, shape and every bit count; order does not, nor where the tensor lies in memory."""
    base = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(2)}
    others = [
        {"c": base["a"], "b": base["b"]},
        {"a": base["a"].reshape(3, 2), "b": base["b"]},
        {"a": base["a"].double(), "b": base["b"]},
        {"a": base["a"], "b": -base["b"]},
        {"a": base["a"]},
    ]
    assert len({tensor_digest(base), *map(tensor_digest, others)}) == 6
    turned = {"b": base["b"], "a": base["a"].t().contiguous().t()}
    assert tensor_digest(turned) == tensor_digest(base)
    assert tensor_digest({"a": torch.ones(3, dtype=torch.bfloat16)}) != tensor_digest({"a": torch.ones(3)})
