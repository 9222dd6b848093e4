"""The manifest of panels: which identities each panel holds, in panel order (thinker-spec 15)."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from dosematch.errors import UserError
from dosematch.questions.files import first_problem
from dosematch.records import read_json, write_json

Identity = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]


class PanelEntry(BaseModel):
    """One panel; `sha1_12_norm` may be missing from manifests of other origin, and other fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    n: int
    source: str
    sha1_12: list[Identity]
    sha1_12_norm: list[Identity] | None = None
    notes: str = ""

    @model_validator(mode="after")
    def _lengths_agree(self) -> "PanelEntry":
        if {self.n} != {len(self.sha1_12), self.n if self.sha1_12_norm is None else len(self.sha1_12_norm)}:
            raise ValueError("n is not the number of identities")
        return self


Manifest = dict[str, PanelEntry]


def read_manifest(path: Path | str) -> Manifest:
    """Read a manifest; raises `UserError` naming the file, and the panel and key that are wrong."""
    adapter: TypeAdapter[Manifest] = TypeAdapter(Manifest)
    try:
        return adapter.validate_python(read_json(path))
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error)}") from None


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest, for the run or as the frozen one of a scale."""
    write_json(path, {name: entry.model_dump() for name, entry in manifest.items()})


def check_frozen(manifest: Manifest, path: Path | str) -> None:
    """Raise `UserError` naming the panel unless the frozen manifest at `path` lists the same identities in order."""
    frozen = read_manifest(path)
    for panel in sorted(manifest.keys() | frozen.keys()):
        if panel not in frozen or panel not in manifest:
            raise UserError(f"{path}: panel {panel} is only in the {'frozen' if panel in frozen else 'new'} manifest")
        old, new = frozen[panel].sha1_12, manifest[panel].sha1_12
        if old != new:
            what = f"{len(set(old) ^ set(new))} identities" if set(old) != set(new) else "the order of identities"
            raise UserError(f"{path}: panel {panel} differs from the frozen one in {what}")


def identities(manifest: Manifest) -> frozenset[str]:
    """The union of all panels' identities."""
    return frozenset(identity for entry in manifest.values() for identity in entry.sha1_12)
