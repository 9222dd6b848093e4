"""The mid-training loop: windows of frozen objectives, each with at most one actor step (t5-spec 1.4, 4.9).

One loop trains every arm; it reads switches and asks no arm for its name.
"""

import copy
import logging
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from dosematch.errors import UserError
from dosematch.midtrain.actor import Actor, Credit
from dosematch.midtrain.cost import predicted_cost
from dosematch.midtrain.estimators import group_loo, group_std
from dosematch.midtrain.judge import Judge
from dosematch.midtrain.material import Material
from dosematch.midtrain.phases import Phases
from dosematch.midtrain.pred_gate import PredictionGate, fit
from dosematch.midtrain.rollouts import Batch, Collector, Scored
from dosematch.midtrain.rows import Counts, gain_fields, mismatch_fields
from dosematch.midtrain.scorer import Scorer
from dosematch.midtrain.settings import T5TrainSettings
from dosematch.midtrain.thoughts import Item, rounded
from dosematch.resume import ResumeFolder
from dosematch.rollout.torch_engine import TorchEngine

log = logging.getLogger(__name__)
NEVER_QUALIFIED = "never_qualified"


class MidTrainer:
    """One arm and seed: `train` runs or resumes all windows and leaves the trained weights in `model`."""

    def __init__(
        self, settings: T5TrainSettings, seed: int, model: PreTrainedModel, close_id: int, material: Material
    ) -> None:
        """`model` is the base checkpoint; `close_id` the token that ends a thought."""
        self.settings, self.seed, self.model, self.material = settings, seed, model, material
        arm, training = settings.arm, settings.training
        self.phases, self.counts = Phases(), Counts()
        self.rows: list[dict[str, Any]] = []
        self.timing: list[dict[str, Any]] = []
        self.step, self.end = 0, "finished"
        self.actor = Actor(model, settings, seed, close_id)
        self.engine = TorchEngine(model, close_id, training.generate_batch)
        self.scorer = Scorer(copy.deepcopy(model), close_id, training.batch_tokens)
        ema = arm.reward.baseline == "ema"
        self.baseline = Scorer(copy.deepcopy(model), close_id, training.batch_tokens) if ema else self.scorer
        self.gate = PredictionGate(model.config.hidden_size, seed).to(model.device) if arm.pred_gate.enabled else None
        self.gate_optimizer = torch.optim.Adam(self.gate.parameters(), training.lr_pred_gate) if self.gate else None
        self.collector = Collector(settings, seed, self.engine, self.scorer, self.baseline, self.gate, self.phases)
        self.judge = Judge(settings, seed, model, self.collector, material) if arm.critics.n else None

    def train(self, resume: ResumeFolder) -> None:
        """Run every window that a resume state does not already hold, until all actor steps are done."""
        self._restore(resume)
        steps = self.settings.training.steps if self.settings.arm.trained else 0
        while self.step < steps and self.end == "finished":
            self.advance()
            if len(self.rows) % self.settings.training.checkpoint_every == 0 and self.step < steps:
                self._save(resume)

    def advance(self) -> dict[str, Any]:
        """Run one window and return its row."""
        self.phases.restart()
        self.counts = Counts()
        row = self._window()
        self.rows.append(row)
        predicted = predicted_cost(self.settings, row)
        self.timing.append({"window": row["window"], "status": row["status"], "predicted_forwards": predicted})
        self.timing[-1] |= self.phases.row()
        log.info("window %d step %s %s", row["window"], row["actor_step"], row["status"])
        return row

    def _window(self) -> dict[str, Any]:
        window = len(self.rows)
        row: dict[str, Any] = {"arm": self.settings.arm.name, "seed": self.seed, "window": window}
        if self.settings.arm.thought:
            self._freeze_objective(window)
        status, fields = "accepted", {}
        if self.judge:
            status, fields = self.judge.prepare(window, self.step, self.counts)
        if status in ("accepted", "fallback"):
            self.step += 1
            fields |= self._actor_step(window)
            row["actor_step"] = self.step
        else:
            row["actor_step"] = None
        if self.judge:
            fields |= self.judge.finish(window)
            if self.judge.gave_up:
                self.end = NEVER_QUALIFIED
        return row | {"status": status} | self.counts.row() | fields

    def _freeze_objective(self, window: int) -> None:
        """New snapshots of the sampler and the scorer; in the first window the reward scale, which stays."""
        self.engine.load_weights(rounded(self.model.state_dict(), self.settings.arm.rollout.weights))
        self.scorer.refresh(self.model)
        if window == 0:
            items = self.material.select("pilot", self.settings.sizes.n_scale, self.seed, step=0, epoch=0)
            self.collector.calibrate(items)

    def _actor_step(self, window: int) -> dict[str, Any]:
        """Sample, give credit, update, then what depends on the spent trajectories."""
        items = self.material.select("actor", self.settings.sizes.n_act, self.seed, step=self.step, epoch=self.step)
        if not self.settings.arm.thought:
            return self.actor.update(self.step, items, self.material.sequences, None, self.phases)
        scored, credit, fields = self._credit(items, window)
        fields |= self.actor.update(self.step, items, self.material.sequences, credit, self.phases)
        if self.gate and self.gate_optimizer:
            with self.phases.at("gate"):
                fields["loss_pred_gate"] = fit(
                    self.gate,
                    self.gate_optimizer,
                    (scored.before, scored.after),
                    (scored.without, scored.inserted),
                    self.settings.arm.pred_gate.space,
                    self.settings.training.pred_gate_steps,
                )
        if self.baseline is not self.scorer:
            self.baseline.refresh(self.model, keep=self.settings.arm.reward.ema_tau)
        return fields

    def _credit(self, items: list[Item], window: int) -> tuple[Scored, Credit, dict[str, Any]]:
        """Thoughts of the actor's items, their old log-probabilities and advantages, and what the row says of them."""
        arm, task = self.settings.arm, self.settings.task
        scored = self.collector.collect(items, role="actor", step=self.step, window=window, group=arm.group)
        self.counts.add("actor", scored.trajectories, task.horizon)
        batch = Batch.of(scored.trajectories, task.l_max)
        with self.phases.at("actor"):
            logp_old = self.actor.logps(batch)
        fields = gain_fields(scored.trajectories, task.horizon)
        fields |= mismatch_fields(batch.logp_q, logp_old, batch.mask)
        self._check_sampler(fields["sampling/logp_difference/max"])
        if self.judge:
            advantage = self.judge.advantage(scored, batch, window)
        else:
            advantage = self._group_advantage(batch)
        fields["n_tok_actor_eligible"] = int(batch.mask.sum())
        return scored, Credit(batch, advantage, logp_old), fields

    def _group_advantage(self, batch: Batch) -> torch.Tensor:
        """Every action of a thought gets the thought's advantage within its group, [N, L]."""
        arm = self.settings.arm
        rewards = batch.returns[:, 0].view(-1, arm.group)
        advantage = group_std(rewards) if arm.adv.kind == "group_std" else group_loo(rewards)
        return advantage.view(-1, 1) * batch.mask

    def _check_sampler(self, gap: float) -> None:
        """Unrounded weights must reproduce the sampler's log-probabilities: else weights or temperature are wrong."""
        bound = self.settings.training.max_logp_difference
        if self.settings.arm.rollout.weights == "fp32" and not gap <= bound:
            raise UserError(
                f"step {self.step}: sampler and trainer log-probabilities differ by {gap:.3g}, above "
                f"training.max_logp_difference {bound:g}"
            )

    def _save(self, resume: ResumeFolder) -> None:
        tensors = {f"actor.{name}": tensor for name, tensor in self.actor.optimizer.state().items()}
        values: dict[str, Any] = {"rows": self.rows, "timing": self.timing, "step": self.step, "end": self.end}
        values["sigma_r"] = self.collector.sigma_r
        if self.baseline is not self.scorer:
            tensors |= {f"ema.{name}": tensor for name, tensor in self.baseline.model.named_parameters()}
        if self.gate and self.gate_optimizer:
            tensors |= module_state("gate", self.gate, self.gate_optimizer)
        if self.judge:
            own_tensors, values["judge"] = self.judge.state()
            tensors |= own_tensors
        resume.save(len(self.rows), tensors, values)

    def _restore(self, resume: ResumeFolder) -> None:
        state = resume.load()
        if state is None:
            return
        tensors, values = state
        self.actor.optimizer.load_state(part(tensors, "actor"))
        self.rows, self.timing = values["rows"], values["timing"]
        self.step, self.end, self.collector.sigma_r = values["step"], values["end"], values["sigma_r"]
        if self.baseline is not self.scorer:
            load_parameters(self.baseline.model, part(tensors, "ema"))
        if self.gate and self.gate_optimizer:
            load_module_state(part(tensors, "gate"), self.gate, self.gate_optimizer)
        if self.judge:
            self.judge.load_state(tensors, values["judge"])
        log.info("resumed after window %d from %s", len(self.rows) - 1, Path(resume.folder))


def module_state(name: str, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Parameters and Adam moments of a small module, under names that `part` finds again."""
    tensors = {}
    for key, parameter in module.named_parameters():
        tensors[f"{name}.parameter.{key}"] = parameter
        for moment, value in optimizer.state[parameter].items():
            tensors[f"{name}.{moment}.{key}"] = value
    return tensors


def load_module_state(
    tensors: dict[str, torch.Tensor], module: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """The inverse of `module_state`, after `part`."""
    load_parameters(module, part(tensors, "parameter"))
    for key, parameter in module.named_parameters():
        moments = {name: tensors.get(f"{name}.{key}") for name in ("step", "exp_avg", "exp_avg_sq")}
        if moments["step"] is not None:
            optimizer.state[parameter] = {name: value.clone() for name, value in moments.items() if value is not None}


@torch.no_grad()
def load_parameters(module: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Copy tensors into the parameters of the same names."""
    for name, parameter in module.named_parameters():
        parameter.copy_(tensors[name])


def part(tensors: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """The tensors under `name.`, without it."""
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
