"""Properties of the training core that a plausible mistake would break (thinker-spec 18).

Every function takes the module under test, so that `test_mutations.py` can hand it a module with a planted mistake.
"""

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch

from dosematch.objectives import Segment, target_logprobs
from dosematch.rollout.engine import Completion, Request

from ..tiny import PAPER_FORK, flat_gradient, random_model, reference_logprobs, relative_gap

EOS = 0
SEGMENT = Segment((5, 6, 7), (8, 9, 10, EOS), 0.7)


# objectives


def advantages_have_the_published_values(objectives: ModuleType) -> None:
    """C1, with ddof 1."""
    assert objectives.group_advantages([1, 0, 0, 0]) == pytest.approx([1.499700] + [-0.499900] * 3, abs=1e-6)
    assert objectives.group_advantages([1] * 7 + [0]) == pytest.approx([0.353453] * 7 + [-2.474174], abs=1e-6)


def a_nearly_equal_group_gives_no_signal(objectives: ModuleType) -> None:
    """C8."""
    assert objectives.group_advantages([0.0, 1e-6]) is None


def the_mask_zeroes_truncated_losers_alone(objectives: ModuleType) -> None:
    """C9."""
    weights = objectives.grpo_weights([1.0, 1.0, -1.0, -1.0], [True, False, True, False], censor=True)
    assert [np.sign(weight) for weight in weights] == [1, 1, -1, 0]


def the_normaliser_counts_masked_rollouts(objectives: ModuleType) -> None:
    """5.1: n uses all rollouts, masked or not."""
    weights = objectives.grpo_weights([1.0, -1.0], [True, False], censor=True, divisor=256.0)
    assert weights == pytest.approx([1 / 512, 0.0])


# backward


def _gradient(module: ModuleType, segments: list[Segment], accumulation: int = 1) -> tuple[torch.Tensor, object]:
    model = random_model()
    result = module.backward(model, segments, accumulation=accumulation, micro_batch_tokens=10**6)
    return flat_gradient(model), result


def _direct(segment: Segment, positions: slice) -> tuple[torch.Tensor, float]:
    """Gradient and value of the loss over some target positions, from transformers."""
    model = random_model()
    logprobs = reference_logprobs(model, segment.context_ids, segment.target_ids)
    loss = -segment.weight * logprobs[positions].sum()
    loss.backward()
    return flat_gradient(model), loss.item()


def the_end_of_sequence_is_trained(backward: ModuleType) -> None:
    """5.1: the targets include the end of sequence."""
    _, result = _gradient(backward, [SEGMENT])
    assert result.loss["pg"] == pytest.approx(_direct(SEGMENT, slice(None))[1], rel=1e-4)


def every_token_is_predicted_from_the_state_before_it(backward: ModuleType) -> None:
    """The log-probabilities are those of the sequence alone."""
    model = random_model()
    shorter = Segment((1,), (2, 3), 1.0)
    sequences = [(segment.context_ids, segment.target_ids) for segment in (SEGMENT, shorter)]
    for segment, logits in zip((SEGMENT, shorter), backward.segment_logits(model, sequences), strict=True):
        values = target_logprobs(logits, torch.tensor(segment.target_ids))
        expected = reference_logprobs(model, segment.context_ids, segment.target_ids)
        assert values.tolist() == pytest.approx(expected.tolist(), abs=1e-4)


def descent_makes_rewarded_tokens_likelier(backward: ModuleType) -> None:
    """The sign of the loss."""
    model = random_model()
    before = reference_logprobs(model, SEGMENT.context_ids, SEGMENT.target_ids).sum().item()
    backward.backward(model, [SEGMENT], accumulation=1, micro_batch_tokens=10**6)
    torch.optim.SGD(model.parameters(), lr=1e-4).step()
    assert reference_logprobs(model, SEGMENT.context_ids, SEGMENT.target_ids).sum().item() > before


def length_never_divides_the_loss(backward: ModuleType) -> None:
    """C10."""
    for length in (1, 50):
        segment = Segment((5,), (6,) * length, 1 / 256)
        _, result = _gradient(backward, [segment])
        assert result.loss["pg"] == pytest.approx(_direct(segment, slice(None))[1], rel=1e-4)


