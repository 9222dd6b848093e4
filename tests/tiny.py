"""Random models and a byte tokenizer, small enough for unit tests."""

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

from dosematch.pretraining import train_tokenizer

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


def reference_logprobs(model: PreTrainedModel, context: list[int], target: list[int]) -> torch.Tensor:
    """Log-probabilities of a target from the transformers forward pass of this sequence alone."""
    ids = torch.tensor([*context, *target])
    logits = model(ids.unsqueeze(0), use_cache=False).logits[0, :-1]
    return torch.log_softmax(logits.float(), -1).gather(1, ids[1:].unsqueeze(1)).squeeze(1)[len(context) - 1 :]
