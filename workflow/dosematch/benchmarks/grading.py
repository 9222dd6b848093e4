"""Answers for the benchmark of grading, and math-verify called on them one by one."""

import gzip
import json
import random
from contextlib import suppress
from pathlib import Path

from math_verify import parse, verify

from dosematch.hostile import hostile_completions

GRADED = ("graded_gsm8k_openai_samples.jsonl.gz", "graded_math_qwen_cot.jsonl.gz")
Pairs = list[tuple[str, str]]


def all_theirs(pairs: Pairs) -> None:
    """Every pair by math-verify as its documentation calls it, with its own timeouts."""
    for text, gold in pairs:
        with suppress(Exception):
            verify(parse(f"${gold}$"), parse(text))


def mixed_pairs(data: Path, n: int, n_hostile: int) -> Pairs:
    """`n` (completion, gold) pairs in a fixed random order, `n_hostile` of them hostile."""
    rng = random.Random(0)
    rows: Pairs = [(rf"So it is \boxed{{{i % 97}x+{i}}}", f"{i}+{i % 89}x") for i in range(n)]
    if data.is_dir():
        lines = [line for name in GRADED for line in gzip.decompress((data / name).read_bytes()).splitlines()]
        rows = [(row["prediction"], row["gold"]) for row in map(json.loads, lines)]
    hostile = [(text, "5") for text in hostile_completions().values()]
    return rng.sample(rng.sample(rows, n - n_hostile) + rng.sample(hostile, n_hostile), n)