def runs_of_logits_change_nothing(backward: ModuleType) -> None:
    """However few rows of logits exist at a time, also where a run begins behind the start."""
    segment = Segment((5, 6), (7, 8, 9, 10, 11, 12), 0.5, start=3)
    whole, model = _gradient(backward, [segment])[0], random_model()
    backward.backward(model, [segment], accumulation=1, micro_batch_tokens=10**6, logit_rows=2)
    assert relative_gap(flat_gradient(model), whole) < 1e-6


def positions_before_start_bear_no_loss(backward: ModuleType) -> None:
    """5.1: with the prefix mask only t >= start."""
    segment = Segment(SEGMENT.context_ids, SEGMENT.target_ids, 0.7, start=2)
    gradient, _ = _gradient(backward, [segment])
    assert relative_gap(gradient, _direct(segment, slice(2, None))[0]) < 1e-5


def accumulation_divides_the_gradient(backward: ModuleType) -> None:
    """C21."""
    whole, _ = _gradient(backward, [SEGMENT])
    fifth, _ = _gradient(backward, [SEGMENT], accumulation=5)
    assert relative_gap(5 * fifth, whole) < 1e-5


def masked_rollouts_are_not_fed(backward: ModuleType) -> None:
    """14: masked rollouts count 0."""
    _, result = _gradient(backward, [SEGMENT, Segment((1, 2), (3,) * 20, 0.0)])
    assert result.tokens_fed == {"pg": len(SEGMENT)}


def the_gate_is_detached(objectives: ModuleType) -> None:
    """C11: the gated likelihood has the gradient of the Brier score."""
    logits = torch.tensor([[0.3, -1.0, 2.0]], requires_grad=True)
    logprobs = objectives.target_logprobs(logits, torch.tensor([0]))
    (gated,) = torch.autograd.grad((-objectives.brier_gate(logprobs) * logprobs).sum(), logits)
    (brier,) = torch.autograd.grad((2 * (1 - logits.softmax(-1)[0, 0]) ** 2).sum(), logits)
    assert gated.tolist()[0] == pytest.approx(brier.tolist()[0], abs=1e-6)


def the_kl_goes_from_the_renormalised_teacher_to_the_whole_student(objectives: ModuleType) -> None:
    """C13: its gradient is the student's distribution minus the teacher's top."""
    student = torch.tensor([[0.3, -1.0, 2.0, 0.5]], requires_grad=True)
    teacher = torch.tensor([[1.0, 0.5, -3.0, -1.0]], requires_grad=True)
    (found,) = torch.autograd.grad(objectives.top_k_kl(student, teacher, 2).sum(), student)
    q = torch.cat([teacher.detach()[0, :2].softmax(-1), torch.zeros(2)])
    assert found.tolist()[0] == pytest.approx((student.detach()[0].softmax(-1) - q).tolist(), abs=1e-6)


def verdicts_are_rewarded_by_class(objectives: ModuleType) -> None:
    """5.2 and C7."""
    rewards = objectives.verdict_rewards([True, False, True], ["Yes", "No", "Invalid"], objectives.clamped(0.01))
    assert rewards == pytest.approx([1 / 0.3, 1 / 1.7, 0.0])


def alpha_weighs_the_hard_target(backward: ModuleType) -> None:
    """C14: with alpha 1 the teacher is not heard, with 0.75 by a quarter."""
    taught = Segment((5, 6, 7), (8, 9, EOS), 1.0, kind="distill", teacher_ids=(20, 21, 22, 23), top_k=16)
    hard, soft, mixed = (_gradient(backward, [replace(taught, alpha=a)])[0] for a in (1.0, 0.0, 0.75))
    plain, _ = _gradient(backward, [replace(taught, teacher_ids=None)])
    assert torch.equal(hard, plain)
    assert relative_gap(mixed, 0.75 * hard + 0.25 * soft) < 1e-5


def the_teacher_reads_its_own_dialogue(backward: ModuleType) -> None:
    """5.4: other words for the teacher, another loss."""
    taught = Segment((5, 6, 7), (8, 9, EOS), 1.0, kind="distill", alpha=0.0, teacher_ids=(20, 21), top_k=16)
    losses = [
        _gradient(backward, [replace(taught, teacher_ids=ids)])[1].loss["distill"] for ids in ((20, 21), (30, 31, 32))
    ]
    assert losses[0] != pytest.approx(losses[1], rel=1e-2)


