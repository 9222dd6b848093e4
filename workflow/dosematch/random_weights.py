"""Models with random weights in a published shape: memory, speed and agreement of engines need no trained ones."""

import math
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from dosematch.policy import save_policy

QWEN3_0_6B = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32_768,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}


def write_random_model(
    folder: Path, tokenizer: PreTrainedTokenizerBase, dtype: str, length: float, **changes: object
) -> None:
    """Write a Qwen3-shaped model with `tokenizer` as a Hugging Face folder; `changes` replace parts of the shape.

    Completions end after roughly `length` tokens: all embeddings get a common direction, which survives the layers, and
    the tied projection reads in it the end of sequence; all other tokens are about equally likely.
    """
    eos = tokenizer.eos_token_id
    config = Qwen3Config(**(QWEN3_0_6B | {"eos_token_id": eos, "pad_token_id": eos, "bos_token_id": eos} | changes))
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        model = Qwen3ForCausalLM(config)
    finally:
        torch.set_default_dtype(default)
    with torch.no_grad():
        embedding: torch.Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
        embedding[:, 0] += 1.0  # the residual stream's common direction; equal for all tokens, it changes no softmax
        states = model.model(torch.arange(64).unsqueeze(0) + eos + 1).last_hidden_state[0]
        embedding[eos, 0] += math.log(config.vocab_size / length) / float(states[:, 0].mean())
    save_policy(model, tokenizer, folder)
