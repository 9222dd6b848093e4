"""The tail average of the weights (thinker-spec 11.1; property C15)."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dosematch.policy import TailAverage


def averaged(values: dict[int, float], first: int = 16, last: int = 30, dtype=torch.float32) -> torch.Tensor:
    """The average of one-element weights given by step."""
    tail = TailAverage(first, last)
    for step, value in values.items():
        tail.add(step, {"w": torch.tensor([value], dtype=dtype)})
    return tail.mean({"w": torch.zeros(1, dtype=dtype)})["w"]


def test_with_an_update_per_step_it_is_the_mean_of_steps_16_to_30():
    weights = {step: float(step**2) for step in range(1, 31)}
    assert averaged(weights).item() == pytest.approx(sum(s**2 for s in range(16, 31)) / 15)


@pytest.mark.parametrize(
    ("update", "share"),
    [(1, 0), (2, 0), (3, Fraction(4, 15)), (4, Fraction(5, 15)), (5, Fraction(5, 15)), (6, Fraction(1, 15))],
)
def test_with_an_update_every_five_steps_four_states_have_the_published_shares(update, share):
    """Weights after update k stay until update k + 1: after step s there were s // 5 updates."""
    indicator = {step: float(step // 5 == update) for step in range(1, 31)}
    assert averaged(indicator).item() == pytest.approx(float(share), abs=1e-7)


@given(value=st.floats(-1e4, 1e4, width=32), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_constant_weights_are_returned_unchanged(value, dtype):
    constant = torch.tensor([value], dtype=dtype)
    result = averaged(dict.fromkeys(range(1, 31), constant.item()), dtype=dtype)
    assert result.dtype == dtype
    torch.testing.assert_close(result, constant, rtol=3e-7, atol=0)


@given(values=st.lists(st.floats(-10, 10), min_size=1, max_size=20), first=st.integers(1, 5))
def test_it_is_the_arithmetic_mean_of_any_tail(values, first):
    weights = {first + i: value for i, value in enumerate(values)} | {first - 1: 1e6, first + len(values): 1e6}
    mean = averaged(weights, first, first + len(values) - 1)
    assert mean.item() == pytest.approx(sum(values) / len(values), rel=1e-5, abs=1e-5)


def test_sums_are_fp32_even_when_the_weights_are_bf16():
    values = dict.fromkeys(range(16, 31), 1.0) | {30: 1.125}
    # 1 + 0.125/15 = 1.00833 rounds to 1.0078125 in bf16; a running bf16 sum beyond 8 would lose the 0.125
    assert averaged(values, dtype=torch.bfloat16).item() == 1.0078125


def test_weights_given_are_copied_and_every_name_is_averaged():
    tail = TailAverage(1, 2)
    shared = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[4.0]])}
    tail.add(1, shared)
    for tensor in shared.values():
        tensor.mul_(3)
    tail.add(2, shared)
    mean = tail.mean(shared)
    assert mean["a"].tolist() == [2.0, 4.0]
    assert mean["b"].tolist() == [[8.0]]
    assert shared["a"].tolist() == [3.0, 6.0]


@pytest.mark.parametrize("missing", [[16], [30], [22], list(range(16, 31))])
def test_an_incomplete_tail_has_no_average(missing):
    with pytest.raises(ValueError, match=r"\d"):
        averaged({step: 1.0 for step in range(1, 31) if step not in missing})
