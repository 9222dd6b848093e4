"""What a machine does at a scale's real size: rollout speed, step time, memory, engine/trainer gap; random weights."""

import gc
import itertools
import resource
import time
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig

from dosematch.benchmarks.timing import seconds
from dosematch.grading import Grader
from dosematch.identity import sha1_12
from dosematch.memory import training_memory
from dosematch.policy import load_policy, load_tokenizer
from dosematch.rollout.engine import Request
from dosematch.runtime import start_engine
from dosematch.settings import Runtime, TrainSettings
from dosematch.streams import StreamItem
from dosematch.training import Trainer

QUESTION = "A shop sells pens at 3 for 2 dollars and pads at 4 dollars each. What do 12 pens and 5 pads cost together?"
SEED = 102


def rollout_speed(folder: Path, runtime: Runtime, batches: list[int], tokens: int) -> list[dict[str, Any]]:
    """Tokens per second of fixed-length sampled rollouts at each batch size, after one warm-up call."""
    if runtime.engine == "vllm" and find_spec("vllm") is None:
        return [{"engine": "vllm", "skipped": "not installed"}]
    model, tokenizer = load_policy(folder, runtime.dtype, runtime.device), load_tokenizer(folder)
    started = time.perf_counter()
    engine = start_engine(runtime, model, tokenizer, max(batches))
    load, rows = time.perf_counter() - started, []
    prompt = tuple(tokenizer.encode(QUESTION, add_special_tokens=False))
    for batch in batches:
        numbers = np.random.default_rng(batch).random((batch, tokens))
        requests = [Request(prompt, tokens, tokens, numbers[i]) for i in range(batch)]
        engine.generate(requests)
        spent = seconds(partial(engine.generate, requests))
        row = {"engine": runtime.engine, "batch": batch, "tokens": tokens, "seconds": spent, "load_s": load}
        rows.append(row | {"tokens_per_s": batch * tokens / spent})
    engine.close()
    del engine, model
    _free()
    return rows


def training_steps(folder: Path, settings: TrainSettings, steps: int) -> dict[str, Any]:
    """Train `steps` steps of an arm whose rewards alternate, so that every group gives a signal, each with an update.

    Returns seconds per step, the peak of memory beside the estimate (GB; of the device, or of this process on a CPU),
    and what the rows say about tokens, gaps and gradients. These few steps evaluate nothing and reach no tail average,
    so the estimate beside the peak is without both; `estimate_whole_gb` is the one that a training is refused by.
    """
    arm = settings.arm.model_copy(update={"accumulation": 1})
    settings = settings.model_copy(update={"arm": arm})
    runtime, config = settings.runtime, AutoConfig.from_pretrained(folder)
    whole = training_memory(config, settings)
    unevaluated = settings.evaluation.model_copy(update={"batch_size": 1, "max_tokens": 1})
    estimate = training_memory(config, settings.model_copy(update={"evaluation": unevaluated})) | {"tail average": 0}
    if runtime.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    model, tokenizer = load_policy(folder, runtime.dtype, runtime.device), load_tokenizer(folder)
    spent = []
    with Grader() as grader:
        trainer = Trainer(settings, SEED, model, tokenizer, grader, development=[])
        verdicts = itertools.cycle([True, False])
        trainer.context = replace(trainer.context, reward=lambda *_: next(verdicts))
        for step in range(1, steps + 1):
            item = StreamItem(
                step=step, source="check", index=step, sha1_12=sha1_12(QUESTION), question=QUESTION, answer="28"
            )
            spent.append(seconds(partial(trainer.advance, item)))
        trainer.engine.close()
        rows = trainer.rows
    del trainer, model
    _free()
    kept = ("gen_tokens", "pg_bwd_tokens", "distill_bwd_tokens", "grad_norm", "grad_norm_by_term")
    gaps = ("sampling/logp_difference/mean", "sampling/logp_difference/max")
    return {
        "arm": arm.name,
        "engine": runtime.engine,
        "step_s": spent,
        "peak_gb": peak_memory(runtime.device) / 1e9,
        "estimate_gb": sum(estimate.values()) / 1e9,
        "estimate_whole_gb": sum(whole.values()) / 1e9,
        "rows": [{key: row[key] for key in (*kept, *gaps)} for row in rows],
    }


def peak_memory(device: str) -> int:
    """Bytes at the highest point so far: allocated on the GPU, or resident in this process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
