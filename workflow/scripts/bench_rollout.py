"""Measures rollout speed against `transformers.generate`: same weights, prompts, tokens and threads, paired runs."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import transformers
import typer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dosematch.cli import run
from dosematch.config import StudyConfig
from dosematch.policy import load_policy, load_tokenizer
from dosematch.questions.synthetic import synthetic_questions
from dosematch.records import read_yaml, write_json
from dosematch.rollout.engine import Request
from dosematch.rollout.torch_engine import TorchEngine
from dosematch.runtime import quiet_transformers

FIXED_TOKENS = 64
PANEL = 500


def reference(model: PreTrainedModel, prompts: list[tuple[int, ...]], batch: int, tokens: int, pad: int, minimum: int):
    """Greedy completions by transformers: left-padded batches, each run until its longest row ends."""
    completions = []
    generate: Callable[..., torch.Tensor] = model.generate  # type: ignore[assignment]
    for start in range(0, len(prompts), batch):
        part = prompts[start : start + batch]
        width = max(map(len, part))
        ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in part])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
        out = generate(
            ids, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=minimum, do_sample=False, pad_token_id=pad
        )
        completions += [row[width:].tolist() for row in out]
    return [row[: row.index(pad) + 1] if pad in row else row for row in completions]


def measure(model, tokenizer: PreTrainedTokenizerBase, prompts, batch: int, tokens: int, minimum: int, repeats: int):
    """Medians of paired runs in tokens per second, and how many completions are equal."""
    engine = TorchEngine(model, tokenizer.eos_token_id, batch)
    requests = [Request(prompt, tokens, minimum) for prompt in prompts]
    speeds, ratios, equal = [], [], 0
    for repeat in range(repeats + 1):
        t0 = time.perf_counter()
        theirs = reference(model, prompts, batch, tokens, tokenizer.eos_token_id, minimum)
        t1 = time.perf_counter()
        ours = engine.generate(requests)
        t2 = time.perf_counter()
        equal = sum(list(a.token_ids) == b for a, b in zip(ours, theirs, strict=True))
        if repeat:  # the first pair warms up
            n = sum(len(completion.token_ids) for completion in ours)
            speeds.append((n / (t2 - t1), n / (t1 - t0)))
            ratios.append((t1 - t0) / (t2 - t1))
    return {
        "sequences": len(prompts),
        "batch": batch,
        "max_tokens": tokens,
        "ours_tokens_per_s": round(median(speed[0] for speed in speeds)),
        "transformers_tokens_per_s": round(median(speed[1] for speed in speeds)),
        "ratio": round(median(ratios), 2),
        "equal_greedy_completions": equal,
    }


def main(
    out: Annotated[Path, typer.Option()],
    model_dir: Annotated[Path, typer.Option()] = Path("resources/micro_base"),
    repeats: Annotated[int, typer.Option()] = 5,
    threads: Annotated[int, typer.Option()] = 1,
) -> None:
    """Fixed-length batches of 8, 64 and 256, then a whole panel with natural lengths at batch 50."""
    torch.set_num_threads(threads)
    quiet_transformers()
    model, tokenizer = load_policy(model_dir), load_tokenizer(model_dir)
    study = StudyConfig(read_yaml(Path("config/config.yaml")))
    questions = synthetic_questions("chain", PANEL, 7, {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0}, set())
    prompts = sorted((study.prompts.fast_ids(tokenizer, q.text) for q in questions), key=len, reverse=True)
    rows = [
        {"case": f"fixed {FIXED_TOKENS} tokens"}
        | measure(model, tokenizer, prompts[:size], size, FIXED_TOKENS, FIXED_TOKENS, repeats)
        for size in (8, 64, 256)
    ]
    rows.append(
        {"case": "panel, natural lengths"} | measure(model, tokenizer, prompts, 50, 256, 0, max(2, repeats // 2))
    )
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    write_json(out, {"threads": threads, "repeats": repeats, "versions": versions, "rows": rows})
    for row in rows:
        typer.echo(
            f"{row['case']:>24} batch {row['batch']:>3}: {row['ours_tokens_per_s']:>6} against "
            f"{row['transformers_tokens_per_s']:>6} tokens/s, x{row['ratio']:.2f}, "
            f"equal {row['equal_greedy_completions']}/{row['sequences']}"
        )


if __name__ == "__main__":
    run(main)
