"""Settings of a mid-training: the switches of an arm, and the sizes and constants of a scale (t5-spec 2.2, 7.6)."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from dosematch.strict import Strict

Share = Annotated[float, Field(ge=0, le=1)]
OpenShare = Annotated[float, Field(ge=0, lt=1)]


class Reward(Strict):
    """What a thought earns: gain of the thought or of the mixture, over which baseline, at which tokens (1.2, 1.5)."""

    kind: Literal["thought", "mixed"]
    baseline: Literal["frozen_current", "ema"]
    ema_tau: OpenShare
    placement: Literal["terminal", "prefix_delta"]
    horizon: Literal["all", 1]


class Advantage(Strict):
    """How rewards become per-token credit; `alpha` and `lambda_min` shape the trace of GAE (1.6)."""

    kind: Literal["none", "group_std", "group_loo", "gae"]
    alpha: PositiveFloat
    lambda_min: OpenShare


class Critics(Strict):
    """How many critics, when the actor may listen to them, and what they see (3)."""

    n: Literal[0, 1, 2]
    inputs: Literal["visible", "privileged"]
    warmup: Literal["none", "fixed_steps", "r2"]
    fixed_steps: NonNegativeInt
    qualify: bool
    tau_r2: Annotated[float, Field(le=1)]
    min_spread: NonNegativeFloat  # of the predictions, in standard deviations of the returns
    m: PositiveInt
    check_every: PositiveInt
    n_fail: PositiveInt
    n_head_max: NonNegativeInt
    max_rejected: PositiveInt


class Mix(Strict):
    """How the estimates of the critics become one advantage (4.1)."""

    kind: Literal["single", "mean", "min", "learned"]
    gate_inputs: Literal["state", "state_action"]
    kappa: OpenShare


class PredGate(Strict):
    """The gate between the predictions with and without the thought (1.2)."""

    enabled: bool
    space: Literal["prob", "logprob"]


class Loss(Strict):
    """Actor loss: clipped policy gradient, next-token anchor and thought-conditioned likelihood (1.3, 2.2)."""

    clip_low: OpenShare
    clip_high: PositiveFloat
    epochs: PositiveInt
    minibatches: PositiveInt
    agg: Literal["const", "token_mean", "seq_mean"]
    c_ntp: NonNegativeFloat
    c_talk: NonNegativeFloat


class Rollout(Strict):
    """The rounding of the weights that thoughts are sampled with (1.7)."""

    weights: Literal["fp32", "bf16", "int8"]


class T5Arm(Strict):
    """One way of mid-training as a row of switches; combinations that make no sense are refused."""

    name: str
    about: str
    label: str
    trained: bool
    thought: bool
    group: PositiveInt
    reward: Reward
    adv: Advantage
    critics: Critics
    mix: Mix
    pred_gate: PredGate
    loss: Loss
    rollout: Rollout

    @model_validator(mode="after")
    def _switches_make_sense(self) -> "T5Arm":
        for problem, broken in self._contradictions().items():
            if broken:
                raise ValueError(problem)
        return self

    def _contradictions(self) -> dict[str, bool]:
        adv, critics, loss = self.adv.kind, self.critics, self.loss
        grouped, twins = adv.startswith("group"), critics.n == 2
        prefix = self.reward.placement == "prefix_delta"
        weights = loss.c_ntp + loss.c_talk
        return {
            f"adv.kind: {adv} needs a group of at least 2, group is {self.group}": grouped and self.group < 2,
            "adv.kind: gae needs a critic, critics.n is 0": adv == "gae" and critics.n == 0,
            f"critics.n: only adv.kind gae has critics, adv.kind is {adv}": adv != "gae" and critics.n > 0,
            f"mix.kind: {self.mix.kind} needs critics.n 2, it is {critics.n}": self.mix.kind != "single" and not twins,
            "mix.kind: single cannot use critics.n 2": self.mix.kind == "single" and twins,
            "critics.warmup: r2 needs critics.qualify": critics.warmup == "r2" and not critics.qualify,
            "critics.qualify: needs critics.warmup r2": critics.qualify and critics.warmup != "r2",
            "critics.fixed_steps: 0 is no warmup": critics.warmup == "fixed_steps" and critics.fixed_steps == 0,
            "critics.inputs: there are no critics": critics.inputs == "privileged" and critics.n == 0,
            f"reward.placement: {adv} uses whole returns, prefix_delta would only cost time": prefix and adv != "gae",
            "reward.kind: mixed needs pred_gate.enabled": self.reward.kind == "mixed" and not self.pred_gate.enabled,
            f"adv.kind: {adv} needs thought": adv != "none" and not self.thought,
            "adv.kind: none leaves the thoughts untrained": adv == "none" and self.thought,
            "pred_gate.enabled: needs thought": self.pred_gate.enabled and not self.thought,
            "loss.c_talk: needs thought": loss.c_talk > 0 and not self.thought,
            "loss.c_ntp: nothing would be trained": self.trained and not self.thought and weights == 0,
            "thought: an arm that is not trained samples none": self.thought and not self.trained,
        }


class Task(Strict):
    """Lengths in tokens: of the visible context, of a thought with its end, of the scored continuation (1.1, 1.2)."""

    context: PositiveInt
    l_max: PositiveInt
    horizon: PositiveInt
    checkpoints: PositiveInt  # prefix rewards of one thought (K of 1.5)
    temperature: PositiveFloat


class Sizes(Strict):
    """Trajectories of every role in one window (3.4, 7.6); no pilot ones: the fit trajectories serve."""

    n_act: PositiveInt
    n_fit_warm: PositiveInt  # while the actor waits
    n_fit: PositiveInt
    n_head: PositiveInt
    n_val: PositiveInt
    n_pilot: NonNegativeInt
    n_qual: PositiveInt
    n_scale: Annotated[int, Field(ge=2)]  # of the one batch that fixes the reward scale
    fit_max_age: NonNegativeInt  # windows that a spent trajectory may still be fitted on


class T5Training(Strict):
    """Constants of the optimisers and of the run."""

    steps: PositiveInt
    lr_actor: PositiveFloat
    lr_critic: PositiveFloat
    lr_critic_head: PositiveFloat
    lr_pred_gate: PositiveFloat
    adam_betas: Annotated[list[OpenShare], Field(min_length=2, max_length=2)]
    adam_eps: PositiveFloat
    clip_norm: PositiveFloat
    critic_epochs: PositiveInt
    critic_minibatch: PositiveInt  # trajectories
    pred_gate_steps: NonNegativeInt
    anchor_sequences: PositiveInt  # of one minibatch
    batch_tokens: PositiveInt  # padded tokens of one forward pass
    generate_batch: PositiveInt
    checkpoint_every: PositiveInt  # windows
    max_logp_difference: PositiveFloat  # of an unrounded rollout copy


class SaddleFit(Strict):
    """Schedule of the three optimisers of the learned mixture (4.3)."""

    rounds: PositiveInt
    mean_steps: PositiveInt
    lr_mean: PositiveFloat
    lr_gate: PositiveFloat
    lr_beta: PositiveFloat  # over the mass of the measure
    width: PositiveInt
    minibatch: PositiveInt  # trajectories
    rule: Literal["point", "ucb"]
    require_gain: bool


class T5Runtime(Strict):
    """Where tensors live; `threads` is fixed per job, since results depend on it."""

    device: Literal["cpu", "cuda"]
    threads: PositiveInt


class T5Scale(Strict):
    """`config/t5/*.yaml`: one size of the whole study; `arm` changes defaults of all arms."""

    name: str
    about: str
    base: str
    text: str
    positions: str
    runtime: T5Runtime
    task: Task
    sizes: Sizes
    training: T5Training
    saddle: SaddleFit
    arm: dict[str, dict[str, int | float | str | bool]] = {}


class T5TrainSettings(Strict):
    """All that decides a mid-training beside its input files."""

    arm: T5Arm
    task: Task
    sizes: Sizes
    training: T5Training
    saddle: SaddleFit
    runtime: T5Runtime

    @model_validator(mode="after")
    def _sizes_fit(self) -> "T5TrainSettings":
        if self.sizes.n_act % self.arm.loss.minibatches:
            raise ValueError(
                f"loss.minibatches: {self.arm.loss.minibatches} does not divide the {self.sizes.n_act} items of a step"
            )
        return self
