"""Copies of the project on which real Snakemake runs; the smoke study, and three arms beside it, once per session."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JOB_COUNT = re.compile(r"^(\w+) +(\d+)$", re.MULTILINE)
UNCOMPARED = {"logs"}  # messages of jobs, in an order of their own
THREE_ARMS = Path(__file__).with_name("three_arms.yaml")  # one of every kind of episode
UNCOPIED = shutil.ignore_patterns("__pycache__", "locks", "log")  # other tests may be writing them


@dataclass(frozen=True)
class Project:
    """A copy of the project in a folder of its own."""

    root: Path

    @property
    def results(self) -> Path:
        """Results of the smoke scale."""
        return self.root / "results/thinker/smoke"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of an activated virtual environment, without network."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return os.environ | {"PATH": path, "PYTHONPATH": str(self.root / "workflow"), "HF_HUB_OFFLINE": "1"}

    def start(self, *command: str | Path) -> subprocess.Popen[str]:
        """Start a command in the project, as the leader of a process group, with its two streams captured."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [str(part) for part in command],
            cwd=self.root,
            env=self.environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        )

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command in the project to its end."""
        return finished(self.start(*command))

    def start_snakemake(self, *options: str, target: str = "all", scale: str = "smoke") -> subprocess.Popen[str]:
        """Start Snakemake on one scale."""
        return self.start("snakemake", *options, "--config", f"scale={scale}", "--", target)

    def snakemake(self, *options: str, target: str = "all", scale: str = "smoke") -> subprocess.CompletedProcess[str]:
        """Run Snakemake on one scale to its end."""
        return finished(self.start_snakemake(*options, target=target, scale=scale))

    def pending(self, *options: str, scale: str = "smoke") -> Counter[str]:
        """What a dry run would do: job counts by rule, empty when there is nothing to do."""
        return self.pending_with_arms(*options, scale=scale)[0]

    def pending_with_arms(self, *options: str, scale: str = "smoke") -> tuple[Counter[str], set[str]]:
        """The same, and the arms that the jobs are for."""
        done = self.snakemake("--dry-run", *options, scale=scale)
        return job_counts(done), set(re.findall(r"wildcards: arm=(\w+)", done.stdout))

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace a text that occurs exactly once in a file."""
        path = self.root / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def append(self, file: str, line: str) -> None:
        """Add a line to a file."""
        with (self.root / file).open("a", encoding="utf-8") as stream:
            stream.write(f"{line}\n")

    def digests(self) -> dict[str, str]:
        """SHA-256 of every file under results/, hidden ones included, logs excepted."""
        return {
            str(path.relative_to(self.root)): sha256(path.read_bytes()).hexdigest()
            for path in sorted((self.root / "results").rglob("*"))
            if path.is_file() and not UNCOMPARED & set(path.parts)
        }

    def copy(self, root: Path) -> "Project":
        """The same project elsewhere, with results, time stamps and Snakemake's records."""
        shutil.copytree(self.root, root, symlinks=True, ignore=UNCOPIED)
        return Project(root)


def finished(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for a process and collect what it wrote."""
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def job_counts(dry_run: subprocess.CompletedProcess[str]) -> Counter[str]:
    """The table of jobs that a dry run prints."""
    assert dry_run.returncode == 0, dry_run.stderr
    if "Nothing to be done" in dry_run.stdout:
        return Counter()
    counts = {rule: int(n) for rule, n in JOB_COUNT.findall(dry_run.stdout)}
    assert counts.pop("total") == sum(counts.values())
    return Counter(counts)


def check_out(root: Path) -> Project:
    """What a clone of this working tree would hold: tracked and new files, no ignored ones."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    )
    for name in listed.stdout.decode().splitlines():
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    return Project(root)


@pytest.fixture(scope="session")
def studies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Project]:
    """A finished smoke study, run with `--cores 2`, and one of `THREE_ARMS`, run at the same time with `--cores 1`.

    Parallel test workers share them: the first that comes runs them, the others wait. No test may change them.
    """
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    finished_before = shared / "studies.finished"
    whole, three = Project(shared / "two_cores"), Project(shared / "one_core")
    with (shared / "studies.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished_before.exists():
            check_out(whole.root)
            whole.copy(three.root)
            arms = ("--configfile", str(THREE_ARMS))
            for run in (whole.start_snakemake("--cores", "2"), three.start_snakemake("--cores", "1", *arms)):
                done = finished(run)
                assert done.returncode == 0, done.stderr[-3000:]
            finished_before.touch()
    return whole, three


@pytest.fixture(scope="session")
def study(studies: tuple[Project, Project]) -> Project:
    """A finished study, to be read only."""
    return studies[0]


@pytest.fixture
def project(study: Project, tmp_path: Path) -> Iterator[Project]:
    """A finished study of one's own."""
    copy = study.copy(tmp_path / "project")
    yield copy
    shutil.rmtree(copy.root)


@pytest.fixture
def fresh(tmp_path: Path) -> Project:
    """A fresh clone."""
    return check_out(tmp_path / "fresh")
