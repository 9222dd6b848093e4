"""Random models and a byte tokenizer, small enough for unit tests."""

from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dosematch.arm import Fork
from dosematch.episodes.anchors import AnchorBuffer
from dosematch.episodes.episode import Context
from dosematch.identity import sha1_12
from dosematch.pretraining import train_tokenizer
from dosematch.rollout.engine import Completion, Request
from dosematch.settings import TrainSettings
from dosematch.streams import StreamItem

VOCAB = 257  # every byte and the end of sequence
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,  # 4 * 16 != 32: the projections are not square
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # large enough for attention to matter and for arg maxima to be far apart
}
DIGITS = "123"
PAPER_FORK = Fork(
    k=4,
    max_tokens=768,
    min_tokens=24,
    min_length=64,
    margin=16,
    first_start=32,
    first_end=160,
    second_floor=56,
    second_start=96,
    second_end=288,
    max_sequence=896,
)


@cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte; id 0 is the end of sequence."""
    return train_tokenizer([""], VOCAB)


def random_model(architecture: str = "qwen3", seed: int = 0, **changes: object) -> PreTrainedModel:
    """A random fp32 model in evaluation mode."""
    config_type, model_type = {
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }[architecture]
    special = {"eos_token_id": 0, "pad_token_id": 0, "bos_token_id": 0}
    config = config_type(**(SHAPE | special | {"vocab_size": VOCAB, "tie_word_embeddings": True} | changes))
    torch.manual_seed(seed)
    return model_type(config).eval()


@cache
def _guesser_weights() -> dict[str, torch.Tensor]:
    model, tokenizer = random_model(initializer_range=0.05), byte_tokenizer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    prompt = tokenizer.encode(":")
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        rows = [_guess(prompt, tokenizer, generator) for _ in range(16)]
        width = max(map(len, rows))
        ids = torch.tensor([row + [-100] * (width - len(row)) for row in rows])
        logits = model(ids.clamp(min=0)).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _guess(prompt: list[int], tokenizer: PreTrainedTokenizerFast, generator: torch.Generator) -> list[int]:
    draw = torch.randint(12, (3,), generator=generator).tolist()
    text = "x" * (draw[0] // 3) + DIGITS[draw[1] % 3]
    return prompt + tokenizer.encode(text) + [tokenizer.eos_token_id] * (1 + draw[2] // 9)


def guesser() -> PreTrainedModel:
    """A fresh copy of a model that writes a few letters, a digit of `DIGITS` and mostly an end of sequence.

    Sampled groups are mixed (a third of the guesses is right), of several lengths, and truncated by short limits.
    """
    model = random_model(initializer_range=0.05)
    model.load_state_dict(_guesser_weights())
    return model


def flat_gradient(model: torch.nn.Module) -> torch.Tensor:
    """All gradients as one float64 vector; a missing gradient is zero."""
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).double().flatten() for p in model.parameters()]
    )


def relative_gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """Distance of two vectors relative to the norm of the second."""
    return float((a - b).norm() / b.norm())


def reference_logprobs(
    model: PreTrainedModel,
    context: list[int],
    target: list[int],
    temperature: float = 1.0,
    eos: int = 0,
    min_tokens: int = 0,
) -> torch.Tensor:
    """Log-probabilities of a target from the transformers forward pass of this sequence alone, as it was drawn."""
    ids = torch.tensor([*context, *target])
    logits = model(ids.unsqueeze(0), use_cache=False).logits[0, :-1] / temperature
    forbidden = torch.zeros_like(logits, dtype=torch.bool)
    forbidden[len(context) - 1 : len(context) - 1 + min_tokens, eos] = True
    logits = logits.masked_fill(forbidden, -torch.inf)
    return torch.log_softmax(logits.float(), -1).gather(1, ids[1:].unsqueeze(1)).squeeze(1)[len(context) - 1 :]


def train_settings(arm: dict | None = None, **training: object) -> TrainSettings:
    """Ten steps of two groups of different limits; `arm` and `training` change keys."""
    return TrainSettings.model_validate(
        {
            "study": "thinker",
            "arm": {
                "name": "tested",
                "about": "",
                "label": "",
                "starts_from": "parent",
                "episode": "single_turn",
                "seeds": None,
                "run": 1,
                "dose_family": None,
                "reward": "answer",
                "fast": [{"n": 4, "max_tokens": 3}, {"n": 4, "max_tokens": 6, "min_tokens": 2}],
                "verify": None,
                "slow": None,
                "summary": None,
                "fork": None,
                "pg_fast": True,
                "pg_stages": False,
                "summary_sft": False,
                "fork_sft": False,
                "gate": "none",
                "alpha": 1.0,
                "teacher_top_k": 0,
                "lambda_distill": 1.0,
                "anchor": False,
                "anchor_weight": 0.5,
                "anchor_capacity": 64,
                "anchor_on_failure": False,
                "censor": True,
                "prefix_mask": False,
                "accumulation": 2,
                "lr": {"pg_only": 0.5, "mixed": 0.25, "distill_only": 0.125},
                "weight_decay": 0.08,
                "zero_grad_skip": True,
                "clip_norm": 1.0,
                "temperature": 1.0,
                "token_divisor": 8.0,
                "advantage_epsilon": 1e-4,
                "sigma_floor": 1e-5,
            }
            | (arm or {}),
            "training": {
                "steps": 10,
                "tail_start": 6,
                "base_lr": 1e-3,
                "adam_betas": [0.9, 0.95],
                "adam_eps": 1e-8,
                "micro_batch_tokens": 40,
                "checkpoint_every": 2,
                "curve_every": 4,
                "max_logp_difference": 1e-3,
            }
            | training,
            "runtime": {"engine": "torch", "device": "cpu", "dtype": "float32", "threads": 1},
            "evaluation": {
                "batch_size": 4,
                "max_tokens": 6,
                "verify_max_tokens": 4,
                "slow_max_tokens": 6,
                "temperature": 0.0,
                "sort": "prompt_length_descending",
            },
            "prompts": {"fast": "{question}:", "verify": "v:", "slow": "s:", "summary": "t:"},
        }
    )


def stream(steps: int = 10, answers: str = DIGITS) -> list[StreamItem]:
    """Questions that differ in their answer only by position; the model can only guess."""
    texts = [f"question {step}" for step in range(1, steps + 1)]
    return [
        StreamItem(
            step=step,
            source="pool" if step % 2 else "stencil",
            index=step,
            sha1_12=sha1_12(text),
            question=text,
            answer=answers[step % len(answers)],
        )
        for step, text in enumerate(texts, start=1)
    ]


FORK = {
    "k": 3,
    "max_tokens": 6,
    "min_length": 3,
    "margin": 1,
    "first_start": 1,
    "first_end": 2,
    "second_floor": 2,
    "second_start": 2,
    "second_end": 4,
    "max_sequence": 9,
}
STAGES = {"episode": "thinker", "verify": {"max_tokens": 4}, "slow": {"max_tokens": 6}, "summary": {"max_tokens": 6}}
SHARED = STAGES | {"pg_stages": True, "summary_sft": True}
ISOLATED = STAGES | {"summary_sft": True, "gate": "brier", "alpha": 0.5, "teacher_top_k": 16, "anchor": True}
FORKING = {"episode": "forking", "fork": FORK, "fork_sft": True, "gate": "brier", "prefix_mask": True, "anchor": True}


class Scripted:
    """An engine that gives prepared completions, one list per call, and remembers what it was asked."""

    def __init__(self, *answers: list[Completion]) -> None:
        self.answers, self.asked = list(answers), []

    def generate(self, requests: Sequence[Request], batch_size: int | None = None) -> list[Completion]:  # noqa: ARG002
        """The next list."""
        self.asked.append(list(requests))
        answers = self.answers.pop(0)
        assert len(answers) == len(requests)
        return answers


def completion(text: str, ended: bool = True, logprob: float = -1.0) -> Completion:
    """A completion that says `text`."""
    ids = tuple(byte_tokenizer().encode(text)) + (0,) * ended
    return Completion(ids, (logprob,) * len(ids), "stop" if ended else "length")


def scripted_context(engine: Scripted, model: PreTrainedModel, switches: dict, pass_rate: float = 0.5) -> Context:
    """A context in which an answer is right when it holds the reference answer."""
    settings = train_settings(switches)
    return Context(
        engine=engine,
        model=model,
        tokenizer=byte_tokenizer(),
        prompts=settings.prompts,
        reward=lambda text, gold: gold in text,
        arm=settings.arm,
        study="thinker",
        seed=1,
        anchors=AnchorBuffer(settings.arm.anchor_capacity),
        pass_rate=pass_rate,
    )
