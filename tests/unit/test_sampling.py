"""Counter-based uniforms: pure, apart for every key, uniform (thinker-spec 11)."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import dosematch
from dosematch.sampling import philox_key, uniforms

KEY = {"study": "thinker", "seed": 42, "run": 1, "step": 3, "question": "0123456789ab", "stage": "fast", "rollout": 0}
keys = st.fixed_dictionaries(
    {
        "study": st.sampled_from(["thinker", "t5"]),
        "seed": st.integers(0, 10**6),
        "run": st.integers(1, 5),
        "step": st.integers(0, 200),
        "question": st.text(max_size=12),
        "stage": st.sampled_from(["fast", "verify", "slow"]),
        "rollout": st.integers(0, 64),
    }
)


@given(key=keys, n=st.integers(0, 50))
def test_uniforms_are_a_pure_function_with_values_in_the_half_open_interval(key, n):
    values = uniforms(n, **key)
    assert values.shape == (n,)
    assert values.dtype == np.float64
    assert np.all((values >= 0) & (values < 1))
    np.testing.assert_array_equal(values, uniforms(n, **key))


@given(key=keys, n=st.integers(0, 30), more=st.integers(0, 1000))
def test_fewer_uniforms_are_a_prefix_of_more(key, n, more):
    np.testing.assert_array_equal(uniforms(n, **key), uniforms(n + more, **key)[:n])


@given(a=keys, b=keys)
def test_different_counters_share_no_uniform(a, b):
    if a != b:
        assert not set(uniforms(5, **a)) & set(uniforms(5, **b))


@pytest.mark.parametrize("name", KEY)
def test_every_part_of_the_counter_matters(name):
    value = KEY[name]
    changed = KEY | {name: value + 1 if isinstance(value, int) else value + "0"}
    assert not set(uniforms(50, **KEY)) & set(uniforms(50, **changed))


def test_neighbouring_parts_do_not_run_into_each_other():
    pairs = [("1", 11), ("11", 1), ("111", 0), ("", 111)]
    assert len({uniforms(1, **(KEY | {"stage": stage, "rollout": rollout}))[0] for stage, rollout in pairs}) == 4
    assert (
        len({uniforms(1, **(KEY | {"seed": seed, "run": run}))[0] for seed, run in [(1, 12), (11, 2), (112, 1)]}) == 3
    )


def test_the_order_of_the_named_parts_does_not_matter():
    np.testing.assert_array_equal(philox_key(a=1, b="x"), philox_key(b="x", a=1))


def test_another_process_draws_the_same_uniforms():
    code = f"from dosematch.sampling import uniforms; print(uniforms(3, **{KEY!r}).tolist())"
    environment = os.environ | {"PYTHONPATH": str(Path(dosematch.__file__).parents[1]), "PYTHONHASHSEED": "1"}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == str(uniforms(3, **KEY).tolist())


def test_one_rollout_is_uniform():
    assert stats.kstest(uniforms(20_000, **KEY), "uniform").pvalue > 0.001


@pytest.mark.parametrize("name", ["rollout", "step", "seed", "run"])
def test_first_tokens_of_neighbouring_counters_are_uniform(name):
    firsts = [uniforms(1, **(KEY | {name: i}))[0] for i in range(2000)]
    assert stats.kstest(firsts, "uniform").pvalue > 0.001


def test_neighbouring_rollouts_are_uncorrelated():
    a, b = (uniforms(20_000, **(KEY | {"rollout": rollout})) for rollout in (0, 1))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.03
    assert max(Counter(np.concatenate([a, b]).tolist()).values()) == 1
