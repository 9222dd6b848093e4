"""Paired timing and the rollout benchmark's reference."""

from collections.abc import Callable

import pytest

from dosematch import benchmark

from ..tiny import random_model


def test_sides_alternate_and_the_warm_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def seconds(run: Callable[[], str]) -> float:
        """2 s for ours and 3, 3, 5, 5 s for theirs; the warm-up is far off."""
        calls.append(run())
        return 1e9 if len(calls) <= 2 * benchmark.WARM_UP else 2.0 if calls[-1] == "ours" else 1.0 + len(calls) // 2

    monkeypatch.setattr(benchmark, "seconds", seconds)
    result = benchmark.paired(lambda: "ours", lambda: "theirs", repeats=4)
    pairs = [tuple(calls[i : i + 2]) for i in range(0, len(calls), 2)]
    assert pairs == [("theirs", "ours"), ("ours", "theirs")] * 2 + [("theirs", "ours")]
    assert result["ours_s"] == 2.0
    assert result["ratio_range"] == [1.5, 2.5]
    assert result["ratio"] == result["theirs_s"] / 2.0 == 2.0


def test_padding_and_batches_do_not_change_the_reference() -> None:
    model, prompts = random_model(), [(5, 6, 7), (8,), (9, 10)]
    limits = {"max_new_tokens": 6, "min_new_tokens": 0}
    together = benchmark.by_transformers(model, prompts, 3, limits, 0)
    assert together == benchmark.by_transformers(model, prompts, 1, limits, 0)
    assert all(1 <= len(row) <= 6 for row in together)