def the_gate_acts_on_likelihood_and_kl(backward: ModuleType) -> None:
    """5.4."""
    taught = Segment((5, 6, 7), (8, 9, EOS), 1.0, kind="distill", alpha=0.5, teacher_ids=(20, 21), top_k=16)
    logits = torch.tensor([[0.3, -1.0], [2.0, 0.1], [0.0, 0.5]])
    logprobs = torch.tensor([-0.5, -1.0, -3.0])
    plain, gated = (
        backward.token_losses(replace(taught, gated=gated), logprobs, logits, logits.flip(0)) for gated in (False, True)
    )
    p = logprobs.exp()
    assert gated.tolist() == pytest.approx((plain * 4 * p * (1 - p)).tolist())


def a_batch_holds_one_loss_term(backward: ModuleType) -> None:
    """Otherwise no term has a gradient of its own."""
    kinds = ["pg", "distill", "anchor", "pg", "distill"]
    segments = [Segment((1, 2), (3,) * n, 1.0, kind=kind) for n, kind in enumerate(kinds, 1)]
    for batch in backward.micro_batches(segments, 10**6):
        assert len({segment.kind for segment in batch}) == 1


# forking


def windows_have_the_published_ends(forking: ModuleType) -> None:
    """C16."""
    assert forking.windows(63, PAPER_FORK) == []
    assert forking.windows(72, PAPER_FORK) == [range(32, 57), range(56, 57)]
    assert forking.windows(176, PAPER_FORK) == [range(32, 161), range(88, 161)]
    assert forking.windows(304, PAPER_FORK) == [range(32, 161), range(96, 289)]


def peaks_inside_the_windows_are_forked_from(forking: ModuleType) -> None:
    """C17, with equal peaks: the earliest counts."""
    entropies = [1.0] * 304
    for t, value in {31: 9.0, 40: 5.0, 41: 5.0, 200: 4.0, 300: 9.0}.items():
        entropies[t] = value
    found = [(p.window, p.t_fork) for p in forking.select_prefixes([(0, entropies)], PAPER_FORK)]
    assert found == [(1, 40), (2, 200), (1, 40), (2, 200)]


def forks_are_taken_when_right_ended_and_short(forking: ModuleType) -> None:
    """C18."""
    for length, end, right in [(896, "stop", True), (897, "stop", True), (896, "length", True), (896, "stop", False)]:
        fork = Completion((1,) * (length - 32), (-1.0,) * (length - 32), end)
        assert forking.accepted(32, fork, right, PAPER_FORK) is (length == 896 and end == "stop" and right)


def failed_parents_are_masked_before_their_first_fork(forking: ModuleType) -> None:
    """C19."""
    prefixes = [forking.Prefix(rollout, 1, t, 1.0) for rollout, t in ((0, 90), (0, 40), (0, 70), (1, 50))]
    assert forking.fork_starts(prefixes, [-0.5, 1.5]) == {0: 40}


# optimizer


def _optimizer(module: ModuleType, dtype: torch.dtype = torch.float32) -> tuple[torch.nn.Linear, object]:
    layer = torch.nn.Linear(4, 1, bias=False, dtype=dtype)
    torch.nn.init.ones_(layer.weight)
    options = {"eps": 1e-8, "weight_decay": 0.5, "clip_norm": 1.0, "skip_zero_grad": True}
    return layer, module.MasterAdamW(layer, betas=(0.9, 0.95), **options)


def _update(layer: torch.nn.Linear, optimizer, gradient: float, lr: float = 1e-3):
    layer.weight.grad = torch.full_like(layer.weight, gradient)
    optimizer.absorb("pg")
    optimizer.end_step()
    return optimizer.update(lr)


def the_norm_that_adamw_sees_is_at_most_the_limit(optimizer: ModuleType) -> None:
    """C23, read from the first moment after a first update."""
    layer, adamw = _optimizer(optimizer)
    _update(layer, adamw, 100.0)
    [moment] = [tensor for name, tensor in adamw.state().items() if ".exp_avg." in name]
    assert float(moment.norm()) / 0.1 <= 1 + 1e-6


