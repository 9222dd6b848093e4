"""Peak resident memory of a call, measured in a process of its own (Linux)."""

import multiprocessing
import re
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

FORK = multiprocessing.get_context("fork")


def peak_growth(prepare: Callable[[], Callable[[], object]]) -> float:
    """MiB by which the call that `prepare` returns raises the resident memory at its peak, over that before it.

    Both run in a forked child, so nothing that an earlier call freed hides what this one needs. What `prepare`
    allocates is not counted. Fork before this process has run a backward pass: torch's threads do not survive a fork.
    Raises EOFError when the child dies.
    """
    here, there = FORK.Pipe(duplex=False)
    child = FORK.Process(target=_measure, args=(prepare, there))
    child.start()
    there.close()
    try:
        return here.recv()
    finally:
        child.join()


def _measure(prepare: Callable[[], Callable[[], object]], result: Connection) -> None:
    call = prepare()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak so far
    before = _status("VmRSS")
    call()
    result.send((_status("VmHWM") - before) / 1024)


def _status(key: str) -> int:
    """A size of this process in KiB."""
    found = re.search(rf"^{key}:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"/proc/self/status has no {key}"
    return int(found[1])
