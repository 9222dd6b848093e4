"""Paired timing: both sides in the same run, in alternating order, after a warm-up; goals as yes or no."""

import os
import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from statistics import median
from typing import Any

import torch

WARM_UP = 1  # pairs that are run and not counted


def environment(threads: int, *packages: str) -> dict[str, Any]:
    """What a figure depends on: threads, processor, load, versions of Python, torch, transformers and `packages`."""
    versions = {name: version(name) for name in ("torch", "transformers", *packages)}
    return {
        "threads": threads,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "versions": {"python": platform.python_version()} | versions,
    }


def paired(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> dict[str, Any]:
    """`summary` of `repeats` pairs after `WARM_UP` uncounted ones.

    Every other pair runs in the other order, so that a drift of the machine favours neither side.
    """
    times: list[tuple[float, float]] = []
    for pair in range(WARM_UP + repeats):
        first, second = (ours, theirs) if pair % 2 else (theirs, ours)
        a, b = seconds(first), seconds(second)
        times.append((a, b) if pair % 2 else (b, a))
    return summary(times)


def summary(times: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Medians of (ours, theirs) seconds without the first `WARM_UP` pairs; median and range of the ratio theirs / ours.

    `share` is the median of ours / theirs: what part of their time ours takes.
    """
    counted = times[WARM_UP:]
    ratios = [their / our for our, their in counted]
    return {
        "repeats": len(counted),
        "warm_up": WARM_UP,
        "ours_s": median(our for our, _ in counted),
        "theirs_s": median(their for _, their in counted),
        "ratio": median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "share": median(our / their for our, their in counted),
    }


def seconds(run: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def at_least(value: float, bound: float) -> dict[str, Any]:
    """A goal that a value must reach."""
    return {"value": value, "at_least": bound, "met": value >= bound}


def at_most(value: float, bound: float) -> dict[str, Any]:
    """A goal that a value may not exceed."""
    return {"value": value, "at_most": bound, "met": value <= bound}
