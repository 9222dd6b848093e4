"""Estimators (thinker-spec 5.1; properties C1, C2, C8, C9, C10)."""

import math
from statistics import fmean, stdev

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from dosematch.objectives import Segment, censored, group_advantages, grpo_weights, target_logprobs

binary = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=16)
real = st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=2, max_size=16)
PUBLISHED = [  # G, right, advantage of a right rollout, of a wrong one
    (4, 1, 1.499700, -0.499900),
    (4, 2, 0.865875, -0.865875),
    (4, 3, 0.499900, -1.499700),
    (8, 1, 2.474174, -0.353453),
    (8, 4, 0.935239, -0.935239),
    (8, 7, 0.353453, -2.474174),
]


@pytest.mark.parametrize(("size", "right", "of_right", "of_wrong"), PUBLISHED)
def test_advantages_of_binary_groups_have_the_published_values(size, right, of_right, of_wrong):
    advantages = group_advantages([1.0] * right + [0.0] * (size - right), epsilon=1e-4)
    assert advantages == pytest.approx([of_right] * right + [of_wrong] * (size - right), abs=6e-7)


@given(size=st.integers(2, 32), data=st.data())
def test_sigma_of_a_binary_group_is_the_closed_form_as_epsilon_vanishes(size, data):
    right = data.draw(st.integers(1, size - 1))
    sigma = math.sqrt(right * (size - right) / (size * (size - 1)))
    advantages = group_advantages([1.0] * right + [0.0] * (size - right), epsilon=0.0)
    assert advantages is not None
    assert advantages[0] == pytest.approx((1 - right / size) / sigma, rel=1e-12)
    assert advantages[-1] == pytest.approx(-right / size / sigma, rel=1e-12)


@given(rewards=real)
def test_advantages_follow_the_definition_in_order(rewards):
    advantages = group_advantages(rewards, epsilon=1e-4, floor=1e-5)
    sigma = stdev(rewards)
    assume(abs(sigma - 1e-5) > 1e-9)
    if sigma < 1e-5:
        assert advantages is None
    else:
        expected = [(reward - fmean(rewards)) / (sigma + 1e-4) for reward in rewards]
        assert advantages == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(rewards=binary)
def test_advantages_sum_to_zero(rewards):
    advantages = group_advantages(rewards)
    assume(advantages is not None)
    assert abs(sum(advantages)) <= 1e-12


@given(rewards=binary, constant=st.integers(-1000, 1000))
def test_a_constant_added_to_all_rewards_changes_nothing(rewards, constant):
    original = group_advantages(rewards)
    shifted = group_advantages([reward + constant for reward in rewards])
    assert shifted == (None if original is None else pytest.approx(original, abs=1e-9))


@pytest.mark.parametrize("rewards", [[], [1.0], [0.0], [0.3]])
def test_a_group_of_fewer_than_two_gives_no_signal(rewards):
    assert group_advantages(rewards) is None


@pytest.mark.parametrize("rewards", [[0.0] * 4, [1.0] * 8, [0.1] * 3, [0.0, 1e-6, 0.0, 1e-6], [1.0, 1.0 + 1e-6]])
def test_a_group_without_spread_gives_no_signal(rewards):
    assert group_advantages(rewards) is None


def test_the_floor_is_compared_with_sigma_itself():
    rewards = [0.0, 1.5e-5]  # sigma 1.06e-5 with ddof 1, 0.75e-5 with ddof 0
    assert group_advantages(rewards, floor=1e-5) is not None
    assert group_advantages(rewards, floor=1.1e-5) is None


@given(rewards=st.lists(st.floats(0, 1), min_size=0, max_size=8))
def test_advantages_are_always_finite(rewards):
    advantages = group_advantages(rewards)
    assert advantages is None or (len(advantages) == len(rewards) and all(map(math.isfinite, advantages)))


@pytest.mark.parametrize(
    ("advantage", "ended", "masked"),
    [(-0.5, False, True), (-0.5, True, False), (0.5, False, False), (0.5, True, False), (0.0, False, False)],
)
def test_only_truncated_rollouts_below_average_are_censored(advantage, ended, masked):
    assert censored(advantage, ended) is masked


rollouts = st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.booleans()), min_size=2, max_size=12)


@given(group=rollouts)
def test_the_mask_zeroes_truncated_negatives_and_touches_no_other_rollout(group):
    advantages = group_advantages([reward for reward, _ in group])
    assume(advantages is not None)
    ended = [end for _, end in group]
    masked, unmasked = (grpo_weights(advantages, ended, censor=censor) for censor in (True, False))
    for advantage, end, on, off in zip(advantages, ended, masked, unmasked, strict=True):
        assert off == pytest.approx(advantage / (len(group) * 256), rel=1e-12)
        assert on == (0.0 if advantage < 0 and not end else off)


@given(group=rollouts)
def test_a_group_that_ended_is_the_same_with_and_without_mask(group):
    advantages = group_advantages([reward for reward, _ in group])
    assume(advantages is not None)
    ended = [True] * len(group)
    assert grpo_weights(advantages, ended, censor=True) == grpo_weights(advantages, ended, censor=False)


def test_the_normaliser_counts_masked_rollouts():
    weights = grpo_weights([1.5, -0.5, -0.5, -0.5], [True, True, False, False], censor=True)
    assert weights == pytest.approx([1.5 / 1024, -0.5 / 1024, 0.0, 0.0], abs=1e-15)


@given(divisor=st.floats(1, 1000), ended=st.lists(st.booleans(), min_size=4, max_size=4))
def test_weights_are_inverse_to_the_divisor(divisor, ended):
    advantages = [1.5, -0.5, -0.5, -0.5]
    scaled = grpo_weights(advantages, ended, censor=True, divisor=divisor)
    reference = grpo_weights(advantages, ended, censor=True, divisor=1.0)
    assert scaled == pytest.approx([weight / divisor for weight in reference], rel=1e-12)


def test_the_default_divisor_is_256():
    assert grpo_weights([256.0, -256.0], [True, True], censor=False) == [0.5, -0.5]


@given(seed=st.integers(0, 2**16), n=st.integers(1, 5), vocabulary=st.integers(1, 9), size=st.floats(0.1, 50))
def test_target_logprobs_are_the_log_softmax_at_the_targets(seed, n, vocabulary, size):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, vocabulary, generator=generator) * size
    targets = torch.randint(vocabulary, (n,), generator=generator)
    expected = torch.stack([torch.log_softmax(row.double(), 0)[y] for row, y in zip(logits, targets, strict=True)])
    torch.testing.assert_close(target_logprobs(logits, targets).double(), expected, rtol=1e-5, atol=1e-5)


def test_target_logprobs_are_fp32_sums_of_bf16_logits_and_never_infinite_for_large_ones():
    logits = torch.tensor([[1000.0, 0.0, -1000.0], [0.0, 0.0, 0.0]], dtype=torch.bfloat16)
    values = target_logprobs(logits, torch.tensor([2, 1]))
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, torch.tensor([-2000.0, -math.log(3)]))


def test_the_length_of_a_segment_counts_context_and_targets():
    assert len(Segment((1, 2, 3), (4, 5), 1.0)) == 5
