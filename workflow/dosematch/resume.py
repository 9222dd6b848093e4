"""Resume state of a training: atomic, checked by digests, kept apart from the outputs until the training is done.

A state has parts: tensors whose names begin alike (`master.`, `adamw.`, `grad.`, `tail.`), and single values. Each has
a digest of its own in the state's JSON, so that two runs that part can be compared part by part.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dosematch.errors import UserError
from dosematch.records import digest, write_atomically, write_json

log = logging.getLogger(__name__)
KEPT = 2  # a torn newest state falls back to the one before
LEFTOVERS = (".resume-*", ".model.*", ".*.tmp")


def tensor_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Hex SHA-256 of names, dtypes, shapes and bytes, whatever the order of the names."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def part_digests(tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> dict[str, str]:
    """A digest for every part of a state: tensors by the first word of their names, values by key."""
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        parts.setdefault(name.split(".")[0], {})[name] = tensor
    return {part: tensor_digest(own) for part, own in parts.items()} | {key: digest(values[key]) for key in values}


class ResumeFolder:
    """States named by step; `load` returns the newest whose bytes are what was written, or None."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def save(self, step: int, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Write one state and forget the oldest; the digest file comes last, so a state without one is torn.

        Raises `UserError` naming the file when it cannot be written.
        """
        weights = self.folder / f"step{step:06d}.safetensors"
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        try:
            write_atomically(weights, lambda target: save_file(contiguous, target))
        except SafetensorError as error:
            raise UserError(f"{weights}: not written: {error}") from None
        write_json(weights.with_suffix(".json"), {"digests": part_digests(tensors, values), "values": values})
        for old in sorted(self.folder.glob("step*.safetensors"))[:-KEPT]:
            old.with_suffix(".json").unlink(missing_ok=True)
            old.unlink()

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """The newest intact state as (tensors, values); torn ones are deleted: they would outlive good ones."""
        for weights in sorted(self.folder.glob("step*.safetensors"), reverse=True):
            tensors, values, torn = _read(weights)
            if not torn:
                return tensors, values
            log.warning(
                "%s: torn by a kill or a full disk (%s): going back to an older state, or the start", weights, torn
            )
            weights.with_suffix(".json").unlink(missing_ok=True)
            weights.unlink()
        return None


def _read(weights: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], str]:
    """A state, and what is wrong with it: "" when every part is what was written, else the first part that is not."""
    try:
        record = json.loads(weights.with_suffix(".json").read_text(encoding="utf-8"))
        tensors, values, written = load_file(weights), dict(record["values"]), dict(record["digests"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        return {}, {}, f"unreadable: {error}"
    found = part_digests(tensors, values)
    return tensors, values, min((part for part in found | written if found.get(part) != written.get(part)), default="")


def remove_leftovers(out_dir: Path | str) -> None:
    """Delete resume states, those of other settings too, and the temporaries of runs that were killed while writing."""
    for pattern in LEFTOVERS:
        for path in Path(out_dir).glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
