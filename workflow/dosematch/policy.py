"""Policies as Hugging Face folders (safetensors only), and the tail average of their weights."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from dosematch.errors import UserError

WEIGHTS = "model.safetensors"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def load_policy(folder: Path | str, dtype: str = "float32", device: str = "cpu") -> PreTrainedModel:
    """Load a causal language model in evaluation mode (no dropout).

    Raises `UserError` when the folder holds no safetensors weights; pickled checkpoints are refused, since loading
    one can run any code.
    """
    folder = Path(folder)
    if not (folder / WEIGHTS).is_file():
        pickled = [path.name for pattern in PICKLED for path in sorted(folder.glob(pattern))]
        if pickled:
            raise UserError(f"{folder / pickled[0]}: pickled weights are refused; convert them to {WEIGHTS}")
        raise UserError(f"{folder / WEIGHTS}: no such file")
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers and safetensors raise many types for an unreadable folder
        raise UserError(f"{folder}: not a readable model: {error}") from None
    model, loading = loaded
    if loading["missing_keys"]:  # transformers would go on with random numbers in their place
        raise UserError(f"{folder / WEIGHTS}: lacks {min(loading['missing_keys'])}")
    return model.to(device).eval()


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Keep only the layers' inputs for the backward pass; leaves the model in training mode, which transformers asks.

    Raises `UserError` when that mode would also mean dropout.
    """
    dropouts = {key: value for key, value in model.config.to_dict().items() if "dropout" in key and value}
    if dropouts:
        raise UserError(f"config.json: {min(dropouts)} is not 0: training.gradient_checkpointing would train with it")
    model.activation_checkpointing_enable({"use_reentrant": False})
    model.train()


def load_tokenizer(folder: Path | str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a Hugging Face folder; raises `UserError` when it has no end-of-sequence token."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: no readable tokenizer: {error}") from None
    if tokenizer.eos_token_id is None:
        raise UserError(f"{folder}: the tokenizer has no eos_token")
    return tokenizer


def save_policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path | str) -> None:
    """Write model and tokenizer as a Hugging Face folder; the weights are moved in last, so they imply the rest.

    Raises `UserError` naming the folder when they cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        try:
            model.save_pretrained(temporary, safe_serialization=True)
            tokenizer.save_pretrained(temporary)
        except Exception as error:  # safetensors and tokenizers raise types of their own for a full disk
            raise UserError(f"{folder}: not written: {error}") from None
        for path in sorted(Path(temporary).iterdir(), key=lambda path: path.name.startswith(WEIGHTS)):
            os.replace(path, folder / path.name)


class TailAverage:
    """Arithmetic mean of the weights after steps `first..last`, summed in fp32 (thinker-spec 11.1)."""

    def __init__(self, first: int, last: int) -> None:
        if not 1 <= first <= last:
            raise ValueError(f"tail {first}..{last} is empty")
        self.first, self.last, self.count = first, last, 0
        self.total: dict[str, torch.Tensor] = {}

    def add(self, step: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Add the weights after `step` when the step lies in the tail."""
        if not self.first <= step <= self.last:
            return
        self.count += 1
        for name, value in weights.items():
            if name in self.total:
                self.total[name] += value.float()
            else:
                self.total[name] = value.detach().float().clone()

    def mean(self, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The average in the dtypes of `like`; raises ValueError unless every step of the tail was added."""
        if self.count != self.last - self.first + 1:
            raise ValueError(f"tail average has {self.count} of {self.last - self.first + 1} snapshots")
        return {name: (total / self.count).to(like[name].dtype) for name, total in self.total.items()}
