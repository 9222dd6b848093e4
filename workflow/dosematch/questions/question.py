"""The unit every panel, pool and stream is made of."""

from pydantic import BaseModel, ConfigDict


class Question(BaseModel):
    """One question with its reference answer; its identity is the SHA-1 of `text` (see `identity.sha1_12`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    text: str
    answer: str
    source: str
    level: int | None = None
