"""GRPO by TRL on the CPU: the same loss from the same rollouts, and its training loop with ours timed in between."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from dosematch.backward import backward
from dosematch.benchmarks.reference import flat_gradient
from dosematch.benchmarks.timing import seconds
from dosematch.benchmarks.workload import alternate_rewards, group_segments
from dosematch.rollout.engine import Completion
from dosematch.settings import TrainSettings


def rewards(completions: Sequence[str], **_: Any) -> list[float]:
    """`alternate_rewards` as TRL asks for them."""
    return alternate_rewards(len(completions))


def grpo_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    settings: TrainSettings,
    changes: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> GRPOTrainer:
    """TRL's trainer with the group, lengths, loss and optimiser constants of `settings`, one step per text.

    `changes` go to its configuration, `more` to its constructor. Nothing that would slow TRL down: no
    recomputation of activations, no KL reference, no logging, no saving.
    """
    [group], training = settings.arm.fast, settings.training
    args = GRPOConfig(
        output_dir=tempfile.gettempdir(),
        max_steps=len(texts),
        per_device_train_batch_size=group.n,
        num_generations=group.n,
        max_completion_length=group.max_tokens,
        generation_kwargs={"min_new_tokens": group.min_tokens},
        beta=0.0,
        learning_rate=training.base_lr,
        lr_scheduler_type="constant",
        weight_decay=settings.arm.weight_decay,
        adam_beta1=training.adam_betas[0],
        adam_beta2=training.adam_betas[1],
        use_cpu=True,
        bf16=False,
        activation_checkpointing=False,
        shuffle_dataset=False,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **({"loss_type": "dr_grpo", "max_grad_norm": settings.arm.clip_norm} | dict(changes)),
    )
    data = Dataset.from_list([{"prompt": text} for text in texts])
    trainer = GRPOTrainer(
        model=model, reward_funcs=rewards, args=args, train_dataset=data, processing_class=tokenizer, **more
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


class _Gradient(TrainerCallback):
    """Keeps the gradient that the optimiser is about to use."""

    def on_pre_optimizer_step(self, *_: Any, **given: Any) -> None:
        """Called after the backward pass."""
        self.value = flat_gradient(given["model"])


def agreement(
    load: Callable[[], PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    prompt: tuple[int, ...],
    rollouts: Sequence[Completion],
    settings: TrainSettings,
    loss_type: str,
) -> dict[str, float]:
    """One step of TRL's own loop on given rollouts against our backward pass: relative gaps of loss and gradient.

    TRL computes advantages, loss and gradient itself. `dr_grpo` divides by a constant as ours does, but reports
    `-sum of weight * ratio` with ratios of 1, so its value is compared with our weights times lengths; `cispo` reports
    `-sum of weight * log-probability`, our loss, over the number of tokens, which our divisor is then set to.
    """
    n, tokens = len(rollouts), sum(len(rollout.token_ids) for rollout in rollouts)

    def replay(texts: list[str], _: GRPOTrainer) -> dict[str, Any]:
        """The given rollouts, instead of new ones."""
        ids = [list(rollout.token_ids) for rollout in rollouts]
        return {"prompt_ids": [list(prompt)] * len(texts), "completion_ids": ids, "logprobs": None}

    kept, changes = _Gradient(), {"loss_type": loss_type, "max_grad_norm": 0.0}  # 0: no clipping
    if loss_type == "cispo":
        changes["epsilon_high"] = 5.0  # the largest ratio: the default of 0.2 would scale every token down
    trainer = grpo_trainer(load(), tokenizer, ["a question"], settings, changes, rollout_func=replay, callbacks=[kept])
    their_loss = trainer.train().training_loss
    divisor = tokens / n if loss_type == "cispo" else settings.arm.token_divisor
    segments, model = group_segments(prompt, rollouts, divisor), load()
    result = backward(model, segments, accumulation=1, micro_batch_tokens=settings.training.micro_batch_tokens)
    our_loss = result.loss["pg"]
    if loss_type == "dr_grpo":
        our_loss = -sum(segment.weight * len(segment.target_ids) for segment in segments)
    ours = flat_gradient(model)
    return {
        "tokens": tokens,
        "loss_ours": our_loss,
        "loss_trl": their_loss,
        "loss_relative_gap": abs(our_loss - their_loss) / abs(their_loss),
        "gradient_relative_gap": float((ours - kept.value).norm() / kept.value.norm()),
    }


class Alternating(TrainerCallback):
    """Times every step of TRL's loop and one call of `ours` before or after it, in turn; `times` are (ours, TRL)."""

    def __init__(self, ours: Callable[[], object]) -> None:
        self.ours = ours
        self.times: list[tuple[float, float]] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Start TRL's clock, after ours in every other pair."""
        self.before = seconds(self.ours) if len(self.times) % 2 else None
        self.start = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Stop TRL's clock, which ran over generation, reward, loss, gradient and update."""
        theirs = time.perf_counter() - self.start
        self.times.append((seconds(self.ours) if self.before is None else self.before, theirs))
