"""Documents packed into sequences, the tokenizer of their words, and the positions that all arms share (t5-spec 1.1, 7.4)."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import Field, PositiveInt
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dosematch.midtrain.corpora import CLOSE, END, OPEN, PAD, WORDS, Document, Style, draw, filler
from dosematch.records import write_atomically, write_jsonl
from dosematch.strict import Strict

EARLIEST = 32  # tokens of visible text before any position


class TextSettings(Strict):
    """The corpus of one scale: sequences per split, their length, documents by kind, positions per sequence."""

    seed: int
    length: PositiveInt
    horizon: PositiveInt
    sequences: dict[str, PositiveInt]
    mixture: dict[str, float]
    ledger_depth: list[int] = Field(min_length=2, max_length=2)
    cups_depth: list[int] = Field(min_length=2, max_length=2)
    explicit: float = Field(ge=0, le=1)
    corrupted: float = Field(ge=0, le=1)
    sites: PositiveInt  # positions of a sequence where an answer follows, and as many anywhere

    @property
    def style(self) -> Style:
        """What the generators need to know."""
        low, high = self.ledger_depth
        least, most = self.cups_depth
        return Style((low, high), (least, most), self.explicit, self.corrupted)


@dataclass(frozen=True)
class Packed:
    """One packed sequence: words, and the documents in it with the index of their first word."""

    id: str
    split: str
    words: tuple[str, ...]
    documents: tuple[tuple[int, Document], ...]

    def at(self, p: int) -> Document:
        """The document that holds word `p`."""
        return max((start, document.id, document) for start, document in self.documents if start <= p)[2]


def word_tokenizer() -> PreTrainedTokenizerFast:
    """One id per word or symbol."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"additional_special_tokens": [OPEN, CLOSE]}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, **special)


def packed(settings: TextSettings, split: str) -> Iterator[Packed]:
    """Endless sequences of whole documents; a last piece of filler makes each exactly `length` words."""
    rng = random.Random(f"{settings.seed}/{split}/mixture")
    kinds, weights = list(settings.mixture), list(settings.mixture.values())
    numbers = dict.fromkeys(kinds, 0)
    waiting: Document | None = None
    n = 0
    while True:
        words: list[str] = []
        documents: list[tuple[int, Document]] = []
        while True:
            if waiting is None:
                kind = rng.choices(kinds, weights)[0]
                waiting = draw(kind, split, settings.seed, numbers[kind], settings.style)
                numbers[kind] += 1
            if len(words) + len(waiting.words) > settings.length:
                break
            documents.append((len(words), waiting))
            words += waiting.words
            waiting = None
        if len(words) < settings.length:
            rest = filler(random.Random(f"{settings.seed}/{split}/rest/{n}"), settings.length - len(words))
            documents.append((len(words), Document(f"{split}/rest/{n}", "filler", 0, rest)))
            words += rest
        yield Packed(f"{split}{n:05d}", split, tuple(words), tuple(documents))
        n += 1


def positions(sequence: Packed, settings: TextSettings) -> list[dict[str, Any]]:
    """Selected positions of one sequence: half where an answer follows, half anywhere; each before `horizon` words."""
    last = settings.length - settings.horizon
    sites = [start + d.site for start, d in sequence.documents if d.site is not None]
    rng = random.Random(f"{settings.seed}/{sequence.id}/positions")
    sites = [p for p in sites if EARLIEST <= p <= last]
    chosen = sorted(rng.sample(sites, min(settings.sites, len(sites))))
    free = [p for p in range(EARLIEST, last + 1) if p not in sites]
    chosen += sorted(rng.sample(free, len(chosen) or settings.sites))
    rows = []
    for p in chosen:
        document = sequence.at(p)
        kind = document.kind if p in sites else f"{document.kind}-any"
        row = {"item_id": f"{sequence.id}:{p}", "split": sequence.split, "seq_id": sequence.id}
        rows.append(row | {"p": p, "h": settings.horizon, "kind": kind, "parent": document.id})
    return rows


def write_text(settings: TextSettings, out_dir: Path) -> None:
    """Write `sequences.parquet` (seq_id, split, ids) and `positions.jsonl` of all splits."""
    tokenizer = word_tokenizer()
    rows, manifest = [], []
    for split, n in settings.sequences.items():
        for sequence, _ in zip(packed(settings, split), range(n), strict=False):
            ids = tokenizer.convert_tokens_to_ids(list(sequence.words))
            rows.append({"seq_id": sequence.id, "split": split, "ids": ids})
            manifest += positions(sequence, settings)
    write_atomically(out_dir / "sequences.parquet", lambda path: pd.DataFrame(rows).to_parquet(path, index=False))
    write_jsonl(out_dir / "positions.jsonl", manifest)


def batches(settings: TextSettings, split: str, size: int) -> Iterator[list[Sequence[str]]]:
    """Endless batches of sequences, for pretraining."""
    stream = packed(settings, split)
    while True:
        yield [next(stream).words for _ in range(size)]
