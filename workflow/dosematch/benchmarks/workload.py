"""What is timed: the study's own questions, settings and rollouts, and random models of other sizes."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from dosematch.config import StudyConfig
from dosematch.grading import Grader
from dosematch.identity import sha1_12
from dosematch.objectives import Draw, Segment, group_advantages, grpo_weights
from dosematch.questions import Question
from dosematch.questions.synthetic import synthetic_questions
from dosematch.records import read_yaml
from dosematch.rollout.engine import Completion, Request
from dosematch.sampling import uniforms
from dosematch.settings import TrainSettings
from dosematch.streams import StreamItem
from dosematch.training import Trainer

BASE = Path("resources/micro_base")


def study() -> StudyConfig:
    """The study as configured at micro scale; run from the project folder."""
    return StudyConfig(read_yaml("config/config.yaml") | {"scale": "micro"})


def questions(n: int, seed: int = 7) -> list[Question]:
    """Chains of one to five operations, all lengths equally often."""
    return synthetic_questions("chain", n, seed, dict.fromkeys(range(1, 6), 1.0), set())


def stream(asked: Sequence[Question]) -> list[StreamItem]:
    """One training step per question."""
    return [
        StreamItem(step=i, source="pool", index=i, sha1_12=sha1_12(q.text), question=q.text, answer=q.answer)
        for i, q in enumerate(asked, 1)
    ]


def prompts(tokenizer: PreTrainedTokenizerBase, n: int) -> list[tuple[int, ...]]:
    """The Fast prompts of `n` questions, longest first."""
    ask = study().prompts.fast_ids
    return sorted((ask(tokenizer, question.text) for question in questions(n)), key=len, reverse=True)


def sampled(prompt: tuple[int, ...], n: int, max_tokens: int, min_tokens: int = 0) -> list[Request]:
    """`n` rollouts of one prompt."""
    draws = [
        uniforms(max_tokens, study="bench", seed=0, run=1, step=0, question="", stage="fast", rollout=i)
        for i in range(n)
    ]
    return [Request(prompt, max_tokens, min_tokens, draw) for draw in draws]


def alternate_rewards(n: int) -> list[float]:
    """1 and 0 in turn: every group has a signal, and grading costs neither side anything."""
    return [float(i % 2 == 0) for i in range(n)]


def group_segments(prompt: tuple[int, ...], rollouts: Sequence[Completion], divisor: float) -> list[Segment]:
    """GRPO-const256 segments of one group under `alternate_rewards`, without censoring."""
    advantages = group_advantages(alternate_rewards(len(rollouts))) or []
    weights = grpo_weights(advantages, [True] * len(rollouts), False, divisor)
    return [
        Segment(prompt, rollout.token_ids, weight, drawn=Draw(rollout.logprobs))
        for rollout, weight in zip(rollouts, weights, strict=True)
    ]


def random_segments(shapes: Sequence[tuple[int, int, str]], vocabulary: int) -> list[Segment]:
    """Segments of random tokens, weights of both signs; a shape is (context length, target length, kind)."""
    generator = torch.Generator().manual_seed(0)
    segments = []
    for i, (context, targets, kind) in enumerate(shapes):
        ids = tuple(torch.randint(vocabulary, (context + targets,), generator=generator).tolist())
        segments.append(Segment(ids[:context], ids[context:], 1e-3 if i % 2 else -1e-3, kind))
    return segments


def grpo_settings(group: int, tokens: int, steps: int) -> TrainSettings:
    """The study's micro settings with one update per step of one group whose rollouts have exactly `tokens` tokens."""
    values = json.loads(study().train_settings("std_rlvr_cont"))
    values["arm"] |= {
        "fast": [{"n": group, "max_tokens": tokens, "min_tokens": tokens}],
        "censor": False,
        "accumulation": 1,
        "token_divisor": tokens,
    }
    values["training"] |= {"steps": steps, "tail_start": 1}
    return TrainSettings.model_validate(values)


def grpo_steps(
    settings: TrainSettings, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, grader: Grader
) -> Iterator[dict[str, Any]]:
    """Trains one step of the study's own loop per `next`, under `alternate_rewards`."""
    trainer = Trainer(settings, 0, model, tokenizer, grader, [])
    for item in stream(questions(settings.training.steps)):
        rewards = iter(alternate_rewards(settings.arm.fast[0].n))
        trainer.context = replace(trainer.context, reward=lambda *_, rewards=rewards: bool(next(rewards)))
        yield trainer.advance(item)


def random_qwen(hidden: int, layers: int, vocabulary: int, positions: int = 1024) -> PreTrainedModel:
    """A random fp32 model in the micro base's proportions: heads of 32, half as many key heads, 3 * hidden wide."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        head_dim=32,
        intermediate_size=3 * hidden,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval()
