"""One normal form for the items of an evaluation, whatever tool wrote it."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from dosematch.errors import UserError
from dosematch.questions.files import first_problem

Key = tuple[str, str]  # task and id
PLAIN = "correct"  # the one score of a plain file, which has no name of its own


def is_binary(value: Any) -> bool:
    """Whether a score is a number or boolean that equals 0 or 1; NaN and text are not."""
    return isinstance(value, bool | int | float) and value in (0, 1)


def _binary(value: Any) -> bool:
    if not is_binary(value):
        raise ValueError(f"must be 0 or 1, not {value!r}")
    return bool(value)


class Item(BaseModel):
    """One graded answer; `prompt`, `gold` and `doc` are digests, or None where the file does not tell."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    id: str
    metric: str
    correct: Annotated[bool, BeforeValidator(_binary)]
    prompt: str | None
    gold: str | None
    doc: str | None
    place: str


@dataclass(frozen=True)
class Row:
    """One line of a file before filter and metric are chosen: all its `scores` by name."""

    task: str
    id: str
    scores: Mapping[str, Any]
    place: str
    filter: str = ""
    prompt: str | None = None
    gold: str | None = None
    doc: str | None = None

    @property
    def name(self) -> str:
        """The item in messages: `task/id`."""
        return item_name(self.task, self.id)


def item_name(task: str, identity: str) -> str:
    """`task/id`, or the id alone where the file knows no tasks."""
    return f"{task}/{identity}" if task else identity


def text_digest(value: Any) -> str | None:
    """SHA-256 of a text, or of anything else as JSON; None stays None. lm-eval's own hashes are the same."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def choose_items(rows: Sequence[Row], metrics: Sequence[str] = (), filters: Sequence[str] = ()) -> dict[Key, Item]:
    """The items by (task, id) under one filter and one metric per task.

    `metrics` and `filters` name what to take where a task has several. Raises `UserError` naming the choices when
    they leave none or several, and naming the first id that is given twice or has another score than 0 or 1.
    """
    tasks: dict[str, list[Row]] = {}
    for row in rows:
        tasks.setdefault(row.task, []).append(row)
    items: dict[Key, Item] = {}
    for task, of_task in tasks.items():
        kept = _one_filter(task, of_task, filters)
        metric = _one_metric(task, kept, metrics)
        for row in kept:
            if (first := items.get((task, row.id))) is not None:
                raise UserError(f"{row.place}: id {row.name}: given twice, first in {first.place}")
            items[task, row.id] = _item(row, metric)
    return items


def _item(row: Row, metric: str) -> Item:
    name = f"{metric},{row.filter}" if row.filter else metric
    fields = {key: getattr(row, key) for key in ("task", "id", "prompt", "gold", "doc", "place")}
    try:
        return Item.model_validate({**fields, "metric": name, "correct": row.scores.get(metric)})
    except ValidationError as error:
        problem = first_problem(error).removeprefix("correct: ")
        raise UserError(f"{row.place}: id {row.name}: {metric}: {problem}") from None


def _one_filter(task: str, rows: Sequence[Row], filters: Sequence[str]) -> list[Row]:
    found = _distinct(row.filter for row in rows)
    chosen = [name for name in found if name in filters] if len(found) > 1 else found
    if len(chosen) != 1:
        raise UserError(
            f"{rows[0].place}: task {task or '(none)'}: has filters {', '.join(found)}; choose one with FILTER="
        )
    return [row for row in rows if row.filter == chosen[0]]


def _one_metric(task: str, rows: Sequence[Row], metrics: Sequence[str]) -> str:
    found = _distinct(name for row in rows for name in row.scores)
    place = f"{rows[0].place}: task {task or '(none)'}"
    if not found:
        raise UserError(f"{rows[0].place}: id {rows[0].name}: has no score")
    if metrics and found != [PLAIN]:
        chosen = [name for name in found if name in metrics]
    elif len(found) == 1:
        chosen = found
    else:
        chosen = [name for name in found if all(is_binary(row.scores.get(name)) for row in rows)]
        if not chosen:
            bad = next(row for row in rows if not is_binary(row.scores.get(found[0])))
            value = bad.scores.get(found[0])
            raise UserError(f"{bad.place}: id {bad.name}: no metric is 0 or 1 throughout; {found[0]} is {value!r}")
    if len(chosen) != 1:
        raise UserError(f"{place}: has metrics {', '.join(found)}; choose one with METRIC=")
    return chosen[0]


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
