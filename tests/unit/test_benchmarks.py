"""What the benchmarks measure with: alternation, medians, goals, the reference sides, peak memory."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dosematch.backward import backward
from dosematch.benchmarks import timing
from dosematch.benchmarks.memory import peak_growth
from dosematch.benchmarks.reference import by_transformers, flat_gradient, plain_backward
from dosematch.benchmarks.scaling import bounds
from dosematch.benchmarks.update import our_update, plain_update
from dosematch.benchmarks.workload import BASE, alternate_rewards, random_qwen, random_segments
from dosematch.policy import load_policy

from ..tiny import VOCAB, random_model, relative_gap

ROOT = Path(__file__).parents[2]
SHAPES = [(5, 7, "pg"), (3, 2, "pg"), (9, 1, "slow"), (1, 6, "pg")]


def test_sides_alternate_and_the_warm_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def seconds(run: Callable[[], str]) -> float:
        """2 s for ours and 3, 3, 5, 5 s for theirs; the warm-up is far off."""
        calls.append(run())
        return 1e9 if len(calls) <= 2 * timing.WARM_UP else 2.0 if calls[-1] == "ours" else 1.0 + len(calls) // 2

    monkeypatch.setattr(timing, "seconds", seconds)
    result = timing.paired(lambda: "ours", lambda: "theirs", repeats=4)
    pairs = [tuple(calls[i : i + 2]) for i in range(0, len(calls), 2)]
    assert pairs == [("theirs", "ours"), ("ours", "theirs")] * 2 + [("theirs", "ours")]
    assert result["ours_s"] == 2.0
    assert result["ratio_range"] == [1.5, 2.5]
    assert result["ratio"] == result["theirs_s"] / 2.0 == 2.0


def test_share_is_the_median_over_pairs_and_not_the_ratio_of_medians() -> None:
    pairs = [(1e9, 1.0), (1.0, 10.0), (6.0, 2.0), (2.0, 4.0)]
    result = timing.summary(pairs)
    assert result["repeats"] == 3
    assert result["share"] == 0.5
    assert (result["ours_s"], result["theirs_s"]) == (2.0, 4.0)


def test_a_goal_is_met_at_its_bound_and_missed_beyond_it() -> None:
    assert timing.at_most(0.6, 0.6)["met"] and timing.at_least(1.5, 1.5)["met"]
    assert not timing.at_most(0.61, 0.6)["met"]
    assert not timing.at_least(1.49, 1.5)["met"]


def test_padding_and_batches_do_not_change_the_reference() -> None:
    model, prompts = random_model(), [(5, 6, 7), (8,), (9, 10)]
    limits = {"max_new_tokens": 6, "min_new_tokens": 0}
    together = by_transformers(model, prompts, 3, limits, 0)
    assert together == by_transformers(model, prompts, 1, limits, 0)
    assert all(1 <= len(row) <= 6 for row in together)


def test_the_plain_backward_pass_has_our_loss_and_gradient() -> None:
    segments = random_segments(SHAPES, VOCAB)
    ours, plain = random_model(), random_model()
    result = backward(ours, segments, accumulation=1, micro_batch_tokens=16)
    loss = plain_backward(plain, segments)
    assert loss == pytest.approx(sum(result.loss.values()), rel=1e-5)
    assert relative_gap(flat_gradient(ours), flat_gradient(plain)) < 1e-5
    flipped = random_model()
    plain_backward(flipped, [*segments[1:], random_segments([SHAPES[0]] * 2, VOCAB)[1]])
    assert relative_gap(flat_gradient(flipped), flat_gradient(plain)) > 0.1


def test_both_updates_move_the_weights_alike() -> None:
    segments = random_segments(SHAPES, VOCAB)
    start, ours, plain = random_model(), random_model(), random_model()
    our_update(ours, segments)()
    plain_update(plain, segments)()
    moved = torch.cat([(a - b).flatten() for a, b in zip(ours.parameters(), start.parameters(), strict=True)])
    other = torch.cat([(a - b).flatten() for a, b in zip(plain.parameters(), start.parameters(), strict=True)])
    assert moved.abs().max() > 0
    assert (moved - other).abs().max() < 1e-6


def allocate(mib: int, times: int) -> Callable[[], Callable[[], object]]:
    """A call that fills `mib` MiB, `times` times one after the other."""

    def prepare() -> Callable[[], object]:
        torch.ones(2**18)  # first calls load code
        return lambda: [torch.ones(mib * 2**18).sum().item() for _ in range(times)]

    return prepare


def test_the_peak_is_that_of_the_largest_moment_and_not_the_sum() -> None:
    once, thrice = peak_growth(allocate(64, 1)), peak_growth(allocate(64, 3))
    assert 60 < once < 80
    assert 60 < thrice < 80
    assert peak_growth(allocate(16, 1)) < 32


def test_what_the_preparation_allocates_does_not_count() -> None:
    def prepare() -> Callable[[], object]:
        kept = torch.ones(64 * 2**18)
        return lambda: kept[0].item()

    assert peak_growth(prepare) < 16


def test_every_group_has_a_signal() -> None:
    assert alternate_rewards(5) == [1.0, 0.0, 1.0, 0.0, 1.0]


def test_the_smallest_random_model_has_the_shapes_of_the_micro_base() -> None:
    base = load_policy(ROOT / BASE)
    shapes = {name: tensor.shape for name, tensor in random_qwen(128, 4, 320).named_parameters()}
    assert shapes == {name: tensor.shape for name, tensor in base.named_parameters()}


def test_the_limits_of_decoding_count_every_weight_once() -> None:
    """1e6 weights: 2e6 flop a token, 4e6 bytes a step whatever the batch."""
    found = bounds(1_000_000, 8, {"flop_per_s": 2e9, "bytes_per_s": 4e8})
    assert found == {"compute_bound_per_s": 1000.0, "memory_bound_per_s": 800.0}
