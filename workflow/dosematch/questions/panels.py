"""Builds the evaluation panels, the parent slice, the stencil set, the pool, and the manifest (thinker-spec 3).

Nothing depends on the order of keys in the settings, nor on the order of rows in files.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dosematch.errors import UserError
from dosematch.identity import sha1_12, sha1_12_norm
from dosematch.questions.files import read_questions
from dosematch.questions.manifest import Manifest, PanelEntry, write_manifest
from dosematch.questions.question import Question
from dosematch.questions.settings import FileQuestions, SyntheticQuestions
from dosematch.questions.synthetic import synthetic_questions
from dosematch.records import write_jsonl

Take = Callable[[str, str, int | None], list[Question]]


@dataclass(frozen=True)
class PreparedQuestions:
    """Panels by name, the three training pools (`parent`, `stencil`, `pool`), and a note on every source."""

    panels: dict[str, list[Question]]
    pools: dict[str, list[Question]]
    notes: dict[str, str]
    parts: dict[str, dict[str, int]]

    def manifest(self) -> Manifest:
        """The entry of every panel, identities in panel order (thinker-spec 15)."""
        return {
            name: PanelEntry(
                n=len(questions),
                source=" + ".join(f"{n} {source}" for source, n in largest_first(self.parts[name])),
                sha1_12=[sha1_12(question.text) for question in questions],
                sha1_12_norm=[sha1_12_norm(question.text) for question in questions],
                notes="; ".join(self.notes[source] for source, _ in largest_first(self.parts[name])),
            )
            for name, questions in self.panels.items()
        }


def build_questions(settings: SyntheticQuestions | FileQuestions) -> PreparedQuestions:
    """Build all question sets; raises `UserError` when a source has too few questions or a file is unreadable.

    Panels come first, so that they stay as they are when the sizes of the training pools change.
    """
    take, notes = _from_files(settings) if isinstance(settings, FileQuestions) else _generated(settings)
    panels = {
        name: [question for source, n in largest_first(settings.panels[name]) for question in take(name, source, n)]
        for name in sorted(settings.panels)
    }
    pools = {name: take(name, settings.training_source, getattr(settings, name)) for name in ("parent", "stencil")}
    overlap = [
        question
        for name, n in sorted(settings.pool_overlap.items())
        for question in random.Random(settings.seed).sample(panels[name], n)
    ]
    rest = None if settings.pool is None else settings.pool - len(overlap)
    pools["pool"] = sorted(take("pool", settings.training_source, rest) + overlap, key=_identity)
    return PreparedQuestions(panels, pools, notes, settings.panels)


def largest_first(parts: dict[str, int]) -> list[tuple[str, int]]:
    """The parts of a panel, the largest first, ties by name: 200 GSM8K before 40 AMC23 whatever the order of keys."""
    return sorted(parts.items(), key=lambda part: (-part[1], part[0]))


def stratified_order(questions: list[Question], seed: int) -> list[Question]:
    """Order questions so that every contiguous block holds each level in nearly its overall proportion.

    Each level is sorted by identity, shuffled with `seed`, and spread evenly over the whole; having no level counts
    as a level.
    """
    rng = random.Random(seed)
    by_level: dict[int, list[Question]] = {}
    for question in sorted(questions, key=_identity):
        by_level.setdefault(-1 if question.level is None else question.level, []).append(question)
    placed = []
    for level, members in sorted(by_level.items()):
        rng.shuffle(members)
        placed += [((rank + 0.5) / len(members), level, question) for rank, question in enumerate(members)]
    return [question for *_, question in sorted(placed, key=lambda entry: entry[:2])]


def _generated(settings: SyntheticQuestions) -> tuple[Take, dict[str, str]]:
    """Draw each set with a seed of its own name, so that resizing one set leaves the others alone."""
    taken: set[str] = set()

    def take(name: str, source: str, n: int | None) -> list[Question]:
        seed = int(sha1_12(f"{settings.seed}/{name}"), 16)
        questions = synthetic_questions(source, n or 0, seed, settings.sources[source], taken)
        taken.update(map(_identity, questions))
        return questions

    return take, {source: f"{source}: generated with seed {settings.seed}" for source in settings.sources}


def _from_files(settings: FileQuestions) -> tuple[Take, dict[str, str]]:
    """Cut sets off each source in turn: the training source level-stratified, the others in order of SHA-1.

    A question of several sources stays only in the first by name, and in the training source only if in no other one.
    """
    seen: set[str] = set()
    remaining: dict[str, Iterator[Question]] = {}
    notes = {}
    for source in sorted(settings.sources, key=lambda name: (name == settings.training_source, name)):
        rows = [question for path in settings.sources[source] for question in read_questions(path)]
        distinct = {_identity(question): question for question in reversed(rows)}
        own = [question for identity, question in distinct.items() if identity not in seen]
        notes[source] = (
            f"{source}: {len(rows)} rows, {len(rows) - len(distinct)} duplicates dropped, "
            f"{len(distinct) - len(own)} dropped that another source holds"
        )
        seen.update(distinct)
        is_training = source == settings.training_source
        remaining[source] = iter(stratified_order(own, settings.seed) if is_training else sorted(own, key=_identity))

    def take(name: str, source: str, n: int | None) -> list[Question]:
        questions = list(islice(remaining[source], n))
        if n is not None and len(questions) < n:
            raise UserError(f"questions: {name} needs {n} of source {source}, which has {len(questions)} left")
        return questions

    return take, notes


def write_questions(prepared: PreparedQuestions, out_dir: Path) -> None:
    """Write `panels/<panel>.jsonl`, `pools/<pool>.jsonl`, and last `panels/manifest.json`."""
    for folder, sets in (("panels", prepared.panels), ("pools", prepared.pools)):
        for name, questions in sets.items():
            write_jsonl(out_dir / folder / f"{name}.jsonl", (question.model_dump() for question in questions))
    write_manifest(out_dir / "panels" / "manifest.json", prepared.manifest())


def _identity(question: Question) -> str:
    return sha1_12(question.text)
