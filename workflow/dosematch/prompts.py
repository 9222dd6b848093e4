"""Stage prompts as data (`config/prompts/*.yaml`, thinker-spec 4); their digest goes into every record."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from dosematch.errors import UserError
from dosematch.questions.files import first_problem
from dosematch.records import read_yaml

if TYPE_CHECKING:  # reading the configuration must not import transformers: every snakemake call does it
    from transformers import PreTrainedTokenizerBase


class Prompts(BaseModel):
    """The four stage prompts; `fast` holds `{question}`, the others are appended to the dialogue so far."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fast: str
    verify: str
    slow: str
    summary: str

    @property
    def sha1(self) -> str:
        """SHA-1 of the four texts."""
        return hashlib.sha1(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()

    def fast_ids(self, tokenizer: PreTrainedTokenizerBase, question: str) -> tuple[int, ...]:
        """Token ids of `x_fast` for one question."""
        return encode(tokenizer, self.fast.replace("{question}", question))


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """Token ids of `text` without special tokens."""
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def load_prompts(path: Path | str) -> Prompts:
    """Read a prompt file; raises `UserError` naming the file and the key."""
    try:
        prompts = Prompts.model_validate(read_yaml(path))
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error)}") from None
    if "{question}" not in prompts.fast:
        raise UserError(f"{path}: fast: has no {{question}}")
    return prompts
