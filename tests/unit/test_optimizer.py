"""AdamW on fp32 masters (thinker-spec 9; properties C21 to C24)."""

import pytest
import torch

from dosematch.backward import backward
from dosematch.errors import UserError
from dosematch.objectives import Segment
from dosematch.optimizer import MasterAdamW, StepGradient

from ..tiny import random_model, relative_gap

SEGMENTS = (Segment((5, 6, 7), (8, 9, 0), 0.7), Segment((5,), (6, 7), -1.3))
BETAS, EPS = (0.9, 0.95), 1e-8


def adamw(model, weight_decay=0.0, clip_norm=1.0, skip_zero_grad=True) -> MasterAdamW:
    return MasterAdamW(
        model,
        betas=BETAS,
        eps=EPS,
        weight_decay=weight_decay,
        clip_norm=clip_norm,
        skip_zero_grad=skip_zero_grad,
    )


def linear(value: float = 1.0, dtype: torch.dtype = torch.float32, n: int = 4) -> torch.nn.Linear:
    """n weights of one value."""
    layer = torch.nn.Linear(n, 1, bias=False, dtype=dtype)
    torch.nn.init.constant_(layer.weight, value)
    return layer


def absorb(layer: torch.nn.Module, optimizer: MasterAdamW, gradient: torch.Tensor, kind: str) -> None:
    """One backward pass that left this gradient."""
    layer.weight.grad = gradient.reshape(layer.weight.shape).to(layer.weight.dtype)
    optimizer.absorb(kind)


def give(layer: torch.nn.Module, optimizer: MasterAdamW, gradient: torch.Tensor) -> float:
    """One step with this gradient; returns its norm as the optimiser saw it."""
    absorb(layer, optimizer, gradient, "pg")
    return optimizer.end_step().norm


def copied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


