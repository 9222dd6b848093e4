"""What every settings model has in common."""

from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Item = TypeVar("Item")


class Strict(BaseModel):
    """Frozen, no unknown keys, no silent conversion (the YAML string `1e-6` is not a number; write 1.0e-6)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _distinct(values: list[Item]) -> list[Item]:
    """Refuse a list that names something twice."""
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value!r} is listed twice")
    return values


Distinct = Annotated[list[Item], Field(min_length=1), AfterValidator(_distinct)]
