"""A failure before a pipe ends the job, with its traceback in the log."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_failure_hidden_behind_a_pipe_fails_the_job_and_shows_its_traceback(tmp_path: Path) -> None:
    found = re.search(r"^shell\.prefix\(.*\)$", (ROOT / "Snakefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    rule = f"""
rule all:
    output: "out"
    shell: "{sys.executable} -c 'raise ValueError(77)' | tee {{output}}"
"""
    (tmp_path / "Snakefile").write_text(found[0] + "\n" + rule, encoding="utf-8")
    command = [sys.executable, "-m", "snakemake", "--cores", "1"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode != 0
    assert "ValueError: 77" in done.stderr
    assert not (tmp_path / "out").exists()
