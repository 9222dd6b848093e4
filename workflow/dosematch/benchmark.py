"""Paired timing: both sides in the same run, in alternating order, after a warm-up."""

import platform
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

Ids = tuple[int, ...]
WARM_UP = 1  # pairs that are run and not counted


def environment(threads: int) -> dict[str, Any]:
    """What a figure depends on: threads, processor, versions."""
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return {"threads": threads, "processor": torch.backends.cpu.get_cpu_capability(), "versions": versions}


def paired(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> dict[str, Any]:
    """Median seconds of both sides over `repeats` pairs, and the median, least and largest ratio theirs / ours.

    Every other pair runs in the other order, so that a drift of the machine favours neither side.
    """
    times: list[tuple[float, float]] = []
    for pair in range(WARM_UP + repeats):
        first, second = (ours, theirs) if pair % 2 else (theirs, ours)
        a, b = seconds(first), seconds(second)
        times.append((a, b) if pair % 2 else (b, a))
    counted = times[WARM_UP:]
    ratios = [their / our for our, their in counted]
    return {
        "repeats": repeats,
        "warm_up": WARM_UP,
        "ours_s": median(our for our, _ in counted),
        "theirs_s": median(their for _, their in counted),
        "ratio": median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
    }


def seconds(run: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def by_transformers(
    model: PreTrainedModel, prompts: list[Ids], batch: int, limits: dict[str, int], pad: int
) -> list[list[int]]:
    """Greedy completions by transformers: left-padded batches, each run until its longest row ends."""
    completions: list[list[int]] = []
    generate: Callable[..., torch.Tensor] = model.generate  # type: ignore[assignment]
    for start in range(0, len(prompts), batch):
        part = prompts[start : start + batch]
        width = max(map(len, part))
        ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in part])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
        out = generate(ids, attention_mask=mask, do_sample=False, pad_token_id=pad, **limits)
        completions += [row[width:].tolist() for row in out]
    return [row[: row.index(pad) + 1] if pad in row else row for row in completions]
