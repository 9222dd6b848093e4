"""Scaling curves of rollout and training step, beside what the machine's arithmetic and memory allow."""

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from matplotlib.axes import Axes
from transformers import PreTrainedModel

from dosematch.benchmarks.timing import WARM_UP, seconds
from dosematch.benchmarks.workload import BASE, grpo_settings, grpo_steps, prompts
from dosematch.grading import Grader
from dosematch.policy import load_policy, load_tokenizer
from dosematch.rollout.engine import Request
from dosematch.rollout.torch_engine import TorchEngine

TOKENS = 64
MATRIX, COPY_BYTES = 2048, 2**28
PROMPT = 40  # tokens, about the study's


def medians(call: Callable[[], object], repeats: int) -> float:
    """Median seconds of `repeats` calls after `WARM_UP` uncounted ones."""
    return median([seconds(call) for _ in range(WARM_UP + repeats)][WARM_UP:])


def machine(repeats: int) -> dict[str, float]:
    """Measured limits: fp32 matrix products (flop/s), copies far larger than the caches (bytes/s, read and write)."""
    a, b = torch.randn(2, MATRIX, MATRIX)
    source = torch.ones(COPY_BYTES // 4)
    target = torch.empty_like(source)
    flops = 2 * MATRIX**3 / medians(lambda: torch.mm(a, b), repeats)
    return {"flop_per_s": flops, "bytes_per_s": 2 * COPY_BYTES / medians(lambda: target.copy_(source), repeats)}


def bounds(parameters: int, batch: int, limits: dict[str, float]) -> dict[str, float]:
    """Most tokens/s by arithmetic, 2 flop per parameter and token, and by reading fp32 weights once per step.

    Attention and cache are left out, so both are generous; weights that stay in a processor cache may beat the second.
    """
    return {
        "compute_bound_per_s": limits["flop_per_s"] / (2 * parameters),
        "memory_bound_per_s": batch * limits["bytes_per_s"] / (4 * parameters),
    }


def decode_row(model: PreTrainedModel, batch: int, limits: dict[str, float], repeats: int) -> dict[str, Any]:
    """Greedy tokens/s of one model at one batch, every row exactly `TOKENS` long."""
    tokenizer = load_tokenizer(BASE)
    engine = TorchEngine(model, tokenizer.eos_token_id)
    requests = [Request(prompt, TOKENS, TOKENS) for prompt in prompts(tokenizer, batch)]
    spent = medians(lambda: engine.generate(requests, batch), repeats)
    parameters = sum(p.numel() for p in model.parameters())
    speed = batch * TOKENS / spent
    return {"batch": batch, "parameters": parameters, "tokens_per_s": speed, **bounds(parameters, batch, limits)}


def step_row(rollouts: int, limits: dict[str, float], repeats: int) -> dict[str, Any]:
    """Seconds of a whole training step of the micro base; the bound counts 2 flop to generate, 6 to train."""
    model, tokenizer = load_policy(BASE), load_tokenizer(BASE)
    with Grader() as grader:
        steps = grpo_steps(grpo_settings(rollouts, TOKENS, WARM_UP + repeats), model, tokenizer, grader)
        spent = medians(lambda: next(steps), repeats)
    parameters = sum(p.numel() for p in model.parameters())
    work = parameters * (2 * (PROMPT + rollouts * TOKENS) + 6 * rollouts * (PROMPT + TOKENS))
    return {"rollouts": rollouts, "step_s": spent, "compute_bound_s": work / limits["flop_per_s"]}


def draw(axes: Axes, rows: list[dict[str, Any]], x: str, curves: dict[str, str]) -> None:
    """Curves over one field of the rows, on logarithmic axes; measured ones with points, limits dashed."""
    for name, label in curves.items():
        style = "--" if "bound" in name else "o-"
        axes.loglog([row[x] for row in rows], [row[name] for row in rows], style, label=label)
    axes.set_xlabel(x)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
