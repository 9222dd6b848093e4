"""Thoughts, their scores, the placement of rewards and the prediction gate (t5-spec 1, tests T24 and T25)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dosematch.midtrain import pred_gate
from dosematch.midtrain.rewards import prefix_rewards, returns, thought_gain
from dosematch.midtrain.scorer import Scorer, checkpoints
from dosematch.midtrain.settings import Task
from dosematch.midtrain.thoughts import Item, Thought, action_logps, rounded, sample_thoughts
from dosematch.rollout.torch_engine import TorchEngine

from ..tiny import random_model

OPEN, CLOSE = 255, 256
TASK = Task(context=24, l_max=12, horizon=4, checkpoints=4, temperature=0.7)


def items(n: int = 5) -> list[Item]:
    generator = torch.Generator().manual_seed(3)
    made = []
    for i in range(n):
        ids = torch.randint(1, 250, (30,), generator=generator).tolist()
        made.append(Item(f"i{i}", f"d{i}", "ledger", i, (*ids[: 6 + 4 * i], OPEN), tuple(ids[-4:])))
    return made


@pytest.fixture(scope="module")
def model():
    return random_model()


@pytest.fixture(scope="module")
def thoughts(model) -> list[Thought]:
    made = sample_thoughts(TorchEngine(model, CLOSE), items(), TASK, group=1, seed=1, step=0, role="fit", batch=4)
    first = made[0]
    closed = Thought((*first.ids[:7], CLOSE), (*first.logp_q[:7], -1.0), True)
    alone = Thought((CLOSE,), (-1.0,), True)
    return [closed, alone, *made[2:]]


def separate(model, item: Item, content: tuple[int, ...] | None) -> torch.Tensor:
    """Log-probabilities of the continuation from a forward pass of its own: the oracle of packed scoring."""
    before = [*item.context, *content, CLOSE] if content is not None else [*item.context[:-1]]
    ids = torch.tensor([[*before, *item.continuation]])
    with torch.no_grad():
        logp = model(ids, use_cache=False).logits[0].log_softmax(-1)
    return torch.stack([logp[len(before) - 1 + j, token] for j, token in enumerate(item.continuation)])


@pytest.mark.parametrize("batch_tokens", [1, 100, 10_000])
def test_packed_scores_are_those_of_separate_passes(model, thoughts, batch_tokens):
    found = Scorer(random_model(), CLOSE, batch_tokens).inserted(items(), thoughts, TASK.l_max, TASK.checkpoints)
    for i, (item, thought, ends) in enumerate(zip(items(), thoughts, found.ends, strict=True)):
        assert ends == checkpoints(len(thought.ids), TASK.l_max, TASK.checkpoints)
        for k in range(TASK.checkpoints):
            end = ends[min(k, len(ends) - 1)]
            expected = separate(model, item, thought.content[:end])
            torch.testing.assert_close(found.logp[i, k], expected, atol=1e-5, rtol=0)


def test_plain_scores_are_those_of_separate_passes(model):
    found = Scorer(random_model(), CLOSE, 60).plain(items())
    for i, item in enumerate(items()):
        torch.testing.assert_close(found.logp[i], separate(model, item, None), atol=1e-5, rtol=0)


def test_packed_scores_do_not_depend_on_the_other_rows_and_their_padding(model, thoughts):
    scorer = Scorer(random_model(), CLOSE, 10_000)
    together = scorer.inserted(items(), thoughts, TASK.l_max, 4)
    alone = scorer.inserted(items()[:1], thoughts[:1], TASK.l_max, 4)
    torch.testing.assert_close(together.logp[:1], alone.logp, atol=1e-5, rtol=0)
    torch.testing.assert_close(together.closing[:1], alone.closing, atol=1e-5, rtol=1e-5)


def test_a_branch_sees_neither_later_actions_nor_other_branches(model, thoughts):
    scorer = Scorer(random_model(), CLOSE, 10_000)
    chosen = thoughts[2]
    assert len(chosen.ids) > 4
    changed = Thought((*chosen.ids[:-1], (chosen.ids[-1] + 1) % 200 + 1), chosen.logp_q, chosen.closed)
    a = scorer.inserted(items()[2:3], [chosen], TASK.l_max, 4)
    b = scorer.inserted(items()[2:3], [changed], TASK.l_max, 4)
    torch.testing.assert_close(a.logp[0, : len(a.ends[0]) - 1], b.logp[0, : len(a.ends[0]) - 1], atol=1e-6, rtol=0)
    assert not torch.allclose(a.logp[0, -1], b.logp[0, -1], atol=1e-3)


@given(length=st.integers(1, 64), l_max=st.integers(1, 64), k=st.integers(1, 8))
def test_checkpoints_end_at_the_end_and_are_at_most_k(length, l_max, k):
    length = min(length, l_max)
    ends = checkpoints(length, l_max, k)
    assert ends == sorted(set(ends)) and ends[-1] == length and 1 <= len(ends) <= k and ends[0] >= 1


def test_rewards_telescope_to_the_gain_of_the_whole_thought(model, thoughts):
    """T24: prefix rewards and a terminal reward have the same return at the first action."""
    scorer = Scorer(random_model(), CLOSE, 10_000)
    without = scorer.plain(items()).logp
    every = scorer.inserted(items(), thoughts, TASK.l_max, 4)
    last = scorer.inserted(items(), thoughts, TASK.l_max, 1)
    sigma = 1.7
    placed = prefix_rewards(thought_gain(without.unsqueeze(1), every.logp) / sigma, every.ends, TASK.l_max)
    terminal = prefix_rewards(thought_gain(without.unsqueeze(1), last.logp) / sigma, last.ends, TASK.l_max)
    gain = thought_gain(without, last.logp[:, -1]) / sigma
    torch.testing.assert_close(returns(placed)[:, 0], gain, atol=1e-5, rtol=0)
    torch.testing.assert_close(returns(terminal)[:, 0], gain, atol=1e-5, rtol=0)
    for row, thought in enumerate(thoughts):
        assert (terminal[row].nonzero().flatten() == len(thought.ids) - 1).all()
        assert set(placed[row].nonzero().flatten().tolist()) <= {end - 1 for end in every.ends[row]}


def test_sampled_log_probabilities_are_the_trainers_until_the_sampler_is_rounded(model):
    gaps = {}
    for kind in ("fp32", "bf16", "int8"):
        engine = TorchEngine(model, CLOSE)
        engine.load_weights(rounded(model.state_dict(), kind))
        drawn = sample_thoughts(engine, items(), TASK, group=2, seed=1, step=0, role="actor", batch=64)
        doubled = [item for item in items() for _ in range(2)]
        with torch.no_grad():
            found = action_logps(model, [i.context for i in doubled], [t.ids for t in drawn], TASK.l_max, 0.7)
        gaps[kind] = max(
            abs(a - b)
            for row, thought in zip(found.tolist(), drawn, strict=True)
            for a, b in zip(row, thought.logp_q, strict=False)
        )
    assert gaps["fp32"] < 1e-4 < gaps["bf16"] and gaps["int8"] > 1e-4


def test_thoughts_are_capped_and_reproducible(model):
    engine = TorchEngine(model, CLOSE)
    arguments = {"group": 2, "seed": 1, "step": 3, "role": "actor"}
    first = sample_thoughts(engine, items(), TASK, batch=64, **arguments)
    again = sample_thoughts(engine, items(), TASK, batch=3, **arguments)
    other = sample_thoughts(engine, items(), TASK, batch=64, **{**arguments, "role": "fit"})
    assert [t.ids for t in first] == [t.ids for t in again] != [t.ids for t in other]
    for thought in first:
        assert 1 <= len(thought.ids) <= TASK.l_max
        assert thought.closed == (thought.ids[-1] == CLOSE)
        assert thought.closed or len(thought.ids) == TASK.l_max
        assert CLOSE not in thought.content


def test_padding_changes_no_log_probability(model, thoughts):
    """T25: a row's scores are its own, whatever longer rows it is batched with."""
    contexts, ids = [item.context for item in items()], [thought.ids for thought in thoughts]
    with torch.no_grad():
        together = action_logps(model, contexts, ids, TASK.l_max, 1.0)
        for i in range(len(ids)):
            alone = action_logps(model, contexts[i : i + 1], ids[i : i + 1], TASK.l_max, 1.0)
            n = len(ids[i])
            torch.testing.assert_close(together[i, :n], alone[0, :n], atol=1e-5, rtol=0)


