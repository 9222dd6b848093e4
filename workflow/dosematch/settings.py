"""The settings models: an arm, a scale, a study; every key is typed, unknown keys are refused."""

from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from dosematch.prompts import Prompts
from dosematch.questions.settings import QuestionSettings

Item = TypeVar("Item")


def _distinct(values: list[Item]) -> list[Item]:
    """Refuse a list that names something twice."""
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value!r} is listed twice")
    return values


Distinct = Annotated[list[Item], Field(min_length=1), AfterValidator(_distinct)]


class Strict(BaseModel):
    """Frozen, no unknown keys, no silent conversion (the YAML string `1e-6` is not a number; write 1.0e-6)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class RolloutGroup(Strict):
    """`n` rollouts of one question under the same limits (tokens)."""

    n: PositiveInt
    max_tokens: PositiveInt
    min_tokens: NonNegativeInt = 0

    @model_validator(mode="after")
    def _minimum_fits(self) -> "RolloutGroup":
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}")
        return self


class StepSize(Strict):
    """Multipliers of the base learning rate by what the accumulated gradient holds (thinker-spec 9)."""

    pg_only: PositiveFloat
    mixed: PositiveFloat
    distill_only: PositiveFloat


class Arm(Strict):
    """One way of training (thinker-spec 10). Lengths are in tokens at paper scale; a scale multiplies them.

    `starts_from: base` makes the parent of the other arms, trained on the parent slice; `parent` continues it on the
    seed's stream. `run` is the index of a repeated realisation: it enters the sampling counter and nothing else.
    """

    name: str
    about: str
    label: str
    starts_from: Literal["base", "parent"]
    episode: Literal["single_turn"]
    seeds: list[int] | None
    run: PositiveInt
    fast: Annotated[list[RolloutGroup], Field(min_length=1)]
    censor: bool
    accumulation: PositiveInt
    lr: StepSize
    weight_decay: Annotated[float, Field(ge=0)]
    zero_grad_skip: bool
    clip_norm: PositiveFloat
    temperature: PositiveFloat
    token_divisor: PositiveFloat
    advantage_epsilon: PositiveFloat
    sigma_floor: PositiveFloat

    @property
    def cap(self) -> int:
        """Nominal dose: the most tokens that one step may generate."""
        return sum(group.n * group.max_tokens for group in self.fast)

    def scaled(self, factor: float) -> "Arm":
        """The same arm with every length multiplied by `factor`, the constant divisor included.

        The divisor is a length too: scaled with the others it keeps the size of a policy-gradient term, and with it
        the share of clipped steps and the balance with token means, what they are at paper scale.
        """

        def length(tokens: int) -> int:
            return max(1, round(tokens * factor)) if tokens else 0

        groups = [
            group.model_copy(update={"max_tokens": length(group.max_tokens), "min_tokens": length(group.min_tokens)})
            for group in self.fast
        ]
        return self.model_copy(update={"fast": groups, "token_divisor": self.token_divisor * factor})


class Runtime(Strict):
    """Where and how tensors live; `threads` is fixed per job, whatever `--cores` says: results depend on it."""

    engine: Literal["torch"]
    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "bfloat16"]
    threads: PositiveInt


class Training(Strict):
    """The loop's constants at one scale (thinker-spec 9, 11); the tail average covers `tail_start..steps`."""

    steps: PositiveInt
    tail_start: PositiveInt
    base_lr: PositiveFloat
    adam_betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
    adam_eps: PositiveFloat
    micro_batch_tokens: PositiveInt
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
    """Greedy evaluation of whole panels (thinker-spec 12); `max_tokens` at paper scale."""

    batch_size: PositiveInt
    max_tokens: PositiveInt
    temperature: Annotated[float, Field(ge=0, le=0)]
    sort: Literal["prompt_length_descending", "none"]


class Scale(Strict):
    """`config/scales/*.yaml`: one size of the whole study."""

    name: str
    about: str
    model: str
    prompts: str
    length_factor: PositiveFloat
    runtime: Runtime
    training: Training
    parent_training: ParentTraining
    evaluation: Evaluation
    frozen_panels: str | None
    questions: QuestionSettings


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
    runtime: Runtime
    evaluation: Evaluation
    prompts: Prompts
