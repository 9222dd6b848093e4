"""Gated likelihood and the teacher's distribution (thinker-spec 5.3, 5.4; properties C11 to C14)."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dosematch.backward import backward
from dosematch.objectives import Segment, brier_gate, target_logprobs, top_k_kl

from ..tiny import flat_gradient, random_model, reference_logprobs, relative_gap

PLAIN = Segment((5, 6, 7), (8, 9, 10, 0), 0.25, kind="distill")
GATED = replace(PLAIN, gated=True)
TAUGHT = replace(PLAIN, alpha=0.5, teacher_ids=(20, 21, 22, 23, 24), top_k=16)
TARGET_DERIVATIVES = {
    0.001: -0.003992,
    0.01: -0.039204,
    0.1: -0.324,
    0.25: -0.5625,
    1 / 3: -0.592593,
    0.5: -0.5,
    0.9: -0.036,
    0.99: -0.000396,
}


def random_logits(seed: int, n: int = 3, vocabulary: int = 40) -> torch.Tensor:
    return torch.randn(n, vocabulary, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def derivatives(loss: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss.sum(), logits)[0]


def gated_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logprobs = target_logprobs(logits, targets)
    return -brier_gate(logprobs) * logprobs


def logits_of(p: float, vocabulary: int = 5) -> torch.Tensor:
    """One row of logits that give token 0 the probability p and the others different shares of the rest."""
    shares = torch.arange(1, vocabulary, dtype=torch.float64)
    rest = (1 - p) * shares / shares.sum()
    return torch.cat([torch.tensor([p]), rest]).log().float().unsqueeze(0).requires_grad_()


# The gate


@given(seed=st.integers(0, 2**16))
def test_the_gated_likelihood_has_the_gradient_of_the_brier_score(seed):
    logits = random_logits(seed)
    targets = torch.tensor([0, 7, 39])
    p = logits.softmax(-1)[range(3), targets]
    torch.testing.assert_close(
        derivatives(gated_loss(logits, targets), logits), derivatives(2 * (1 - p) ** 2, logits), rtol=0, atol=1e-6
    )


def test_a_gate_that_is_differentiated_has_another_gradient():
    logits, targets = random_logits(1), torch.tensor([0, 7, 39])
    p = logits.softmax(-1)[range(3), targets]
    through = derivatives(-4 * p * (1 - p) * p.log(), logits)
    assert (derivatives(gated_loss(logits, targets), logits) - through).abs().max() > 1e-3


@pytest.mark.parametrize(("p", "derivative"), TARGET_DERIVATIVES.items())
def test_derivatives_at_the_target_have_the_published_values(p, derivative):
    logits = logits_of(p)
    found = derivatives(gated_loss(logits, torch.tensor([0])), logits)
    assert found[0, 0].item() == pytest.approx(derivative, abs=2e-6)
    likelihood = derivatives(-target_logprobs(logits, torch.tensor([0])), logits)
    assert likelihood[0, 0].item() == pytest.approx(p - 1, abs=2e-6)


@given(p=st.floats(0.001, 0.999))
def test_the_gate_never_enlarges_a_derivative_and_shares_it_by_probability(p):
    logits = logits_of(p)
    gated = derivatives(gated_loss(logits, torch.tensor([0])), logits)[0]
    likelihood = derivatives(-target_logprobs(logits, torch.tensor([0])), logits)[0]
    assert abs(gated[0]) <= abs(likelihood[0]) + 1e-6
    assert gated.sum().item() == pytest.approx(0, abs=1e-6)
    others = 4 * p * (1 - p) * logits.detach().softmax(-1)[0, 1:]
    torch.testing.assert_close(gated[1:], others, rtol=1e-4, atol=1e-6)


def test_gate_and_likelihood_agree_at_one_half_alone_and_the_gate_peaks_at_one_third():
    grid = [i / 600 for i in range(1, 600)]
    steepest = [4 * p * (1 - p) * (1 - p) for p in grid]
    found = [-derivatives(gated_loss(x, torch.tensor([0])), x)[0, 0].item() for x in map(logits_of, grid)]
    assert found == pytest.approx(steepest, abs=2e-6)
    assert grid[max(range(len(grid)), key=found.__getitem__)] == pytest.approx(1 / 3, abs=1 / 600)
    assert max(found) == pytest.approx(16 / 27, abs=1e-6)
    equal = [p for p, value in zip(grid, found, strict=True) if abs(value - (1 - p)) < 1e-6]
    assert equal == [0.5]


# The teacher


@given(seed=st.integers(0, 2**16), k=st.integers(1, 39))
def test_the_kl_pulls_by_the_difference_to_the_renormalised_top(seed, k):
    student, teacher = random_logits(seed), random_logits(seed + 1).detach()
    top = teacher.topk(k, -1)
    q = torch.zeros_like(teacher).scatter(-1, top.indices, top.values.softmax(-1))
    assert (q > 0).sum(-1).tolist() == [k] * 3
    kl = top_k_kl(student, teacher, k)
    torch.testing.assert_close(derivatives(kl, student), student.detach().softmax(-1) - q, rtol=0, atol=1e-6)
    mass = student.detach().softmax(-1).gather(-1, top.indices).sum(-1)
    assert torch.all(kl >= -mass.log() - 1e-5)
    assert torch.all(-mass.log() >= -1e-6)


@pytest.mark.parametrize("k", [40, 1000])
def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_the_whole_vocabulary(k):
    student = random_logits(3)
    kl = top_k_kl(student, student, k)
    assert kl.tolist() == pytest.approx([0.0] * 3, abs=1e-6)
    assert derivatives(kl, student).abs().max() < 1e-6


def test_no_gradient_flows_into_the_teacher():
    student, teacher = random_logits(4), random_logits(5)
    top_k_kl(student, teacher, 16).sum().backward()
    assert teacher.grad is None
    assert student.grad is not None


# Segments


@pytest.fixture(scope="module")
def model():
    return random_model()


def gradient(model, segments, **options):
    model.zero_grad(set_to_none=True)
    result = backward(model, segments, accumulation=1, micro_batch_tokens=10**6, **options)
    return flat_gradient(model), result


def all_logits(model, context, target):
    ids = torch.tensor([*context, *target]).unsqueeze(0)
    return model(ids, use_cache=False).logits[0, len(context) - 1 : -1]


def test_a_gated_segment_descends_the_brier_score(model):
    found, result = gradient(model, [GATED])
    model.zero_grad(set_to_none=True)
    logprobs = reference_logprobs(model, GATED.context_ids, GATED.target_ids)
    p = logprobs.exp()
    (GATED.weight * 2 * (1 - p) ** 2).sum().backward()
    assert relative_gap(found, flat_gradient(model)) < 1e-5
    value = -(GATED.weight * 4 * p * (1 - p) * logprobs).sum().item()
    assert result.loss["distill"] == pytest.approx(value, rel=1e-4)


def test_a_taught_segment_descends_the_mix_of_likelihood_and_kl(model):
    found, result = gradient(model, [TAUGHT])
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        teacher = all_logits(model, TAUGHT.teacher_ids, TAUGHT.target_ids).topk(16, -1)
    student = all_logits(model, TAUGHT.context_ids, TAUGHT.target_ids).log_softmax(-1)
    q = teacher.values.softmax(-1)
    kl = (q * (q.log() - student.gather(-1, teacher.indices))).sum(-1)
    likelihood = -student.gather(-1, torch.tensor(TAUGHT.target_ids).unsqueeze(-1)).squeeze(-1)
    loss = TAUGHT.weight * (0.5 * likelihood + 0.5 * kl).sum()
    loss.backward()
    assert relative_gap(found, flat_gradient(model)) < 1e-5
    assert result.loss["distill"] == pytest.approx(loss.item(), rel=1e-4)
    assert result.teacher_tokens == len(TAUGHT.teacher_ids) + len(TAUGHT.target_ids)


def test_with_alpha_one_no_teacher_is_asked_and_none_matters(model):
    alone, expected = gradient(model, [PLAIN])
    for teacher_ids in [(1, 2), (200,) * 9]:
        found, result = gradient(model, [replace(TAUGHT, alpha=1.0, teacher_ids=teacher_ids)])
        assert torch.equal(found, alone)
        assert result == expected
        assert result.teacher_tokens == 0


def test_with_alpha_below_one_the_teacher_matters(model):
    one, other = (gradient(model, [replace(TAUGHT, teacher_ids=ids)])[0] for ids in [(1, 2), (200,) * 9])
    assert relative_gap(one, other) > 1e-2


@pytest.mark.parametrize("gated", [False, True])
def test_alpha_one_half_is_the_mean_of_the_pure_losses(model, gated):
    hard, half, soft = (gradient(model, [replace(TAUGHT, alpha=a, gated=gated)]) for a in (1.0, 0.5, 0.0))
    assert relative_gap(half[0], (hard[0] + soft[0]) / 2) < 1e-5
    assert half[1].loss["distill"] == pytest.approx((hard[1].loss["distill"] + soft[1].loss["distill"]) / 2, rel=1e-5)


@pytest.mark.parametrize("micro_batch_tokens", [1, 20, 10**6])
def test_gated_and_taught_segments_share_batches_with_plain_ones(model, micro_batch_tokens):
    """Every segment keeps its own gate and teacher, however the batch is cut."""
    segments = [
        PLAIN,
        TAUGHT,
        GATED,
        replace(TAUGHT, context_ids=(50,), target_ids=(51, 52), teacher_ids=(60,) * 8, gated=True),
    ]
    apart = sum(gradient(model, [segment])[0] for segment in segments)
    model.zero_grad(set_to_none=True)
    result = backward(model, segments, accumulation=1, micro_batch_tokens=micro_batch_tokens)
    assert relative_gap(flat_gradient(model), apart) < 1e-5
    assert result.teacher_tokens == (5 + 4) + (8 + 2)


def test_a_teacher_in_the_students_own_place_teaches_the_students_top(model):
    """With the whole vocabulary nothing is left to learn."""
    same = replace(TAUGHT, teacher_ids=TAUGHT.context_ids, top_k=10**6, alpha=0.0)
    found, result = gradient(model, [same])
    assert result.loss["distill"] == pytest.approx(0.0, abs=1e-5)
    assert found.norm() < 1e-4 * gradient(model, [PLAIN])[0].norm()


def test_a_certain_token_is_gated_to_nothing():
    gate = brier_gate(torch.tensor([0.0, math.log(0.5), -math.inf]))
    assert gate.tolist() == pytest.approx([0.0, 1.0, 0.0])
    assert not gate.requires_grad
