"""Fixtures shared by all tests."""

from dataclasses import dataclass

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from .tiny import byte_tokenizer, random_model


@dataclass(frozen=True)
class TinyPolicy:
    """A model that no test may change, and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny() -> TinyPolicy:
    """A random Qwen3-shaped model with a byte tokenizer."""
    return TinyPolicy(random_model(), byte_tokenizer())
