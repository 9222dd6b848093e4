"""Measures a whole GRPO step against TRL's `GRPOTrainer` on the CPU, after showing that loss and gradient agree."""

from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from dosematch.benchmarks.timing import WARM_UP, at_most, environment, summary
from dosematch.benchmarks.trl_grpo import Alternating, agreement, grpo_trainer
from dosematch.benchmarks.workload import BASE, grpo_settings, grpo_steps, prompts, questions, sampled, study
from dosematch.cli import run
from dosematch.grading import Grader
from dosematch.policy import load_policy, load_tokenizer
from dosematch.records import write_json
from dosematch.rollout.torch_engine import TorchEngine
from dosematch.runtime import quiet_transformers

GROUP, TOKENS = 8, 64
GOAL = 0.6  # of TRL's time
GAP = 1e-5


def main(
    out: Annotated[Path, typer.Option()],
    model_dir: Annotated[Path, typer.Option()] = BASE,
    repeats: Annotated[int, typer.Option(help="counted pairs of steps")] = 40,
    threads: Annotated[int, typer.Option()] = 1,
) -> None:
    """Agreement on one group of natural lengths, then steps of both loops in turn on the same questions."""
    torch.set_num_threads(threads)
    quiet_transformers()
    load, tokenizer = partial(load_policy, model_dir), load_tokenizer(model_dir)
    settings = grpo_settings(GROUP, TOKENS, WARM_UP + repeats)
    prompt = prompts(tokenizer, 50)[0]
    rollouts = TorchEngine(load(), tokenizer.eos_token_id).generate(sampled(prompt, GROUP, TOKENS))
    gaps = {kind: agreement(load, tokenizer, prompt, rollouts, settings, kind) for kind in ("dr_grpo", "cispo")}
    texts = [study().prompts.fast.replace("{question}", q.text) for q in questions(settings.training.steps)]
    with Grader() as grader:
        ours = grpo_steps(settings, load(), tokenizer, grader)
        clock = Alternating(lambda: next(ours))
        grpo_trainer(load(), tokenizer, texts, settings, callbacks=[clock]).train()
    times = summary(clock.times)
    row = {"group": GROUP, "tokens": TOKENS, "agreement": gaps, **times}
    worst = max(gap for kind in gaps.values() for name, gap in kind.items() if name.endswith("gap"))
    row |= {"goal_agreement": at_most(worst, GAP), "goal_time": at_most(times["share"], GOAL)}
    write_json(out, environment(threads, "trl", "accelerate") | row)
    typer.echo(
        f"GRPO step, {GROUP} rollouts of {TOKENS}: {times['ours_s']:.3f} s against TRL's {times['theirs_s']:.3f}, "
        f"share {times['share']:.2f} (goal {GOAL}); largest relative gap of loss and gradient {worst:.1e} (goal {GAP})"
    )


if __name__ == "__main__":
    run(main)
