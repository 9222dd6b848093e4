"""Settings of the question sets: the sources, and how many questions every panel and pool takes."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from dosematch.errors import UserError
from dosematch.questions.files import first_problem

PanelName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


class QuestionSets(BaseModel):
    """What both kinds of settings share: the sizes of all sets, by source (thinker-spec 3).

    `pool_overlap` says how many pool questions are, by construction, questions of a panel: the study filtered its pool
    against the parent slice and the stencil set, not against the panels. All other sets are disjoint.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    panels: dict[PanelName, dict[str, PositiveInt]]
    training_source: str
    parent: PositiveInt
    stencil: PositiveInt
    pool: PositiveInt | None
    pool_overlap: dict[str, PositiveInt] = {}

    @model_validator(mode="after")
    def _names_and_sizes_agree(self) -> "QuestionSets":
        wanted = {source for parts in self.panels.values() for source in parts} | {self.training_source}
        if unknown := sorted(wanted - set(getattr(self, "sources", wanted))):
            raise ValueError(f"sources: {unknown[0]!r} is not defined")
        for panel, n in self.pool_overlap.items():
            if n > sum(self.panels.get(panel, {}).values()):
                raise ValueError(f"pool_overlap.{panel}: {n} is more than the panel has")
        if self.pool is not None and sum(self.pool_overlap.values()) > self.pool:
            raise ValueError("pool_overlap: more questions than the pool has")
        return self


class SyntheticQuestions(QuestionSets):
    """Generated questions; `sources` gives every synthetic source its level weights."""

    kind: Literal["synthetic"]
    sources: dict[str, dict[int, PositiveFloat]]
    training_source: str = "chain"
    pool: PositiveInt


class FileQuestions(QuestionSets):
    """Questions of real files; `sources` lists the files of every source. `pool: null` takes all that is left."""

    kind: Literal["files"]
    sources: dict[str, list[Path]]
    training_source: str = "math"
    pool: PositiveInt | None = None


QuestionSettings = Annotated[SyntheticQuestions | FileQuestions, Field(discriminator="kind")]


def parse_settings(text: str) -> SyntheticQuestions | FileQuestions:
    """Parse the JSON text of `QuestionSettings`; raises `UserError` naming the key that is wrong."""
    adapter: TypeAdapter[SyntheticQuestions | FileQuestions] = TypeAdapter(QuestionSettings)
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise UserError(f"questions: {first_problem(error)}") from None
