"""Measures how often the shape of a batch changes a token: rounding differs between shapes, and a tie can flip."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from dosematch.cli import run
from dosematch.config import StudyConfig
from dosematch.policy import load_policy, load_tokenizer
from dosematch.questions.synthetic import synthetic_questions
from dosematch.records import read_yaml, write_json
from dosematch.rollout.engine import Request
from dosematch.rollout.torch_engine import TorchEngine
from dosematch.runtime import quiet_transformers
from dosematch.sampling import uniforms

REFERENCE_BATCH = 50


def main(
    out: Annotated[Path, typer.Option()],
    model_dir: Annotated[Path, typer.Option()] = Path("resources/micro_base"),
    n: Annotated[int, typer.Option(help="questions")] = 2000,
    threads: Annotated[int, typer.Option()] = 1,
) -> None:
    """Complete the same questions in batches of several sizes, greedily and sampled, and count what differs."""
    torch.set_num_threads(threads)
    quiet_transformers()
    model, tokenizer = load_policy(model_dir), load_tokenizer(model_dir)
    prompts = StudyConfig(read_yaml(Path("config/config.yaml"))).prompts
    questions = synthetic_questions("chain", n, 11, dict.fromkeys(range(1, 6), 1.0), set())
    engine = TorchEngine(model, tokenizer.eos_token_id)
    rows = []
    for sampled in (False, True):
        requests = []
        for index, question in enumerate(questions):
            draws = None
            if sampled:
                draws = uniforms(96, study="bench", seed=0, run=1, step=0, question=str(index), stage="fast", rollout=0)
            requests.append(Request(prompts.fast_ids(tokenizer, question.text), 96, uniforms=draws))
        reference = engine.generate(requests, REFERENCE_BATCH)
        tokens = sum(len(completion.token_ids) for completion in reference)
        for batch in (REFERENCE_BATCH, 1, 8, 256):
            other = engine.generate(requests, batch)
            changed = sum(a.token_ids != b.token_ids for a, b in zip(reference, other, strict=True))
            gap = max(
                abs(x - y)
                for a, b in zip(reference, other, strict=True)
                if a.token_ids == b.token_ids
                for x, y in zip(a.logprobs, b.logprobs, strict=True)
            )
            rows.append({"sampled": sampled, "batch": batch, "changed": changed, "tokens": tokens, "logprob_gap": gap})
            typer.echo(
                f"{'sampled' if sampled else 'greedy'} batch {batch} against {REFERENCE_BATCH}: {changed}/{n} "
                f"completions differ, largest log-probability gap of the others {gap:.2g}"
            )
    write_json(out, {"questions": n, "threads": threads, "torch": torch.__version__, "rows": rows})


if __name__ == "__main__":
    run(main)
