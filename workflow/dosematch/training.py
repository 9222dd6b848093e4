"""The training loop (thinker-spec 11): rollouts -> segments -> gradient -> update at boundaries -> tail average."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dosematch.arm import StepSize
from dosematch.backward import BackwardResult, backward, merged
from dosematch.episodes.anchors import AnchorBuffer
from dosematch.episodes.episode import Context, Episode, Reward
from dosematch.episodes.forking import forking
from dosematch.episodes.single_turn import single_turn
from dosematch.episodes.thinker import thinker
from dosematch.errors import UserError
from dosematch.evaluation import accuracy_row
from dosematch.grading import Grader
from dosematch.optimizer import MasterAdamW, StepGradient, Update
from dosematch.parallel import by_first, check_agreement, dealt, first_alone, gathered, rank
from dosematch.policy import TailAverage, checkpoint_activations
from dosematch.questions import Question
from dosematch.resume import ResumeFolder, part_digests, tensor_digest
from dosematch.rewards import answer_reward, random_reward
from dosematch.runtime import start_engine
from dosematch.settings import TrainSettings
from dosematch.streams import StreamItem

log = logging.getLogger(__name__)
EPISODES: dict[str, Callable[[StreamItem, Context], Episode]] = {
    "single_turn": single_turn,
    "thinker": thinker,
    "forking": forking,
}
POLICY_GRADIENT = {"pg", "verify", "slow", "summary_pg"}  # the loss terms that are policy gradients
PASS_RATE_DECAY = 0.9  # of the running Fast pass rate that balances verification rewards (thinker-spec 5.2)


class Trainer:
    """One arm and seed: `train` runs or resumes all steps and leaves the tail average in `model`."""

    def __init__(
        self,
        settings: TrainSettings,
        seed: int,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        grader: Grader,
        development: Sequence[Question],
    ) -> None:
        self.settings, self.seed, self.model, self.development = settings, seed, model, development
        arm, training = settings.arm, settings.training
        if training.gradient_checkpointing:
            checkpoint_activations(model)
        self.engine = start_engine(settings.runtime, model, tokenizer, settings.evaluation.batch_size)
        self.grader = grader
        self.context = Context(
            engine=self.engine,
            model=model,
            tokenizer=tokenizer,
            prompts=settings.prompts,
            reward=by_first(self._reward()),  # a time limit could be met in one process and missed in another
            arm=arm,
            study=settings.study,
            seed=seed,
            anchors=AnchorBuffer(arm.anchor_capacity),
            logit_rows=training.logit_rows,
        )
        self.optimizer = MasterAdamW(
            model,
            betas=(training.adam_betas[0], training.adam_betas[1]),
            eps=training.adam_eps,
            weight_decay=arm.weight_decay,
            clip_norm=arm.clip_norm,
            skip_zero_grad=arm.zero_grad_skip,
        )
        self.tail = TailAverage(training.tail_start, training.steps)
        self.kinds: set[str] = set()  # loss terms in the gradient accumulated so far
        self.rows: list[dict[str, Any]] = []
        self.curve: list[dict[str, Any]] = []
        self.n_updates = 0

    def _reward(self) -> Reward:
        settings = self.settings
        if settings.arm.reward == "answer":
            return answer_reward(self.grader)
        return random_reward(settings.study, self.seed, settings.arm.run)

    def train(self, stream: Sequence[StreamItem], resume: ResumeFolder) -> None:
        """Run every step of the stream that a resume state does not already hold."""
        training = self.settings.training
        if len(stream) != training.steps:
            raise UserError(f"stream: has {len(stream)} questions for {training.steps} training steps")
        self._restore(resume)
        for item in stream[len(self.rows) :]:
            if item.step == 1:
                self._measure(step=0)
            self.advance(item)
            if item.step % training.curve_every == 0 and item.step < training.steps:
                self._measure(item.step)
            if item.step % training.checkpoint_every == 0 and item.step < training.steps:
                self._save(resume, item.step)
        self._set_weights(self.tail.mean(like=self._weights()))
        self._measure(training.steps)

    def advance(self, item: StreamItem) -> dict[str, Any]:
        """Train one step and return its row."""
        self.rows.append(self._step(item))
        self.tail.add(item.step, self._weights())
        return self.rows[-1]

    def _step(self, item: StreamItem) -> dict[str, Any]:
        """One question: episode, gradient, and at a boundary the update."""
        arm, training = self.settings.arm, self.settings.training
        episode = EPISODES[arm.episode](item, self.context)
        generated = sum(episode.generated.values())
        if generated > arm.cap:
            raise AssertionError(f"step {item.step}: {generated} generated tokens exceed the cap of {arm.cap}")
        share = backward(
            self.model,
            dealt([s for s in episode.segments if s.weight != 0.0], key=lambda s: (s.kind, -len(s))),
            accumulation=arm.accumulation,
            micro_batch_tokens=training.micro_batch_tokens,
            logit_rows=training.logit_rows,
            after_batch=self.optimizer.absorb,
        )
        result = merged(gathered(share))
        self.optimizer.add_up(result.loss)
        self._check_engine(item.step, result)
        gradient = self.optimizer.end_step()
        self.kinds |= result.loss.keys()
        boundary = item.step % arm.accumulation == 0
        update = self._update() if boundary else Update(0.0, 1.0, 0.0, False)
        self._remember(episode)
        log.info("step %d fast_acc %.2f grad_norm %.3f", item.step, episode.record["fast_acc"], update.grad_norm)
        return (
            self._identity(item)
            | episode.record
            | token_counters(episode, result)
            | loss_fields(result)
            | anatomy(gradient, arm.accumulation)
            | {
                "is_boundary": boundary,
                "skipped_zero_grad": update.skipped,
                "grad_norm": update.grad_norm,
                "clip_coef": update.clip_coef,
                "lr_used": update.lr,
                "wd": arm.weight_decay,
            }
        )

    def _remember(self, episode: Episode) -> None:
        """What later steps may know of this one: its pass rate and its right rollouts (after the update)."""
        if self.settings.arm.anchor:
            self.context.anchors.add(episode.anchors)
        rate = PASS_RATE_DECAY * self.context.pass_rate + (1 - PASS_RATE_DECAY) * episode.record["fast_acc"]
        self.context = replace(self.context, pass_rate=rate)

    def _identity(self, item: StreamItem) -> dict[str, Any]:
        arm = self.settings.arm
        return {
            "step": item.step,
            "seed": self.seed,
            "arm": arm.name,
            "run": arm.run,
            "sha1_12": item.sha1_12,
            "question_source": item.source,
        }

    def _update(self) -> Update:
        update = self.optimizer.update(self.settings.training.base_lr * multiplier(self.settings.arm.lr, self.kinds))
        self.kinds.clear()
        if not update.skipped:
            self.n_updates += 1
            self.engine.load_weights(self.model.state_dict())
        return update

    def _check_engine(self, step: int, result: BackwardResult) -> None:
        """Stop when engine and trainer disagree about the sampled tokens: stale weights or another distribution."""
        bound = self.settings.training.max_logp_difference
        if any(not gap <= bound for gap in result.logp_gaps):  # a NaN is above every bound
            raise UserError(
                f"step {step}: engine and trainer log-probabilities differ by {max(result.logp_gaps):.3g}, above "
                f"training.max_logp_difference {bound:g}"
            )

    def _measure(self, step: int) -> None:
        """Accuracy on the development panel, for the curve; never for claims."""
        self.curve.append({"step": step} | accuracy_row(self.context, self.grader, self.settings, self.development))
        log.info("step %d development accuracy %.3f", step, self.curve[-1]["accuracy"])

    def _weights(self) -> dict[str, torch.Tensor]:
        return dict(self.model.named_parameters())

    def _set_weights(self, weights: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(weights[name])
        self.engine.load_weights(self.model.state_dict())

    def _save(self, resume: ResumeFolder, step: int) -> None:
        check_agreement("weights", tensor_digest(self._weights()))
        if rank() != 0:
            return
        resume.save(step, *self._state())

    def _state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """All that the steps to come depend on: parameters, optimiser, average, replay buffer, counters, records."""
        tensors = self.optimizer.state() | {f"tail.{name}": total for name, total in self.tail.total.items()}
        arm = self.settings.arm
        sampler = {"study": self.settings.study, "seed": self.seed, "run": arm.run, "step": len(self.rows)}
        values = {"rows": self.rows, "curve": self.curve, "kinds": sorted(self.kinds), "sampler": sampler}
        values |= {"tail_count": self.tail.count, "n_updates": self.n_updates}
        values |= {"pass_rate": self.context.pass_rate, "anchors": self.context.anchors.state()}
        return tensors, values

    def certificate(self) -> dict[str, str]:
        """SHA-256 of every part of the state, and of the weights; equal however often the run was interrupted."""
        return part_digests(*self._state()) | {"weights": tensor_digest(self._weights())}

    def _restore(self, resume: ResumeFolder) -> None:
        state = first_alone(resume.load)
        if state is None:
            return
        tensors, values = state
        self.optimizer.load_state(tensors)
        self.tail.total = {k.removeprefix("tail."): v for k, v in tensors.items() if k.startswith("tail.")}
        self.tail.count, self.n_updates = values["tail_count"], values["n_updates"]
        self.rows, self.curve, self.kinds = values["rows"], values["curve"], set(values["kinds"])
        self.context.anchors.load_state(values["anchors"])
        self.context = replace(self.context, pass_rate=values["pass_rate"])
        self.engine.load_weights(self.model.state_dict())
        log.info("resumed after step %d from %s", len(self.rows), Path(resume.folder))


def multiplier(lr: StepSize, kinds: set[str]) -> float:
    """Step multiplier by the content of the accumulated gradient (thinker-spec 9)."""
    policy, distilled = bool(kinds & POLICY_GRADIENT), bool(kinds - POLICY_GRADIENT)
    return lr.mixed if policy and distilled else lr.distill_only if distilled else lr.pg_only


def loss_fields(result: BackwardResult) -> dict[str, float]:
    """The loss of every term under its published name (thinker-spec 15); 0.0 where it did not act."""
    kinds = ("pg", "verify", "slow", "summary_pg", "distill", "anchor")
    return {f"loss_{kind}": result.loss.get(kind, 0.0) for kind in kinds}


def anatomy(gradient: StepGradient, accumulation: int) -> dict[str, Any]:
    """This step's own gradient, undivided by the accumulation: norm, norm per loss term, cosines between terms."""
    return {
        "grad_norm_micro": gradient.norm * accumulation,
        "grad_norm_by_term": {kind: norm * accumulation for kind, norm in gradient.norms.items()},
        "grad_cosine": gradient.cosines,
    }


def token_counters(episode: Episode, result: BackwardResult) -> dict[str, Any]:
    """Token accounting of one step (thinker-spec 14), and the engine/trainer log-probability gaps."""

    def pair(*kinds: str) -> dict[str, int]:
        return {
            "fed": sum(result.tokens_fed.get(kind, 0) for kind in kinds),
            "loss": sum(result.tokens_loss.get(kind, 0) for kind in kinds),
        }

    gaps = result.logp_gaps  # none when no sampled token was trained on: null, since 0.0 would read as agreement
    return {
        "gen_tokens": episode.generated | {"total": sum(episode.generated.values())},
        "entropy_fwd_tokens": episode.entropy_tokens,
        "teacher_fwd_tokens": result.teacher_tokens,
        "pg_bwd_tokens": pair(*POLICY_GRADIENT),
        "distill_bwd_tokens": pair("distill"),
        "anchor_bwd_tokens": pair("anchor"),
        "sampling/logp_difference/mean": sum(gaps) / len(gaps) if gaps else None,
        "sampling/logp_difference/max": max(gaps, default=None),
    }
