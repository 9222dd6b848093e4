"""The base checkpoint of the mid-training study: a small Qwen3 trained on text that shows its steps now and then (t5-spec 7)."""

from collections.abc import Callable
from typing import Any

import torch
from pydantic import PositiveFloat, PositiveInt
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from dosematch.midtrain.actor import next_token_loss
from dosematch.midtrain.corpora import CLOSE, LEFT, OPEN, RIGHT
from dosematch.midtrain.text import TextSettings, batches, word_tokenizer
from dosematch.pretraining import schedule
from dosematch.strict import Strict


class BaseRecipe(Strict):
    """`config/t5_base/*.yaml`: all that decides a base checkpoint beside the code."""

    seed: int
    threads: PositiveInt
    steps: PositiveInt
    batch_size: PositiveInt
    learning_rate: PositiveFloat
    warmup_steps: PositiveInt
    weight_decay: float
    model: dict[str, int | float]
    text: TextSettings


def pretrain(
    recipe: BaseRecipe, log: Callable[[int, float], None], steps: int | None = None
) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Train on the split `base`; `log(step, loss)` after every step; `steps` stops early on the same schedule."""
    tokenizer = word_tokenizer()
    torch.manual_seed(recipe.seed)
    shape: dict[str, Any] = dict(recipe.model)
    end = tokenizer.eos_token_id
    config = Qwen3Config(
        vocab_size=len(tokenizer), tie_word_embeddings=True, eos_token_id=end, bos_token_id=end, pad_token_id=0, **shape
    )
    model = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=recipe.weight_decay
    )
    stream = batches(recipe.text, "base", recipe.batch_size)
    for step in range(1, (steps or recipe.steps) + 1):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * schedule(step, recipe.warmup_steps, recipe.steps)
        ids = torch.tensor([tokenizer.convert_tokens_to_ids(list(words)) for words in next(stream)])
        loss = next_token_loss(model, ids)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log(step, loss.item())
    give_markers(model, tokenizer)
    return model.eval(), tokenizer


@torch.no_grad()
def give_markers(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Let the thought's marks begin as the brackets around worked steps (1.2).

    The rows are exchanged, not copied: with tied embeddings a copy would halve the probability of ending a thought.
    """
    rows = model.get_input_embeddings().weight
    for mark, bracket in ((OPEN, LEFT), (CLOSE, RIGHT)):
        i, j = tokenizer.convert_tokens_to_ids([mark, bracket])
        rows[[i, j]] = rows[[j, i]]
