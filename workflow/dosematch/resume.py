"""Resume state of a training: atomic, checked by digest, kept apart from the outputs until the training is done."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dosematch.errors import UserError
from dosematch.records import digest, sha256_file, write_atomically, write_json

log = logging.getLogger(__name__)
KEPT = 2  # a torn newest state falls back to the one before
LEFTOVERS = (".resume-*", ".model.*", ".*.tmp")


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
        write_json(
            weights.with_suffix(".json"), {"sha256": sha256_file(weights), "digest": digest(values), "values": values}
        )
        for old in sorted(self.folder.glob("step*.safetensors"))[:-KEPT]:
            old.with_suffix(".json").unlink(missing_ok=True)
            old.unlink()

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """The newest intact state as (tensors, values); torn ones are deleted: they would outlive good ones."""
        for weights in sorted(self.folder.glob("step*.safetensors"), reverse=True):
            state = _intact(weights)
            if state is not None:
                return state
            log.warning("%s: torn by a kill or a full disk: going back to an older state, or the start", weights)
            weights.with_suffix(".json").unlink(missing_ok=True)
            weights.unlink()
        return None


def _intact(weights: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """A state whose bytes are what was written, else None."""
    try:
        record = json.loads(weights.with_suffix(".json").read_text(encoding="utf-8"))
        if record["sha256"] == sha256_file(weights) and record["digest"] == digest(record["values"]):
            return load_file(weights), record["values"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        pass
    return None


def remove_leftovers(out_dir: Path | str) -> None:
    """Delete resume states, those of other settings too, and the temporaries of runs that were killed while writing."""
    for pattern in LEFTOVERS:
        for path in Path(out_dir).glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
