"""One real training step at the size of Qwen3-0.6B, with random weights, within 24 GB: `make test-large`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_GB = 24


@pytest.mark.parametrize("arm", ["std_stabilized_g8", "fork_thinker"])
def test_one_step_at_a_reduced_horizon_fits(arm: str, tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    options = ["--arms", arm, "--device", "cpu", "--threads", "2", "--horizon", "0.03125", "--steps", "1"]
    script = ROOT / "workflow/scripts/gpu_check.py"
    done = subprocess.run(
        [sys.executable, str(script), "--out", str(out), *options, "--no-rollouts"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(out.read_text())
    [trained] = result["training"]
    [row] = trained["rows"]
    print(json.dumps(trained))
    assert result["layers"] == 28
    assert row["grad_norm"] > 0
    assert row["pg_bwd_tokens"]["loss"] > 0
    assert (row["distill_bwd_tokens"]["loss"] > 0) == (arm == "fork_thinker")
    assert row["sampling/logp_difference/max"] < 0.5
    assert trained["peak_gb"] < LIMIT_GB
    assert 0.7 < trained["estimate_gb"] / trained["peak_gb"] < 1.5  # the estimate may refuse a run, so it must be true
