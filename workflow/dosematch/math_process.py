"""Our end of the process that does the mathematics of grading: started when first needed, again when it has died."""

import json
import os
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dosematch.errors import UserError

if TYPE_CHECKING:  # only the other process imports it; named here so that source digests follow it
    import dosematch.math_worker  # noqa: F401

STARTUP_SECONDS = 120.0  # imports on a busy machine; not part of any answer's limit
GRACE_SECONDS = 5.0  # what the process may take on top of its own wall limit before it counts as hung


class Cost(NamedTuple):
    """Outcome of a comparison, the CPU seconds of its child process and the most memory it held."""

    outcome: str
    cpu_seconds: float
    peak_bytes: int


class MathProcess:
    """Compares LaTeX in a process of its own, one request at a time; safe to call from several threads.

    One comparison may take `cpu_seconds` of computing, `wall_seconds` in all (which only a stalled machine reaches),
    and `memory_bytes` of address space.
    """

    def __init__(self, cpu_seconds: float, wall_seconds: float, memory_bytes: int) -> None:
        self.cpu_seconds = cpu_seconds
        self.wall_seconds = wall_seconds
        self.memory_bytes = memory_bytes
        self.process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def compare(self, answer: str, gold: str) -> Cost:
        """The outcome of normalised LaTeX against normalised LaTeX; a process that died on it makes it an error."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps({"answer": answer, "gold": gold}).encode() + b"\n")
            except BrokenPipeError:
                self.close()
                return Cost("error", 0.0, 0)
            return self._reply_within(self.wall_seconds + GRACE_SECONDS)

    def close(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is not None and self.process.poll() is None:
            return self.process
        self.close()
        limits = [self.memory_bytes, self.cpu_seconds, self.wall_seconds]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dosematch.math_worker", *map(str, limits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        )
        if self._reply_within(STARTUP_SECONDS).outcome != "correct":
            raise UserError(f"grader: the worker does not start under a memory limit of {self.memory_bytes} bytes")
        return self.process

    def _reply_within(self, seconds: float) -> Cost:
        """The one-line reply; a silent or dead process is killed, and the next request starts a new one."""
        assert self.process is not None and self.process.stdout is not None
        poller = select.poll()
        poller.register(self.process.stdout, select.POLLIN)
        line = self.process.stdout.readline() if poller.poll(1000 * seconds) else None
        if line:
            values: dict[str, Any] = json.loads(line)
            return Cost(**values)
        self.close()
        return Cost("timeout" if line is None else "error", 0.0, 0)
