"""The update alone, backward pass and optimiser: ours and a plain one on the full logits of the padded batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel

from dosematch.backward import backward
from dosematch.benchmarks.memory import peak_growth
from dosematch.benchmarks.reference import flat_gradient, plain_backward
from dosematch.benchmarks.timing import paired
from dosematch.benchmarks.workload import BASE, group_segments, prompts, random_qwen, random_segments, sampled
from dosematch.objectives import Segment
from dosematch.optimizer import MasterAdamW
from dosematch.policy import load_policy, load_tokenizer
from dosematch.rollout.torch_engine import TorchEngine

BETAS, EPS, DECAY = (0.9, 0.95), 1e-8, 0.05
RATE, CLIP = 1e-6, 1.0
MICRO_BATCH_TOKENS = 4096  # as at micro scale
MEMORY_RUNS = 3  # forks per side: their peaks differ by less than a percent


def our_update(model: PreTrainedModel, segments: Sequence[Segment]) -> Callable[[], object]:
    """The study's update on `model`, as a call."""
    optimizer = MasterAdamW(model, betas=BETAS, eps=EPS, weight_decay=DECAY, clip_norm=CLIP, skip_zero_grad=True)

    def update() -> None:
        """One step."""
        tokens = MICRO_BATCH_TOKENS
        backward(model, segments, accumulation=1, micro_batch_tokens=tokens, after_batch=optimizer.absorb)
        optimizer.end_step()
        optimizer.update(RATE)

    return update


def plain_update(model: PreTrainedModel, segments: Sequence[Segment]) -> Callable[[], object]:
    """The same update as a straightforward program does it, as a call."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY)

    def update() -> None:
        """One step."""
        plain_backward(model, segments)
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return update


@dataclass(frozen=True)
class Case:
    """One comparison: `load` gives a fresh model, `segments` are what one step trains on."""

    name: str
    load: Callable[[], PreTrainedModel]
    segments: Sequence[Segment]
    repeats: int


def cases() -> list[Case]:
    """The study's Fast group, a four-stage step, and a vocabulary a hundred times as large; lengths as in the study."""
    micro = partial(load_policy, BASE)
    tokenizer = load_tokenizer(BASE)
    prompt = prompts(tokenizer, 50)[10]
    requests = sampled(prompt, 4, 64) + sampled(prompt, 8, 96)[4:]
    rollouts = TorchEngine(micro(), tokenizer.eos_token_id).generate(requests)
    fast = [(40, 64, "pg")] * 4 + [(120, 24, "verify")] * 4
    stages = fast + [(160, 96, "slow")] * 2 + [(280, 64, "summary_pg")] * 2
    wide = [(128, length, "pg") for length in (16, 32, 64, 96, 128, 160, 192, 256)]
    return [
        Case("micro, Fast group of 4x64 + 4x96, natural lengths", micro, group_segments(prompt, rollouts, 32), 20),
        Case("micro, four stages, long contexts", micro, random_segments(stages, 320), 15),
        Case("vocabulary 32,768, hidden 128", partial(random_qwen, 128, 4, 32768), random_segments(wide, 32768), 5),
    ]


def compare(case: Case) -> dict[str, Any]:
    """Gap of the two gradients and paired times of both updates."""
    a, b = case.load(), case.load()
    backward(a, case.segments, accumulation=1, micro_batch_tokens=MICRO_BATCH_TOKENS)
    plain_backward(b, case.segments)
    times = paired(our_update(case.load(), case.segments), plain_update(case.load(), case.segments), case.repeats)
    return {"gradient_relative_gap": gradient_gap(a, b), **times}


def peaks(case: Case) -> dict[str, float]:
    """Peak memory (MiB, medians over forks) that one update needs beside what lives between steps.

    Weights, moments and masters exist before: an update on one segment comes first, outside the count. Call it before
    the first backward pass of this process.
    """

    def ready(update: Callable[[PreTrainedModel, Sequence[Segment]], Callable[[], object]]) -> Callable[[], object]:
        model = case.load()
        update(model, case.segments[:1])()
        return update(model, case.segments)

    ours, theirs = (
        [peak_growth(partial(ready, update)) for _ in range(MEMORY_RUNS)] for update in (our_update, plain_update)
    )
    return {"ours_mib": median(ours), "theirs_mib": median(theirs), "memory_share": median(ours) / median(theirs)}


def gradient_gap(a: torch.nn.Module, b: torch.nn.Module) -> float:
    """Distance of the gradients of two equal models relative to the norm of the second's."""
    ours, theirs = flat_gradient(a), flat_gradient(b)
    return float((ours - theirs).norm() / theirs.norm())
