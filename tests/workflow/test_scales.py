"""The paper's scale and the sweep are planned by the same rules; what only a network can bring ends in one line."""

import json

from .conftest import job_counts


def test_paper_scale_is_planned_whole_without_a_gpu(fresh):
    for name in ("math_train_12k.jsonl.gz", "math500.jsonl", "gsm8k_test.jsonl", "amc23.jsonl"):
        file = fresh.root / "data" / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
    jobs = job_counts(fresh.snakemake("-n", target="all", scale="qwen3-0.6b"))
    assert jobs["fetch_model"] == 1
    assert jobs["train_arm"] == 22  # eleven arms, two seeds
    assert jobs["train_parent"] == 2
    swept = job_counts(fresh.snakemake("-n", target="base_lr_sweep", scale="qwen3-0.6b"))
    assert swept["train_base_lr"] == 8  # four rates, two seeds
    assert swept["train_arm"] == 0


def test_a_download_without_network_ends_in_one_line(fresh):
    script = "workflow/scripts/fetch_model.py"
    out = fresh.root / "models/none"
    options = ("--repository", "no-such-owner/none", "--revision", "main", "--out-dir", out)
    done = fresh.run("env", "HF_ENDPOINT=http://127.0.0.1:9", "python", script, *options)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    assert not (out / "model.safetensors").exists()


def test_the_best_rate_comes_first_and_of_equal_ones_the_smaller(fresh):
    curves = []
    for rate, seed, accuracy in (
        (1e-5, 1, 0.5),
        (1e-5, 2, 0.25),
        (3e-5, 1, 0.25),
        (3e-5, 2, 0.5),
        (1e-4, 1, 0.5),
        (1e-4, 2, 0.75),
    ):
        folder = fresh.root / f"sweep/{rate}/{seed}"
        folder.mkdir(parents=True)
        (folder / "train_meta.json").write_text(json.dumps({"base_lr": rate, "seed": seed}), encoding="ascii")
        rows = [{"step": 1, "accuracy": 1.0}, {"step": 2, "accuracy": accuracy}]  # only the last one counts
        curves.append(folder / "curve.jsonl")
        curves[-1].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="ascii")
    out = fresh.root / "base_lr.csv"
    done = fresh.run("python", "workflow/scripts/choose_base_lr.py", "--out", out, *curves)
    assert done.returncode == 0, done.stderr
    lines = [line.split(",") for line in out.read_text(encoding="utf-8").splitlines()[1:]]
    assert [(float(line[0]), float(line[1])) for line in lines] == [(1e-4, 0.625), (1e-5, 0.375), (3e-5, 0.375)]
