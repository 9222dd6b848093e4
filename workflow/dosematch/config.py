"""Reads `config/`, merges defaults and arms, and validates every merged arm before a DAG exists."""

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from dosematch.arm import Arm
from dosematch.errors import UserError
from dosematch.prompts import load_prompts
from dosematch.questions.files import first_problem
from dosematch.records import read_yaml
from dosematch.settings import Config, EvalSettings, Evaluation, Scale, Study, Training, TrainSettings

Model = TypeVar("Model", bound=BaseModel)
STUDY = "thinker"


class StudyConfig:
    """A validated study at one scale, and the plain JSON settings that its jobs are given."""

    def __init__(self, raw: dict[str, Any], root: Path | str = ".") -> None:
        """Validate the contents of config.yaml and every file they name; `root` is the project folder.

        Raises `UserError` naming the file and the key.
        """
        self.root = Path(root)
        self.file = "config/config.yaml"
        config = check(Config, raw, self.file)
        self.study: Study = config.thinker
        self.scale = self._load_scale(config.scale)
        self.prompts = load_prompts(self.root / self.scale.prompts)
        names = dict.fromkeys([self.study.parent, *self.study.arms])
        self.arms = {name: self._load_arm(name) for name in names}
        self._check_references()
        for name in self.arms:
            self.train_settings(name)

    @property
    def results(self) -> str:
        """Folder of this study's results at this scale."""
        return f"results/{STUDY}/{self.scale.name}"

    @property
    def panels(self) -> list[str]:
        """All panels, the development panel last."""
        return [*self.study.suites["all6"], self.study.development_panel]

    def trained_arms(self) -> list[str]:
        """Arms that continue from the parent."""
        return [name for name, arm in self.arms.items() if arm.starts_from == "parent"]

    def seeds(self, arm: str) -> list[int]:
        """The seeds that an arm is trained with."""
        return self.arms[arm].seeds or self.study.seeds

    def checkpoints(self) -> list[tuple[str, int]]:
        """Every (arm, seed), arms in the order of config.yaml, the parent first."""
        return [(arm, seed) for arm in self.arms for seed in self.seeds(arm)]

    def model_file(self, arm: str, seed: int | str) -> str:
        """Path of a checkpoint's weights."""
        if arm == self.study.parent:
            return f"{self.results}/parents/seed{seed}/model/model.safetensors"
        return f"{self.results}/arms/{arm}/seed{seed}/model/model.safetensors"

    def train_settings(self, name: str, base_lr: float | None = None) -> str:
        """JSON of `TrainSettings` for one arm at this scale, without what cannot change its result.

        Descriptions and the list of seeds are left out: rewording an arm or adding a seed retrains nothing. `base_lr`
        replaces the scale's for a sweep.
        """
        neutral = {"about": "", "label": "", "seeds": None, "dose_family": None}
        arm = (self.arms.get(name) or self._load_arm(name)).model_copy(update=neutral)
        training = self.scale.training
        if base_lr is not None:
            training = training.model_copy(update={"base_lr": base_lr})
        if arm.starts_from == "base":
            changed = {**training.model_dump(), **self.scale.parent_training.model_dump()}
            training = check(Training, changed, f"config/scales/{self.scale.name}.yaml", "parent_training.")
        settings = {
            "study": STUDY,
            "arm": arm.scaled(self.scale.length_factor).model_dump(),
            "training": training.model_dump(),
            "runtime": self.scale.runtime.model_dump(),
            "evaluation": self._evaluation().model_dump(),
            "prompts": self.prompts.model_dump(),
        }
        return plain(check(TrainSettings, settings, self._arm_file(name)))

    @property
    def sweep_folders(self) -> list[str]:
        """A folder for every base learning rate and seed of the sweep, none where the scale has no sweep."""
        rates = self.scale.base_lr_sweep.values if self.scale.base_lr_sweep else []
        return [f"{self.results}/base_lr_sweep/lr{rate:g}/seed{seed}" for rate in rates for seed in self.study.seeds]

    @property
    def gpus(self) -> int:
        """GPUs that one generation job occupies, and every process of a training."""
        return int(self.scale.runtime.device == "cuda")

    @property
    def launcher(self) -> str:
        """The command that runs a training script: in one process, or in several that share the work."""
        processes = self.scale.runtime.processes
        return "python" if processes == 1 else f"torchrun --standalone --nproc-per-node {processes}"

    def frozen_option(self) -> str:
        """The option that makes `prepare_questions.py` compare with the frozen panels, where the scale has some."""
        return f"--frozen {self.scale.frozen_panels}" if self.scale.frozen_panels else ""

    def gguf_settings(self) -> str:
        """JSON of the GGUF file that the model is made from; empty where the scale names none."""
        return plain(self.scale.gguf) if self.scale.gguf else ""

    def eval_settings(self) -> str:
        """JSON of `EvalSettings`: the same for every checkpoint."""
        return plain(
            EvalSettings(
                study=STUDY,
                verify_slow_panel=self.study.verify_slow_panel,
                runtime=self.scale.runtime,
                evaluation=self._evaluation(),
                prompts=self.prompts,
            )
        )

    def record_settings(self) -> str:
        """JSON of what an evaluation record says about how it was made, and the suites it totals."""
        evaluation = {**self._evaluation().model_dump(), "dtype": self.scale.runtime.dtype}
        record = {"eval": evaluation, "suites": self.study.suites, "verify_slow_panel": self.study.verify_slow_panel}
        return json.dumps(record, sort_keys=True)

    def question_settings(self) -> str:
        """JSON of the question sets."""
        return plain(self.scale.questions)

    def report_settings(self) -> str:
        """JSON of what statistics, tables and report need to know about the study."""
        training = self.scale.training
        arms = []
        for name, arm in self.arms.items():
            scaled = arm.scaled(self.scale.length_factor)
            arms.append(
                {
                    "name": name,
                    "label": arm.label,
                    "about": arm.about,
                    "seeds": self.seeds(name),
                    "cap": scaled.cap if arm.starts_from == "parent" else None,  # the parent spends none of a dose
                    "accumulation": arm.accumulation,
                    "switches": scaled.model_dump(exclude={"name", "about", "label", "seeds"}),
                }
            )
        return json.dumps(
            {
                "study": STUDY,
                "scale": self.scale.name,
                "about": self.scale.about,
                "seeds": self.study.seeds,
                "parent": self.study.parent,
                "arms": arms,
                "panels": self.panels,
                "suites": self.study.suites,
                "contrasts": [contrast.model_dump() for contrast in self.study.contrasts],
                "statistics": self.study.statistics.model_dump(),
                "steps": training.steps,
                "tail_start": training.tail_start,
                "verify_slow_panel": self.study.verify_slow_panel,
                "token_reference": self.study.token_reference,
            },
            sort_keys=True,
        )

    def _evaluation(self) -> Evaluation:
        budgets = ("max_tokens", "verify_max_tokens", "slow_max_tokens")
        evaluation, factor = self.scale.evaluation, self.scale.length_factor
        return evaluation.model_copy(
            update={name: max(1, round(getattr(evaluation, name) * factor)) for name in budgets}
        )

    def _load_scale(self, name: str) -> Scale:
        path = self._existing("config/scales", name, "scale")
        values = read_yaml(path)
        return check(Scale, {"name": name, "about": first_comment(path), **values}, self._relative(path))

    def _load_arm(self, name: str) -> Arm:
        path = self._existing(f"config/arms/{STUDY}", name, f"{STUDY}.arms")
        defaults, own = read_yaml(path.with_name("_defaults.yaml")), read_yaml(path)
        merged = {"name": name, "about": first_comment(path), **defaults, **own}
        return check(Arm, merged, f"{self._relative(path)} (over _defaults.yaml)")

    def _existing(self, folder: str, name: str, key: str) -> Path:
        path = self.root / folder / f"{name}.yaml"
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in path.parent.glob("[!_]*.yaml")))
            raise UserError(f"{self.file}: {key}: no file {folder}/{name}.yaml (known: {known})")
        return path

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    def _arm_file(self, name: str) -> str:
        return f"config/arms/{STUDY}/{name}.yaml"

    def _check_references(self) -> None:
        """Names that point elsewhere must point at something."""
        known_panels = set(self.scale.questions.panels)
        if "all6" not in self.study.suites:
            raise UserError(f"{self.file}: {STUDY}.suites.all6: missing; it lists the panels that claims rest on")
        single = {key: [getattr(self.study, key)] for key in ("development_panel", "verify_slow_panel")}
        for suite, panels in {**self.study.suites, **single}.items():
            for panel in panels:
                if panel not in known_panels:
                    where = f"{STUDY}.{suite}" if suite in single else f"{STUDY}.suites.{suite}"
                    raise UserError(f"{self.file}: {where}: scale {self.scale.name!r} has no panel {panel!r}")
        for suite in self.study.statistics.decontaminated_suites:
            if suite not in self.study.suites:
                raise UserError(f"{self.file}: {STUDY}.statistics.decontaminated_suites: no suite {suite!r}")
        for i, contrast in enumerate(self.study.contrasts):
            for side in (contrast.a, contrast.b):
                if side not in self.arms:
                    raise UserError(f"{self.file}: {STUDY}.contrasts.{i}: arm {side!r} is not in {STUDY}.arms")
        if self.study.token_reference not in self.arms:
            raise UserError(f"{self.file}: {STUDY}.token_reference: no arm {self.study.token_reference!r}")
        if self.arms[self.study.parent].starts_from != "base":
            raise UserError(f"{self._arm_file(self.study.parent)}: starts_from: the parent must start from base")
        self._check_doses()
        for name in self.study.arms:
            if name != self.study.parent and self.arms[name].starts_from != "parent":
                raise UserError(f"{self._arm_file(name)}: starts_from: only {self.study.parent} may start from base")
            strangers = set(self.seeds(name)) - set(self.study.seeds)
            if strangers:
                raise UserError(f"{self._arm_file(name)}: seeds: {min(strangers)} is not in {STUDY}.seeds")

    def _check_doses(self) -> None:
        """Arms that declare a common dose must have the same cap of generated tokens per step."""
        first: dict[str, str] = {}
        for name, arm in self.arms.items():
            if arm.dose_family is None:
                continue
            other = first.setdefault(arm.dose_family, name)
            if arm.cap != self.arms[other].cap:
                raise UserError(
                    f"{self._arm_file(name)}: dose_family: cap of {arm.cap} tokens per step, but {other} of the same "
                    f"family {arm.dose_family!r} has {self.arms[other].cap}"
                )


def check(model: type[Model], value: Any, file: str, prefix: str = "") -> Model:
    """Validate `value`; the first problem becomes one line that names the file and the key (after `prefix`)."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise UserError(f"{file}: {prefix}{first_problem(error)}") from None


def first_comment(path: Path) -> str:
    """The leading comment lines of a file: why it exists."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").strip())
    return " ".join(lines)


def plain(model: BaseModel) -> str:
    """JSON with recursively sorted keys: the only form in which settings may be Snakemake params."""
    return json.dumps(model.model_dump(mode="json"), sort_keys=True)
