"""The micro base model: a Qwen3-shaped model trained from scratch on synthetic dialogues of the four stages."""

import hashlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from dosematch.identity import sha1_12
from dosematch.prompts import Prompts, encode
from dosematch.questions.dialogues import draw_dialogue
from dosematch.questions.synthetic import Problem, draw_problem, reserved

EOS = "<|endoftext|>"
TOKENIZER_TEXTS = 4000
BATCHES_PER_POOL = 16
LONG_CHAIN = 4  # operations
# The loss of a batch is its sum over target tokens divided by a constant. A mean would weigh every token of a batch of
# short answers more, and the model would guess more often than its corpus does.
TYPICAL_TARGETS = 32
IGNORED = -100  # the label that transformers' loss skips

Tokenised = tuple[list[int], list[int]]  # token ids, labels


class Optimizer(BaseModel):
    """AdamW with a linear warm-up and a cosine to zero."""

    model_config = ConfigDict(extra="forbid")

    steps: int
    batch_size: int
    learning_rate: float
    warmup_steps: int
    weight_decay: float


class Recipe(BaseModel):
    """`config/base/*.yaml`: everything that decides the base model's bytes beside the code."""

    model_config = ConfigDict(extra="forbid")

    seed: int
    threads: int
    prompts: str
    model: dict[str, int]
    optimizer: Optimizer
    levels: dict[int, float]
    sources: dict[str, float]
    dialogues: dict[str, float]
    arithmetic_steps: int
    fast_modes: dict[str, float]
    ramble_boost: float


CORPUS_CODE = ("pretraining.py", "questions/dialogues.py", "questions/synthetic.py")


def recipe_digest(path: Path, recipe: Recipe) -> str:
    """SHA-256 over the recipe, its prompts and the code that draws the corpus: a model belongs to one of these."""
    library = Path(__file__).parent
    files = [path, Path(recipe.prompts), *(library / name for name in CORPUS_CODE)]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


class Corpus:
    """An endless, seeded stream of dialogues; questions reserved for panels and streams are never drawn."""

    def __init__(self, recipe: Recipe, prompts: Prompts) -> None:
        self.recipe, self.prompts = recipe, prompts
        self.rng = random.Random(recipe.seed)

    def draw(self, guesses: bool = True) -> list[tuple[str, bool]]:
        """One dialogue as (text, trained?) pieces; the last piece ends in the end-of-sequence token.

        Without `guesses` every Fast answer is a derivation: what the model learns arithmetic from.
        """
        problem, source = self._unreserved()
        kind = weighted(self.rng, self.recipe.dialogues)
        weights = self._mode_weights(problem)
        mode = weighted(self.rng, weights if guesses else weights | {"guess": 0.0})
        return draw_dialogue(kind, mode, problem, problem.text(source), self.prompts, self.rng)

    def _mode_weights(self, problem: Problem) -> dict[str, float]:
        """Mode weights of one problem: long chains with an early product invite rambling."""
        weights = dict(self.recipe.fast_modes)
        if problem.level >= LONG_CHAIN and "*" in [sign for sign, _ in problem.operations[:2]]:
            weights["ramble"] *= self.recipe.ramble_boost
        return weights

    def _unreserved(self) -> tuple[Problem, str]:
        while True:
            source = weighted(self.rng, self.recipe.sources)
            problem = draw_problem(self.rng, weighted(self.rng, self.recipe.levels))
            if not reserved(sha1_12(problem.text(source))):
                return problem, source


def weighted(rng: random.Random, weights: dict[Any, float]) -> Any:
    """Draw one key with probability proportional to its weight."""
    return rng.choices(list(weights), list(weights.values()))[0]


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE with single digits: any text has tokens, and numbers are read digit by digit."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, pad_token=EOS)


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> Qwen3ForCausalLM:
    """A randomly initialised Qwen3-shaped model; the caller seeds torch."""
    token = tokenizer.eos_token_id
    shape: dict[str, Any] = dict(recipe.model)
    config = Qwen3Config(**shape, tie_word_embeddings=True, eos_token_id=token, pad_token_id=token, bos_token_id=token)
    return Qwen3ForCausalLM(config)


def pretrain(
    recipe: Recipe, prompts: Prompts, log: Callable[[int, float], None], steps: int | None = None
) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Train tokenizer and model on the recipe's corpus; `log(step, loss)` is called after every step.

    `steps` stops early without changing the schedule, so that the first losses of a recorded run can be reproduced.
    """
    texts = Corpus(recipe, prompts)
    tokenizer = train_tokenizer(
        ["".join(text for text, _ in texts.draw()) for _ in range(TOKENIZER_TEXTS)], recipe.model["vocab_size"]
    )
    torch.manual_seed(recipe.seed)
    model = build_model(recipe, tokenizer)
    settings = recipe.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=settings.weight_decay
    )
    batches = similar_length_batches(Corpus(recipe, prompts), tokenizer, settings.batch_size)
    for step in range(1, (steps or settings.steps) + 1):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * schedule(step, settings.warmup_steps, settings.steps)
        batch = collate(next(batches), tokenizer.eos_token_id)
        loss = model(**batch, num_items_in_batch=settings.batch_size * TYPICAL_TARGETS).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        log(step, loss.item())
    return model, tokenizer


def similar_length_batches(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, batch_size: int
) -> Iterator[list[Tokenised]]:
    """Endless batches of dialogues of similar length, in random order: little padding, every length in every pool."""
    for drawn in count(step=BATCHES_PER_POOL):
        guesses = drawn >= corpus.recipe.arithmetic_steps
        pool = [tokenise(corpus.draw(guesses), tokenizer) for _ in range(BATCHES_PER_POOL * batch_size)]
        pool.sort(key=lambda row: len(row[0]))
        starts = list(range(0, len(pool), batch_size))
        corpus.rng.shuffle(starts)
        for start in starts:
            yield pool[start : start + batch_size]


def schedule(step: int, warmup: int, total: int) -> float:
    """Linear warm-up, then a cosine from 1 to 0."""
    if step <= warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def tokenise(pieces: Sequence[tuple[str, bool]], tokenizer: PreTrainedTokenizerBase) -> Tokenised:
    """Token ids and labels; pieces are tokenised one by one, as the stages of an episode are."""
    ids: list[int] = []
    labels: list[int] = []
    for text, trained in pieces:
        piece = list(encode(tokenizer, text)) + ([tokenizer.eos_token_id] if trained else [])
        ids += piece
        labels += piece if trained else [IGNORED] * len(piece)
    return ids, labels


def collate(rows: Sequence[Tokenised], pad: int) -> dict[str, torch.Tensor]:
    """Right-pad to int64 [batch, longest]; causal attention makes a mask for right padding unnecessary."""
    width = max(len(ids) for ids, _ in rows)
    return {
        "input_ids": torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in rows]),
        "labels": torch.tensor([labels + [IGNORED] * (width - len(labels)) for _, labels in rows]),
    }