def identical(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Same names, dtypes and bits."""
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)


def accumulated(steps: int) -> torch.Tensor:
    """The gradient after `steps` times the same loss at an accumulation of `steps`."""
    model = random_model()
    optimizer = adamw(model)
    for _ in range(steps):
        backward(model, SEGMENTS, accumulation=steps, micro_batch_tokens=1, after_batch=optimizer.absorb)
        optimizer.end_step()
    return torch.cat([gradient.flatten() for gradient in optimizer.grads]).double()


def test_five_steps_of_one_loss_at_accumulation_5_are_the_gradient_of_one_step():
    assert relative_gap(accumulated(5), accumulated(1)) < 1e-6


def test_end_step_returns_the_norm_of_the_step_and_update_that_of_the_sum():
    layer = linear()
    optimizer = adamw(layer, clip_norm=100.0)
    assert give(layer, optimizer, torch.tensor([3.0, 4, 0, 0])) == pytest.approx(5)
    assert give(layer, optimizer, torch.tensor([0.0, 0, 5, 12])) == pytest.approx(13)
    assert optimizer.update(1e-3).grad_norm == pytest.approx((25 + 169) ** 0.5)


def test_loss_terms_are_described_apart_and_added_up():
    layer = linear()
    optimizer = adamw(layer, clip_norm=100.0)
    absorb(layer, optimizer, torch.tensor([1.0, 2, 0, 0]), "pg")
    absorb(layer, optimizer, torch.tensor([0.0, 0, 0, 2]), "anchor")
    absorb(layer, optimizer, torch.tensor([2.0, 2, 0, 0]), "pg")
    absorb(layer, optimizer, torch.tensor([-4.0, 3, 0, 0]), "distill")
    step = optimizer.end_step()
    assert step.norms == pytest.approx({"pg": 5.0, "anchor": 2.0, "distill": 5.0})
    assert step.cosines == pytest.approx({"anchor/pg": 0.0, "anchor/distill": 0.0, "distill/pg": 0.0})
    assert step.norm == pytest.approx((1 + 49 + 4) ** 0.5)
    assert optimizer.update(1e-3).grad_norm == pytest.approx((1 + 49 + 4) ** 0.5)


@pytest.mark.parametrize(("other", "cosine"), [([1.5, 2.0], 1.0), ([-3.0, -4.0], -1.0), ([5.0, 0.0], 0.6)])
def test_cosines_are_those_of_the_angle_between_terms(other, cosine):
    layer = linear(n=2)
    optimizer = adamw(layer)
    absorb(layer, optimizer, torch.tensor([3.0, 4.0]), "pg")
    absorb(layer, optimizer, torch.tensor(other), "distill")
    assert optimizer.end_step().cosines == pytest.approx({"distill/pg": cosine})


def test_a_term_without_gradient_has_a_norm_of_zero_and_no_angle():
    layer = linear()
    optimizer = adamw(layer)
    absorb(layer, optimizer, torch.zeros(4), "pg")
    absorb(layer, optimizer, torch.ones(4), "distill")
    assert optimizer.end_step() == StepGradient(2.0, {"pg": 0.0, "distill": 2.0}, {})


def test_a_step_is_described_without_the_steps_before_it():
    layer = linear()
    optimizer = adamw(layer)
    absorb(layer, optimizer, torch.ones(4), "distill")
    optimizer.end_step()
    assert give(layer, optimizer, 2 * torch.ones(4)) == pytest.approx(4.0)
    assert optimizer.end_step() == StepGradient(0.0, {}, {})


def test_update_clears_the_accumulated_gradient():
    layer = linear()
    optimizer = adamw(layer)
    give(layer, optimizer, torch.ones(4))
    optimizer.update(1e-3)
    assert layer.weight.grad is None or not layer.weight.grad.any()
    assert not any(gradient.any() for gradient in optimizer.grads)
    assert optimizer.update(1e-3).skipped


def test_absorb_adds_up_in_fp32_what_bf16_would_lose():
    layer = linear(dtype=torch.bfloat16)
    optimizer = adamw(layer, clip_norm=1e9)
    absorb(layer, optimizer, torch.full((4,), 256.0), "pg")
    for _ in range(8):
        absorb(layer, optimizer, torch.full((4,), 0.5), "pg")
    assert optimizer.end_step().norm == pytest.approx(260.0 * 2)
    assert [gradient.dtype for gradient in optimizer.grads] == [torch.float32]


def test_a_parameter_without_gradient_counts_as_zero():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    optimizer = adamw(model)
    model[0].weight.grad = torch.full((2, 2), 1.0)
    optimizer.absorb("pg")
    assert optimizer.end_step().norm == pytest.approx(2.0)
    before = model[1].weight.detach().clone()
    optimizer.update(1e-3)
    assert torch.equal(model[1].weight, before)


@pytest.mark.parametrize("skip", [True, False])
def test_updates_are_those_of_torch_adamw_on_clipped_gradients(skip):
    layer, reference = linear(0.5), linear(0.5)
    optimizer = adamw(layer, weight_decay=0.08, skip_zero_grad=skip)
    expected = torch.optim.AdamW(reference.parameters(), lr=1e-2, betas=BETAS, eps=EPS, weight_decay=0.08)
    generator = torch.Generator().manual_seed(0)
    for size in (0.1, 10.0, 1.0, 0.01):
        gradient = torch.randn(4, generator=generator) * size
        give(layer, optimizer, gradient)
        optimizer.update(1e-2)
        reference.weight.grad = gradient.reshape(1, 4).clone()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
        expected.step()
        torch.testing.assert_close(layer.weight, reference.weight, rtol=1e-6, atol=1e-7)


def test_an_update_uses_the_rate_it_is_given():
    moved = []
    for lr in (1e-3, 2e-3):
        layer = linear()
        optimizer = adamw(layer)
        give(layer, optimizer, torch.ones(4))
        assert optimizer.update(lr).lr == lr
        moved.append(float((1 - layer.weight.detach()).mean()))
    assert moved == pytest.approx([1e-3, 2e-3], rel=1e-3)


def test_zero_gradients_leave_masters_moments_and_step_counter_bit_identical():
    layer = linear()
    optimizer = adamw(layer, weight_decay=0.5)
    give(layer, optimizer, torch.ones(4))
    optimizer.update(1e-2)
    before, weights = copied(optimizer.state()), layer.weight.detach().clone()
    for _ in range(5):
        optimizer.end_step()
    update = optimizer.update(1e-2)
    assert update.skipped
    assert (update.grad_norm, update.clip_coef) == (0.0, pytest.approx(1.0))
    assert identical(optimizer.state(), before)
    assert torch.equal(layer.weight, weights)


def test_without_skip_decay_shrinks_the_weights_by_one_minus_rate_times_decay():
    layer = linear(2.0)
    optimizer = adamw(layer, weight_decay=0.5, skip_zero_grad=False)
    optimizer.end_step()
    update = optimizer.update(1e-2)
    assert not update.skipped
    assert update.grad_norm == 0.0
    torch.testing.assert_close(layer.weight.detach(), torch.full((1, 4), 2.0 * (1 - 1e-2 * 0.5)))


def test_a_gradient_that_cancels_exactly_is_skipped_and_a_tiny_one_is_not():
    layer = linear()
    optimizer = adamw(layer, weight_decay=0.5)
    give(layer, optimizer, torch.ones(4))
    give(layer, optimizer, -torch.ones(4))
    assert optimizer.update(1e-2).skipped
    give(layer, optimizer, torch.full((4,), 1e-12))
    assert not optimizer.update(1e-2).skipped
    assert torch.all(layer.weight < 1)


@pytest.mark.parametrize("norm", [1e-3, 0.5, 0.999, 1.001, 2.0, 1e4])
def test_the_stored_norm_is_pre_clip_and_the_norm_used_is_at_most_the_limit(norm):
    layer = linear()
    optimizer = adamw(layer)
    give(layer, optimizer, torch.full((4,), norm / 2))
    update = optimizer.update(1e-3)
    assert update.grad_norm == pytest.approx(norm, rel=1e-6)
    assert update.clip_coef * update.grad_norm <= 1 + 1e-6
    if norm < 1:
        assert update.clip_coef == 1.0
    else:
        assert update.clip_coef == pytest.approx(1 / norm, rel=1e-5)


def test_moments_below_the_limit_are_those_of_the_untouched_gradient():
    layer = linear()
    optimizer = adamw(layer)
    gradient = torch.tensor([0.1, -0.2, 0.3, 0.0])
    give(layer, optimizer, gradient)
    optimizer.update(1e-3)
    expected = (1 - BETAS[0]) * gradient
    assert any(
        tensor.shape == (1, 4) and torch.allclose(tensor, expected.reshape(1, 4), rtol=1e-6)
        for tensor in optimizer.state().values()
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_ends_the_run_and_changes_nothing(bad):
    layer = linear()
    optimizer = adamw(layer, weight_decay=0.5)
    give(layer, optimizer, torch.tensor([1.0, bad, 0, 0]))
    with pytest.raises(UserError):
        optimizer.update(1e-2)
    assert torch.equal(layer.weight, torch.ones(1, 4))


def bf16_run(updates: int) -> tuple[torch.nn.Linear, MasterAdamW]:
    """Updates of one sign and of 1e-6 relative size on bf16 weights of 1."""
    layer = linear(dtype=torch.bfloat16, n=1)
    optimizer = adamw(layer)
    for _ in range(updates):
        give(layer, optimizer, torch.ones(1))
        optimizer.update(1e-6)
    return layer, optimizer


def masters(optimizer: MasterAdamW, layer: torch.nn.Module) -> torch.Tensor:
    """The master weights, made visible by casting into an fp32 copy of the layer."""
    copy = linear(n=1)
    other = adamw(copy)
    other.load_state(optimizer.state())
    assert copy.weight.shape == layer.weight.shape
    return copy.weight.detach()


def test_a_thousand_small_updates_move_the_masters_and_not_the_bf16_weights():
    layer, optimizer = bf16_run(1000)
    torch.testing.assert_close(masters(optimizer, layer), torch.tensor([[1 - 1e-3]]), rtol=0, atol=1e-4)
    assert layer.weight.item() == 1.0


def test_four_thousand_small_updates_move_the_bf16_weights():
    layer, optimizer = bf16_run(4000)
    assert layer.weight.item() < 1.0
    assert layer.weight.item() == masters(optimizer, layer).to(torch.bfloat16).item()


def test_working_weights_keep_their_dtype():
    layer, _ = bf16_run(1)
    assert layer.weight.dtype == torch.bfloat16


def fed(layer: torch.nn.Module, optimizer: MasterAdamW, steps: range) -> None:
    for step in steps:
        give(layer, optimizer, torch.arange(4) * 0.3 - 0.4 * step)
        if step % 2:
            optimizer.update(1e-2)


@pytest.mark.parametrize("stop", [0, 3, 4, 5])  # before anything, in the middle of an accumulation, after an update
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restored_state_continues_bit_for_bit(stop, dtype):
    whole, stopped, resumed = (linear(0.7, dtype) for _ in range(3))
    straight, first, second = (adamw(layer, weight_decay=0.08) for layer in (whole, stopped, resumed))
    fed(whole, straight, range(8))
    fed(stopped, first, range(stop))
    saved = copied(first.state())
    torch.nn.init.zeros_(resumed.weight)  # whatever the new process started from
    second.load_state(saved)
    assert torch.equal(resumed.weight, stopped.weight)
    assert identical(second.state(), saved)
    fed(resumed, second, range(stop, 8))
    assert identical(second.state(), straight.state())
    assert torch.equal(resumed.weight, whole.weight)


def test_a_saved_state_does_not_change_when_training_goes_on():
    layer = linear()
    optimizer = adamw(layer)
    fed(layer, optimizer, range(4))
    other_layer = linear()
    other = adamw(other_layer)
    other.load_state(optimizer.state())
    before = copied(optimizer.state())
    fed(other_layer, other, range(4, 7))
    assert identical(optimizer.state(), before)


def test_tied_weights_are_one_master():
    tied, untied = (adamw(random_model(tie_word_embeddings=tie)) for tie in (True, False))
    assert len(untied.grads) == len(tied.grads) + 1
