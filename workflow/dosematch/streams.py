"""Training streams: which question every step trains on (thinker-spec 3.1)."""

import random
from itertools import cycle, islice
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from dosematch.errors import UserError
from dosematch.identity import sha1_12
from dosematch.questions.files import first_problem, read_questions
from dosematch.questions.question import Question
from dosematch.records import read_json

Indexed = tuple[int, Question]


class StreamItem(BaseModel):
    """The question of one step (from 1); `index` is its place in the file of its `source`, `stencil` or `pool`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    source: str
    index: int
    sha1_12: str
    question: str
    answer: str

    @model_validator(mode="after")
    def _identity_is_the_questions(self) -> "StreamItem":
        if self.sha1_12 != sha1_12(self.question):
            raise ValueError(f"sha1_12 {self.sha1_12} is not the identity of the question of step {self.step}")
        return self


class Stream(BaseModel):
    """One seed's stream; `dropped` lists, sorted, the identities that decontamination removed from both sources."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    decontaminated: bool
    dropped: list[str]
    items: list[StreamItem]


def build_stream(
    seed: int,
    n_steps: int,
    stencil: list[Question],
    pool: list[Question],
    parent: frozenset[str],
    panels: frozenset[str] | None = None,
) -> Stream:
    """Interleave stencil (odd steps) and pool (even steps), each shuffled by `seed` (thinker-spec 3.1).

    Records in `parent` (identities) are left out, and pool records that the stencil also holds. With `panels`
    (identities) every record in it is dropped too, after shuffling and before sampling: the clean stream is the study
    stream without its panel questions, later records of the same source moving up, and has the same length.
    Raises `UserError` when a source runs out or two steps would share an identity.
    """
    in_stencil = frozenset(sha1_12(question.text) for question in stencil)
    sources = {"stencil": _shuffled(stencil, parent, seed), "pool": _shuffled(pool, parent | in_stencil, seed)}
    blocked = panels or frozenset()
    kept = {name: [record for record in rows if _identity(record) not in blocked] for name, rows in sources.items()}
    for name, n in (("stencil", (n_steps + 1) // 2), ("pool", n_steps // 2)):
        if len(kept[name]) < n:
            raise UserError(f"streams: {n_steps} steps need {n} {name} questions, {len(kept[name])} are left")
    turns = islice(cycle((name, iter(rows)) for name, rows in kept.items()), n_steps)
    items = [_item(step, source, next(records)) for step, (source, records) in enumerate(turns, 1)]
    _refuse_duplicates(seed, items)
    dropped = sorted({_identity(record) for rows in sources.values() for record in rows} & blocked)
    return Stream(seed=seed, decontaminated=panels is not None, dropped=dropped, items=items)


def read_stream(path: Path | str) -> Stream:
    """Read a stream; raises `UserError` naming the file and key, also when an identity is not that of its question."""
    try:
        return Stream.model_validate(read_json(path))
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error)}") from None


def read_training_questions(path: Path | str) -> list[StreamItem]:
    """The questions of a stream (`.json`), or of a parent slice (`.jsonl`), whose order is its file's."""
    if Path(path).suffix == ".json":
        return read_stream(path).items
    return [_item(step, "parent", (step - 1, question)) for step, question in enumerate(read_questions(path), 1)]


def _shuffled(questions: list[Question], left_out: frozenset[str], seed: int) -> list[Indexed]:
    records = [record for record in enumerate(questions) if _identity(record) not in left_out]
    random.Random(seed).shuffle(records)
    return records


def _identity(record: Indexed) -> str:
    return sha1_12(record[1].text)


def _item(step: int, source: str, record: Indexed) -> StreamItem:
    index, question = record
    identity = _identity(record)
    return StreamItem(
        step=step, source=source, index=index, sha1_12=identity, question=question.text, answer=question.answer
    )


def _refuse_duplicates(seed: int, items: list[StreamItem]) -> None:
    steps: dict[str, int] = {}
    for item in items:
        first = steps.setdefault(item.sha1_12, item.step)
        if first != item.step:
            raise UserError(f"streams: seed {seed}: steps {first} and {item.step} share the question {item.sha1_12}")
