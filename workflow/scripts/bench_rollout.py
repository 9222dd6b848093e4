"""Measures rollout speed against `transformers.generate`: same weights, prompts, tokens and threads, paired runs."""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import PreTrainedModel

from dosematch.benchmarks.reference import Ids, by_transformers
from dosematch.benchmarks.timing import environment, paired
from dosematch.cli import run
from dosematch.config import StudyConfig
from dosematch.policy import load_policy, load_tokenizer
from dosematch.questions.synthetic import synthetic_questions
from dosematch.records import read_yaml, write_json
from dosematch.rollout.engine import Request
from dosematch.rollout.torch_engine import TorchEngine
from dosematch.runtime import quiet_transformers

# (case, prompts, batch, max_tokens, min_tokens); prompts are taken from the longest down
CASES = [(f"fixed 64 tokens, batch {n}", n, n, 64, 64) for n in (8, 64, 256)]
CASES += [("whole panel, natural lengths, batch 50", 500, 50, 256, 0)]


def measure(model: PreTrainedModel, eos: int, prompts: list[Ids], case: tuple, repeats: int) -> dict[str, Any]:
    """One case: seconds, tokens per second, ratio, and how many greedy completions are equal."""
    name, size, batch, longest, least = case
    chosen, engine = prompts[:size], TorchEngine(model, eos, batch)
    requests = [Request(prompt, longest, least) for prompt in chosen]
    limits = {"max_new_tokens": longest, "min_new_tokens": least}

    def reference() -> list[list[int]]:
        """The other side of the comparison."""
        return by_transformers(model, chosen, batch, limits, eos)

    ours = [list(completion.token_ids) for completion in engine.generate(requests)]
    times = paired(lambda: engine.generate(requests), reference, repeats)
    n = sum(map(len, ours))
    return {
        "case": name,
        "sequences": size,
        "batch": batch,
        "max_tokens": longest,
        "min_tokens": least,
        "prompt_tokens": [min(map(len, chosen)), max(map(len, chosen))],
        "generated_tokens": n,
        "ours_per_s": n / times["ours_s"],
        "transformers_per_s": n / times["theirs_s"],
        "equal_greedy_completions": sum(a == b for a, b in zip(ours, reference(), strict=True)),
        **times,
    }


def main(
    out: Annotated[Path, typer.Option()],
    model_dir: Annotated[Path, typer.Option()] = Path("resources/micro_base"),
    repeats: Annotated[int, typer.Option(help="counted pairs of every case")] = 5,
    threads: Annotated[int, typer.Option()] = 1,
) -> None:
    """Fixed-length batches of 8, 64 and 256, then a whole panel with natural lengths at batch 50."""
    torch.set_num_threads(threads)
    quiet_transformers()
    model, tokenizer = load_policy(model_dir), load_tokenizer(model_dir)
    ask = StudyConfig(read_yaml(Path("config/config.yaml"))).prompts.fast_ids
    questions = synthetic_questions("chain", 500, 7, dict.fromkeys(range(1, 6), 1.0), set())
    prompts = sorted((ask(tokenizer, question.text) for question in questions), key=len, reverse=True)
    rows = [measure(model, tokenizer.eos_token_id, prompts, case, repeats) for case in CASES]
    write_json(out, environment(threads) | {"rows": rows})
    for row in rows:
        speeds = f"{row['ours_per_s']:.0f} against {row['transformers_per_s']:.0f} tokens/s"
        low, high = row["ratio_range"]
        equal = f"{row['equal_greedy_completions']}/{row['sequences']} equal"
        typer.echo(f"{row['case']}: {speeds}, x{row['ratio']:.2f} [{low:.2f}, {high:.2f}], {equal}")


if __name__ == "__main__":
    run(main)
