"""An arm: one way of training, as a row of orthogonal switches; combinations that make no sense are refused."""

from typing import Annotated, Literal, TypeVar

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from dosematch.strict import Strict


class Limits(Strict):
    """How long one completion may and must be (tokens)."""

    max_tokens: PositiveInt
    min_tokens: NonNegativeInt = 0

    @model_validator(mode="after")
    def _minimum_fits(self) -> "Limits":
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}")
        return self


class RolloutGroup(Limits):
    """`n` rollouts of one question under the same limits."""

    n: PositiveInt


class Fork(Limits):
    """Continuations from inside failed rollouts (thinker-spec 7); all but `k` are lengths in tokens.

    The first window is `[first_start, min(L - margin, first_end)]`, the second `[max(second_floor, min(second_start,
    L // 2)), min(L - margin, second_end)]`; rollouts shorter than `min_length` are not forked; prefix and continuation
    together may have `max_sequence` tokens.
    """

    k: PositiveInt
    min_length: PositiveInt
    margin: PositiveInt
    first_start: PositiveInt
    first_end: PositiveInt
    second_floor: PositiveInt
    second_start: PositiveInt
    second_end: PositiveInt
    max_sequence: PositiveInt


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
    episode: Literal["single_turn", "thinker", "forking"]
    seeds: list[int] | None
    run: PositiveInt
    dose_family: str | None
    reward: Literal["answer", "random"]
    fast: Annotated[list[RolloutGroup], Field(min_length=1)]
    verify: Limits | None
    slow: Limits | None
    summary: Limits | None
    fork: Fork | None
    pg_fast: bool
    pg_stages: bool
    summary_sft: bool
    fork_sft: bool
    gate: Literal["none", "brier"]
    alpha: Annotated[float, Field(ge=0, le=1)]
    teacher_top_k: NonNegativeInt
    lambda_distill: PositiveFloat
    anchor: bool
    anchor_weight: PositiveFloat
    anchor_capacity: PositiveInt
    anchor_on_failure: bool
    censor: bool
    prefix_mask: bool
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
        fast = sum(group.n * group.max_tokens for group in self.fast)
        stages = [stage.max_tokens for stage in (self.verify, self.slow, self.summary) if stage]
        forks = self.fork.k * self.fork.max_tokens if self.fork else 0
        return fast + sum(group.n for group in self.fast) * sum(stages) + forks

    @model_validator(mode="after")
    def _switches_make_sense(self) -> "Arm":
        """Refuse combinations that name a mechanism without what it needs."""
        for problem, broken in self._contradictions().items():
            if broken:
                raise ValueError(problem)
        return self

    def _contradictions(self) -> dict[str, bool]:
        stages = [self.verify, self.slow, self.summary]
        thinker, forks = self.episode == "thinker", self.episode == "forking"
        distills = self.summary_sft or self.fork_sft
        return {
            "verify, slow, summary: the thinker episode needs all three": thinker and None in stages,
            "verify, slow, summary: only the thinker episode has stages": not thinker and any(stages),
            "fork: the forking episode needs it": forks and self.fork is None,
            "fork: only the forking episode forks": not forks and self.fork is not None,
            "prefix_mask: there is no prefix without forks": self.prefix_mask and not forks,
            "fork_sft: there is nothing to train on without forks": self.fork_sft and not forks,
            "summary_sft: there are no summaries outside the thinker episode": self.summary_sft and not thinker,
            "pg_stages: there are no stages outside the thinker episode": self.pg_stages and not thinker,
            "pg_stages: an isolated arm may not train its stages; set pg_fast too": self.pg_stages and not self.pg_fast,
            "alpha: below 1 there is a teacher, which only summary_sft has": self.alpha < 1 and not self.summary_sft,
            "teacher_top_k: a teacher (alpha below 1) needs at least 1": self.alpha < 1 and self.teacher_top_k < 1,
            "gate: there is no supervised target to gate": self.gate != "none" and not (distills or self.anchor),
            "anchor_on_failure: needs anchor": self.anchor_on_failure and not self.anchor,
            "pg_fast: nothing would be trained": not (self.pg_fast or distills),
        }

    def scaled(self, factor: float) -> "Arm":
        """The same arm with every length multiplied by `factor`, the constant divisor included.

        The divisor is a length too: scaled with the others it keeps the size of a policy-gradient term, and with it
        the share of clipped steps and the balance with token means, what they are at paper scale.
        """
        update: dict[str, object] = {"token_divisor": self.token_divisor * factor}
        update["fast"] = [scaled_lengths(group, factor) for group in self.fast]
        for stage in ("verify", "slow", "summary", "fork"):
            if limits := getattr(self, stage):
                update[stage] = scaled_lengths(limits, factor)
        return self.model_copy(update=update)


COUNTS = {"n", "k"}  # fields of limits that are no lengths
LimitsModel = TypeVar("LimitsModel", bound=Limits)


def scaled_lengths(limits: LimitsModel, factor: float) -> LimitsModel:
    """Every length of `limits` multiplied by `factor` and rounded; what was positive stays so."""
    lengths = {name: value for name, value in limits.model_dump().items() if name not in COUNTS}
    return limits.model_copy(update={name: max(1, round(v * factor)) if v else 0 for name, v in lengths.items()})
