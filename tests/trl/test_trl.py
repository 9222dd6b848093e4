"""Loss and gradient equal those of TRL's own training loop: `make test-trl`."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dosematch.benchmarks.workload import grpo_settings, prompts, sampled
from dosematch.objectives import group_advantages
from dosematch.policy import load_policy, load_tokenizer
from dosematch.rollout.engine import Completion
from dosematch.rollout.torch_engine import TorchEngine
from dosematch.settings import TrainSettings

pytest.importorskip("trl")
from dosematch.benchmarks import trl_grpo, workload

BASE = "resources/micro_base"
GROUP, TOKENS = 8, 64
Load = Callable[[], PreTrainedModel]
Compare = Callable[[str], dict[str, float]]


@pytest.fixture
def load() -> Load:
    return partial(load_policy, BASE)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(BASE)


@pytest.fixture
def settings() -> TrainSettings:
    return grpo_settings(GROUP, TOKENS, 3)


@pytest.fixture
def compare(load: Load, tokenizer: PreTrainedTokenizerBase, settings: TrainSettings) -> Compare:
    """The gaps of one loss type on one group of natural lengths."""
    prompt = prompts(tokenizer, 50)[0]
    rollouts = TorchEngine(load(), tokenizer.eos_token_id).generate(sampled(prompt, GROUP, TOKENS))
    assert len({len(rollout.token_ids) for rollout in rollouts}) > 2
    return partial(trl_grpo.agreement, load, tokenizer, prompt, rollouts, settings)


@pytest.mark.parametrize("loss_type", ["dr_grpo", "cispo"])
def test_loss_and_gradient_are_those_of_trl(compare: Compare, loss_type: str) -> None:
    gaps = compare(loss_type)
    assert gaps["loss_trl"] != 0.0
    assert gaps["loss_relative_gap"] < 1e-5
    assert gaps["gradient_relative_gap"] < 1e-5


def test_another_length_normalisation_is_noticed(compare: Compare) -> None:
    gaps = compare("grpo")  # TRL's mean over each rollout's own tokens
    assert gaps["gradient_relative_gap"] > 0.1


def test_another_standard_deviation_is_noticed(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    def biased(rewards: Sequence[float]) -> list[float]:
        """Advantages with ddof 0."""
        factor = (len(rewards) / (len(rewards) - 1)) ** 0.5
        return [factor * advantage for advantage in group_advantages(rewards) or []]

    monkeypatch.setattr(workload, "group_advantages", biased)
    gaps = compare("dr_grpo")
    assert gaps["gradient_relative_gap"] > 0.05
    assert gaps["loss_relative_gap"] > 0.05


def test_every_step_of_both_loops_is_timed_once(
    load: Load, tokenizer: PreTrainedTokenizerBase, settings: TrainSettings
) -> None:
    seen: list[list[Completion]] = []
    clock = trl_grpo.Alternating(lambda: seen.append([]))
    trainer = trl_grpo.grpo_trainer(load(), tokenizer, ["a", "b", "c"], settings, callbacks=[clock])
    trainer.train()
    assert len(clock.times) == len(seen) == 3
    assert all(theirs > ours >= 0 for ours, theirs in clock.times)
    assert trainer.state.num_input_tokens_seen == 3 * GROUP * (TOKENS + 1)  # prompts of one token
