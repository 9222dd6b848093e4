"""What every settings model has in common."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Frozen, no unknown keys, no silent conversion (the YAML string `1e-6` is not a number; write 1.0e-6)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
