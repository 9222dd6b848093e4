"""Reads `config/t5/` and `config/arms/t5/`, merges defaults, scale and arm, and validates before a DAG exists."""

from pathlib import Path
from typing import Any

from dosematch.config import check, first_comment, plain
from dosematch.errors import UserError
from dosematch.midtrain.settings import T5Arm, T5Scale, T5TrainSettings
from dosematch.midtrain.study import T5Study
from dosematch.records import read_yaml

ARMS, SCALES = "config/arms/t5", "config/t5"


class T5Config:
    """The arms of a mid-training study at one scale, validated; raises `UserError` naming the file and the key."""

    def __init__(self, study: T5Study, scale: str | None = None, root: Path | str = ".") -> None:
        self.root, self.study = Path(root), study
        path = self._existing(SCALES, scale or study.scale, "t5.scale")
        values = {"name": path.stem, "about": first_comment(path), **read_yaml(path)}
        self.scale: T5Scale = check(T5Scale, values, self._relative(path))
        self.arms = {name: self._load_arm(name) for name in study.arms}
        for name in self.arms:
            self.train_settings(name)

    @property
    def results(self) -> str:
        """Folder of this study's results at this scale."""
        return f"results/t5/{self.scale.name}"

    def train_settings(self, name: str) -> str:
        """JSON of `T5TrainSettings` for one arm, without the descriptions, which cannot change its result."""
        arm = self.arms[name].model_copy(update={"about": "", "label": ""})
        scale = self.scale.model_dump(include={"task", "sizes", "training", "saddle", "runtime"})
        return plain(check(T5TrainSettings, {"arm": arm.model_dump(), **scale}, f"{ARMS}/{name}.yaml"))

    def run_files(self, name: str, seed: int | str) -> list[str]:
        """What training one arm with one seed writes, the weights first."""
        folder = f"{self.results}/arms/{name}/seed{seed}"
        return [f"{folder}/{file}" for file in ("model/model.safetensors", "windows.jsonl", "timing.jsonl")]

    def _load_arm(self, name: str) -> T5Arm:
        path = self._existing(ARMS, name, "t5.arms")
        scale = self.scale.arm
        layers = [read_yaml(path.with_name("_defaults.yaml")), scale, read_yaml(path)]
        merged: dict[str, Any] = {"name": name, "about": first_comment(path)}
        for layer in layers:
            merged = _over(merged, layer)
        return check(T5Arm, merged, f"{self._relative(path)} (over _defaults.yaml and {SCALES}/{self.scale.name}.yaml)")

    def _existing(self, folder: str, name: str, key: str) -> Path:
        path = self.root / folder / f"{name}.yaml"
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in path.parent.glob("[!_]*.yaml")))
            raise UserError(f"config/config.yaml: {key}: no file {folder}/{name}.yaml (known: {known})")
        return path

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self.root))


def _over(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, sections key by key."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = {**base[key], **value} if both else value
    return merged
