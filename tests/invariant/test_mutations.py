"""Planted mistakes: the suite's properties must notice every one of them.

A mutation replaces one piece of a module's source text; the mutated module is executed apart from the real one, and
the property that it names must fail on it and hold on the original.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from . import properties as p


@dataclass(frozen=True)
class Mutation:
    """One mistake: in `module`, `old` becomes `new`, and `caught_by` must fail."""

    name: str
    module: str
    old: str
    new: str
    caught_by: Callable[[ModuleType], None]


MUTATIONS = [
    Mutation(
        "ddof 0",
        "objectives",
        "values.std(correction=1)",
        "values.std(correction=0)",
        p.advantages_have_the_published_values,
    ),
    Mutation(
        "swapped sign of the advantage",
        "objectives",
        "(values - values.mean())",
        "(values.mean() - values)",
        p.advantages_have_the_published_values,
    ),
    Mutation(
        "epsilon missing",
        "objectives",
        "(sigma + epsilon)",
        "sigma",
        p.advantages_have_the_published_values,
    ),
    Mutation(
        "floor ignored",
        "objectives",
        "if sigma < floor:",
        "if sigma < 0:",
        p.a_nearly_equal_group_gives_no_signal,
    ),
    Mutation(
        "truncated winners masked too",
        "objectives",
        "return advantage < 0 and not ended",
        "return not ended",
        p.the_mask_zeroes_truncated_losers_alone,
    ),
    Mutation(
        "mask ignored",
        "objectives",
        "0.0 if censor and censored(advantage, end) else advantage",
        "advantage",
        p.the_mask_zeroes_truncated_losers_alone,
    ),
    Mutation(
        "normaliser counts unmasked rollouts only",
        "objectives",
        "n = len(advantages)",
        "n = sum(not (censor and censored(a, e)) for a, e in zip(advantages, ended, strict=True))",
        p.the_normaliser_counts_masked_rollouts,
    ),
    Mutation(
        "end of sequence missing from the loss",
        "backward",
        "[skipped:].sum()",
        "[skipped:-1].sum()",
        p.the_end_of_sequence_is_trained,
    ),
    Mutation(
        "log-probabilities shifted by one position",
        "backward",
        "range(len(context) - 1, len(context) + len(targets) - 1)",
        "range(len(context), len(context) + len(targets))",
        p.every_token_is_predicted_from_the_state_before_it,
    ),
    Mutation(
        "swapped sign of the loss",
        "backward",
        "losses = -logprobs",
        "losses = logprobs",
        p.descent_makes_rewarded_tokens_likelier,
    ),
    Mutation(
        "divisor replaced by the rollout's own length",
        "backward",
        "[skipped:].sum()",
        "[skipped:].mean()",
        p.length_never_divides_the_loss,
    ),
    Mutation(
        "start counted anew in every run of logits",
        "backward",
        "skipped = max(0, segment.start - piece.targets.start)",
        "skipped = segment.start",
        p.runs_of_logits_change_nothing,
    ),
    Mutation(
        "only the last run's gradient reaches the states",
        "backward",
        "(total / accumulation).backward()",
        "leaf.grad = None; (total / accumulation).backward()",
        p.runs_of_logits_change_nothing,
    ),
    Mutation(
        "prefix trained too",
        "backward",
        "[skipped:].sum()",
        ".sum()",
        p.positions_before_start_bear_no_loss,
    ),
    Mutation(
        "accumulation division missing",
        "backward",
        "(total / accumulation).backward()",
        "total.backward()",
        p.accumulation_divides_the_gradient,
    ),
    Mutation(
        "masked rollouts fed",
        "backward",
        "[s for s in segments if s.weight != 0.0]",
        "segments",
        p.masked_rollouts_are_not_fed,
    ),
    Mutation(
        "gate differentiated",
        "objectives",
        "logprobs.detach().exp()",
        "logprobs.exp()",
        p.the_gate_is_detached,
    ),
    Mutation(
        "gate of another size",
        "objectives",
        "4.0 * p * (1.0 - p)",
        "2.0 * p * (1.0 - p)",
        p.the_gate_is_detached,
    ),
    Mutation(
        "teacher not renormalised",
        "objectives",
        "top.values.log_softmax(-1)",
        "teacher_logits.log_softmax(-1).gather(-1, top.indices)",
        p.the_kl_goes_from_the_renormalised_teacher_to_the_whole_student,
    ),
    Mutation(
        "student renormalised on the teacher's top",
        "objectives",
        "log_student = student_logits.float().log_softmax(-1).gather(-1, top.indices)",
        "log_student = student_logits.float().gather(-1, top.indices).log_softmax(-1)",
        p.the_kl_goes_from_the_renormalised_teacher_to_the_whole_student,
    ),
    Mutation(
        "reverse KL",
        "objectives",
        "(log_teacher.exp() * (log_teacher - log_student))",
        "(log_student.exp() * (log_student - log_teacher))",
        p.the_kl_goes_from_the_renormalised_teacher_to_the_whole_student,
    ),
    Mutation(
        "verdict weights swapped",
        "objectives",
        "yes, no = 1.0",
        "no, yes = 1.0",
        p.verdicts_are_rewarded_by_class,
    ),
    Mutation(
        "pass rate not clamped",
        "objectives",
        "return min(high, max(low, pass_rate))",
        "return pass_rate",
        p.verdicts_are_rewarded_by_class,
    ),
    Mutation(
        "alpha swapped",
        "backward",
        "segment.alpha * losses + (1.0 - segment.alpha) *",
        "(1.0 - segment.alpha) * losses + segment.alpha *",
        p.alpha_weighs_the_hard_target,
    ),
    Mutation(
        "teacher in the student's place",
        "backward",
        "sequences = [(segment.teacher_ids or (), segment.target_ids) for segment in taught]",
        "sequences = [(segment.context_ids, segment.target_ids) for segment in taught]",
        p.the_teacher_reads_its_own_dialogue,
    ),
    Mutation(
        "gate on the likelihood alone",
        "backward",
        "return losses * brier_gate(logprobs) if segment.gated else losses",
        "return losses - logprobs * (brier_gate(logprobs) - 1.0) if segment.gated else losses",
        p.the_gate_acts_on_likelihood_and_kl,
    ),
    Mutation(
        "loss terms share batches",
        "backward",
        "key=lambda s: s.kind)",
        "key=lambda s: None)",
        p.a_batch_holds_one_loss_term,
    ),
    Mutation(
        "windows open at their end",
        "episodes.forking",
        "range(fork.first_start, min(last, fork.first_end) + 1)",
        "range(fork.first_start, min(last, fork.first_end))",
        p.windows_have_the_published_ends,
    ),
    Mutation(
        "second window starts too early",
        "episodes.forking",
        "max(fork.second_floor, min(fork.second_start, length // 2))",
        "min(fork.second_start, length // 2)",
        p.windows_have_the_published_ends,
    ),
    Mutation(
        "latest of equal entropies",
        "episodes.forking",
        "(entropies[t], -t)",
        "(entropies[t], t)",
        p.peaks_inside_the_windows_are_forked_from,
    ),
    Mutation(
        "least uncertain position",
        "episodes.forking",
        "(entropies[t], -t)",
        "(-entropies[t], -t)",
        p.peaks_inside_the_windows_are_forked_from,
    ),
    Mutation(
        "length of the continuation alone",
        "episodes.forking",
        "prefix_length + len(continuation.token_ids) <=",
        "len(continuation.token_ids) <=",
        p.forks_are_taken_when_right_ended_and_short,
    ),
    Mutation(
        "truncated forks taken",
        "episodes.forking",
        'return right and fits and continuation.finish_reason == "stop"',
        "return right and fits",
        p.forks_are_taken_when_right_ended_and_short,
    ),
    Mutation(
        "right parents masked too",
        "episodes.forking",
        "advantages[prefix.rollout] < 0",
        "advantages[prefix.rollout] != 0",
        p.failed_parents_are_masked_before_their_first_fork,
    ),
    Mutation(
        "mask from the last fork on",
        "episodes.forking",
        "min(prefix.t_fork, starts.get(prefix.rollout, prefix.t_fork))",
        "prefix.t_fork",
        p.failed_parents_are_masked_before_their_first_fork,
    ),
    Mutation(
        "clipping skipped",
        "optimizer",
        "torch.nn.utils.clip_grads_with_norm_(self.masters, self.clip_norm, torch.tensor(norm))",
        "pass",
        p.the_norm_that_adamw_sees_is_at_most_the_limit,
    ),
    Mutation(
        "norm logged after clipping",
        "optimizer",
        "return Update(norm,",
        "return Update(norm * coef,",
        p.the_stored_norm_is_pre_clip,
    ),
    Mutation(
        "zero-gradient skip ignored",
        "optimizer",
        "norm == 0.0 and self.skip_zero_grad",
        "False",
        p.a_zero_gradient_changes_nothing,
    ),
    Mutation(
        "masters in the working dtype",
        "optimizer",
        "parameter.detach().float().clone()",
        "parameter.detach().clone()",
        p.small_updates_of_bf16_weights_add_up,
    ),
    Mutation(
        "gradients kept after an update",
        "optimizer",
        "grad.zero_()",
        "pass",
        p.an_update_uses_only_gradients_since_the_last,
    ),
    Mutation(
        "tail average one step early",
        "policy",
        "self.first <= step <= self.last",
        "self.first - 1 <= step <= self.last - 1",
        p.the_tail_has_the_published_shares,
    ),
    Mutation(
        "min_tokens ignored",
        "rollout.torch_engine",
        "early = filled < self.minimum[slots]",
        "early = filled < 0",
        p.the_end_of_sequence_is_forbidden_before_min_tokens,
    ),
    Mutation(
        "min_tokens one token short",
        "rollout.torch_engine",
        "early = filled < self.minimum[slots]",
        "early = filled < self.minimum[slots] - 1",
        p.the_end_of_sequence_is_forbidden_before_min_tokens,
    ),
    Mutation(
        "temperature ignored",
        "rollout.torch_engine",
        "self.temperature[slot] = request.temperature",
        "self.temperature[slot] = 1.0",
        p.logprobs_are_those_of_the_distribution_drawn_from,
    ),
    Mutation(
        "temperature turned over",
        "rollout.torch_engine",
        "logits.float() / self.temperature",
        "logits.float() * self.temperature",
        p.logprobs_are_those_of_the_distribution_drawn_from,
    ),
    Mutation(
        "wrong cache rows kept when a batch shrinks",
        "rollout.torch_engine",
        "(keys[live], values[live])",
        "(keys[: len(live)], values[: len(live)])",
        p.results_do_not_depend_on_the_batch_size,
    ),
    Mutation(
        "uniforms not keyed by rollout",
        "sampling",
        "rollout=rollout)",
        "rollout=0)",
        p.every_rollout_has_its_own_uniforms,
    ),
    Mutation(
        "uniforms not keyed by run",
        "sampling",
        "run=run,",
        "run=0,",
        p.every_run_has_its_own_uniforms,
    ),
]


def mutated(mutation: Mutation) -> ModuleType:
    """The module with the mistake in it, unknown to everybody else."""
    original = importlib.import_module(f"dosematch.{mutation.module}")
    file = str(original.__file__)
    source = Path(file).read_text(encoding="utf-8")
    assert source.count(mutation.old) == 1, f"{file}: {mutation.old!r} must occur exactly once"
    module = ModuleType(original.__name__)
    module.__file__ = file
    exec(compile(source.replace(mutation.old, mutation.new), file, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_mistake_is_caught(mutation):
    module = mutated(mutation)
    with pytest.raises(AssertionError):
        mutation.caught_by(module)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_property_holds_without_the_mistake(mutation):
    mutation.caught_by(importlib.import_module(f"dosematch.{mutation.module}"))