@given(
    share=st.floats(0.01, 0.99),
    without=st.lists(st.floats(-9, -0.01), min_size=1, max_size=6),
    after=st.floats(-60, -0.01),
)
def test_a_bad_thought_costs_the_mixture_a_bounded_amount(share, without, after):
    plain = torch.tensor(without, dtype=torch.float64)
    inserted = torch.full_like(plain, after)
    exact = torch.tensor(share, dtype=torch.float64)
    mixed = pred_gate.mixed_logp(exact.logit(), plain, inserted, "prob")
    assert (mixed >= plain + torch.log1p(-exact) - 1e-12).all()
    direct = (share * inserted.exp() + (1 - share) * plain.exp()).log()
    torch.testing.assert_close(mixed, direct, atol=1e-9, rtol=1e-6)


def test_the_prediction_gate_starts_small_and_learns_which_expert_is_better():
    gate = pred_gate.PredictionGate(4, seed=0)
    torch.manual_seed(0)
    before, after = torch.randn(64, 4), torch.randn(64, 4)
    good = after[:, 0] > 0
    without = torch.full((64, 3), -2.0)
    inserted = torch.where(good, -0.5, -6.0).unsqueeze(1).expand(-1, 3)
    torch.testing.assert_close(gate(before, after), torch.full((64,), -2.0))
    optimizer = torch.optim.AdamW(gate.parameters(), lr=1e-2)
    first = pred_gate.fit(gate, optimizer, (before, after), (without, inserted), "prob", steps=200)
    logit = gate(before, after).detach()
    share = logit.sigmoid()
    assert share[good].mean() > 0.8 and share[~good].mean() < 0.2
    assert -pred_gate.mixed_logp(logit, without, inserted, "prob").mean() < first


def test_the_prediction_gate_sends_no_gradient_into_its_inputs():
    gate = pred_gate.PredictionGate(4, seed=0)
    states = torch.randn(3, 4, requires_grad=True)
    logps = torch.randn(3, 2, requires_grad=True)
    pred_gate.fit(gate, torch.optim.SGD(gate.parameters(), lr=0.1), (states, states), (logps, logps), "prob", steps=1)
    assert states.grad is None and logps.grad is None
