"""The smoke study on a real Slurm: a cancelled and a memory-killed job, then completion with the local run's bytes."""

import os
import re
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[2]
STUDY = ("--configfile", "config/two_arms.yaml", "--config", "scale=smoke")
POLL = ("--slurm-init-seconds-before-status-checks", "3", "--seconds-between-status-checks", "3")  # jobs are short
SLURM = ("--profile", "profiles/slurm", *POLL, *STUDY)
UNCOMPARED = {"logs", "log"}


def clone(folder: Path) -> Path:
    """A clone of the committed project."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    return folder


def start(root: Path, *options: str) -> subprocess.Popen[bytes]:
    """Snakemake in a project, writing to snakemake.out."""
    with (root / "snakemake.out").open("ab") as out:
        environment = os.environ | {"PYTHONPATH": str(root / "workflow"), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "snakemake", *options]
        return subprocess.Popen(command, cwd=root, env=environment, stdout=out, stderr=out)


def digests(root: Path) -> dict[str, str]:
    """SHA-256 of every visible result, logs excepted."""
    files = (path.relative_to(root) for path in sorted((root / "results").rglob("*")) if path.is_file())
    return {
        str(file): sha256((root / file).read_bytes()).hexdigest()
        for file in files
        if not UNCOMPARED & set(file.parts) and not any(part.startswith(".") for part in file.parts)
    }


def submitted(root: Path, rule: str, process: subprocess.Popen[bytes]) -> str:
    """The Slurm id of the rule's first job, once it runs."""
    while process.poll() is None:
        text = (root / "snakemake.out").read_text()
        found = re.search(rf"rule_{rule}\S*/(\d+)\.log", text)
        if found and state(found[1]) == "RUNNING":
            return found[1]
        time.sleep(0.2)
    raise AssertionError(f"{rule} never ran: {(root / 'snakemake.out').read_text()[-2000:]}")


def state(job: str) -> str:
    """What Slurm says of a job."""
    shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=True).stdout
    found = re.search(r"JobState=(\w+)", shown)
    assert found, shown
    return found[1]


def test_a_cancelled_and_a_killed_job_leave_the_same_bytes(tmp_path: Path) -> None:
    local = clone(tmp_path / "local")
    assert start(local, "--cores", "2", *STUDY).wait() == 0

    cluster = clone(tmp_path / "cluster")
    cancelled = start(cluster, *SLURM, "--retries", "0")
    job = submitted(cluster, "train_parent", cancelled)
    subprocess.run(["scancel", job], check=True)
    assert cancelled.wait() != 0
    assert state(job) == "CANCELLED"

    (cluster / "snakemake.out").write_text("")
    starved = start(cluster, *SLURM, "--retries", "0", "--set-resources", "train_parent:mem_mb=50")
    job = submitted(cluster, "train_parent", starved)
    assert starved.wait() != 0
    log = next((cluster / ".snakemake/slurm_logs").rglob(f"{job}.log"))
    assert "exceeded memory limit" in log.read_text()

    assert start(cluster, *SLURM).wait() == 0, (cluster / "snakemake.out").read_text()[-2000:]
    assert digests(cluster) == digests(local)