def the_stored_norm_is_pre_clip(optimizer: ModuleType) -> None:
    """C23."""
    layer, adamw = _optimizer(optimizer)
    assert _update(layer, adamw, 100.0).grad_norm == pytest.approx(200.0)


def a_zero_gradient_changes_nothing(optimizer: ModuleType) -> None:
    """C22."""
    layer, adamw = _optimizer(optimizer)
    _update(layer, adamw, 1.0)
    before = {name: tensor.clone() for name, tensor in adamw.state().items()}
    _update(layer, adamw, 0.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in adamw.state().items())


def small_updates_of_bf16_weights_add_up(optimizer: ModuleType) -> None:
    """C24: a hundred updates of 1e-4, each below half a bf16 step."""
    layer, adamw = _optimizer(optimizer, torch.bfloat16)
    for _ in range(100):
        _update(layer, adamw, 1.0, lr=1e-4)
    assert torch.all(layer.weight < 1.0)


def an_update_uses_only_gradients_since_the_last(optimizer: ModuleType) -> None:
    """9: accumulation ends at a boundary."""
    layer, adamw = _optimizer(optimizer)
    _update(layer, adamw, 0.1)
    assert _update(layer, adamw, 0.2).grad_norm == pytest.approx(0.4)


# policy


def the_tail_has_the_published_shares(policy: ModuleType) -> None:
    """C15: 4, 5, 5, 1 of 15 for the weights after updates 3 to 6."""
    for update, share in {2: 0, 3: 4, 4: 5, 5: 5, 6: 1}.items():
        tail = policy.TailAverage(16, 30)
        for step in range(1, 31):
            tail.add(step, {"w": torch.tensor([float(step // 5 == update)])})
        assert tail.mean({"w": torch.zeros(1)})["w"].item() == pytest.approx(share / 15, abs=1e-6)


# torch_engine


def the_end_of_sequence_is_forbidden_before_min_tokens(torch_engine: ModuleType) -> None:
    """10: min_tokens. A uniform of 0 draws the first allowed token, and the end of sequence is token 0."""
    request = Request((1, 2), 6, min_tokens=4, uniforms=np.zeros(6))
    [completion] = torch_engine.TorchEngine(random_model(), EOS).generate([request])
    assert completion.token_ids == (1, 1, 1, 1, EOS)


def logprobs_are_those_of_the_distribution_drawn_from(torch_engine: ModuleType) -> None:
    """The trainer recomputes them from the model, the temperature and min_tokens."""
    model = random_model()
    [eos] = torch_engine.TorchEngine(model, -1).generate([Request((1, 2), 1)])[0].token_ids
    request = Request((1, 2), 4, min_tokens=4, uniforms=np.full(4, 0.5), temperature=2.0)
    [completion] = torch_engine.TorchEngine(model, eos).generate([request])
    expected = reference_logprobs(model, request.prompt_ids, completion.token_ids, 2.0, eos, min_tokens=4)
    assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def results_do_not_depend_on_the_batch_size(torch_engine: ModuleType) -> None:
    """C32, with rows that are refilled and dropped at different times."""
    engine = torch_engine.TorchEngine(random_model(), -1)
    requests = [Request(tuple(range(i + 1, 2 * i + 3)), 3 + 5 * (i % 4)) for i in range(9)]
    assert [c.token_ids for c in engine.generate(requests, 4)] == [c.token_ids for c in engine.generate(requests, 1)]


# sampling


def every_rollout_has_its_own_uniforms(sampling: ModuleType) -> None:
    """11: the counter is (seed, run, step, question, stage, rollout)."""
    key = {"study": "thinker", "seed": 1, "run": 1, "step": 1, "question": "q", "stage": "fast"}
    assert not np.array_equal(sampling.uniforms(4, **key, rollout=0), sampling.uniforms(4, **key, rollout=1))


def every_run_has_its_own_uniforms(sampling: ModuleType) -> None:
    """C34: a repeated arm differs in the run key."""
    key = {"study": "thinker", "seed": 1, "step": 1, "question": "q", "stage": "fast", "rollout": 0}
    assert not np.array_equal(sampling.uniforms(4, **key, run=1), sampling.uniforms(4, **key, run=2))
