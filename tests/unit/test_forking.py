"""Prefix forking (thinker-spec 7; properties C16 to C19)."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dosematch.backward import backward, segment_logits, token_entropies, token_losses
from dosematch.episodes.anchors import Anchor
from dosematch.episodes.forking import Prefix, accepted, fork_segments, fork_starts, forking, select_prefixes, windows
from dosematch.objectives import group_advantages, target_logprobs
from dosematch.rollout.engine import Completion

from ..tiny import (
    FORKING,
    PAPER_FORK,
    Scripted,
    byte_tokenizer,
    completion,
    flat_gradient,
    random_model,
    reference_logprobs,
    relative_gap,
    scripted_context,
    stream,
)

ITEM = stream(1, answers="3")[0]
ANCHOR = Anchor("0" * 12, 0, (40, 41), (42, 43, 0))


def closed(first: int, last: int) -> range:
    return range(first, last + 1)


# Windows


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, []),
        (63, []),
        (64, [closed(32, 48), closed(1, 0)]),
        (71, [closed(32, 55), closed(1, 0)]),
        (72, [closed(32, 56), closed(56, 56)]),
        (112, [closed(32, 96), closed(56, 96)]),
        (176, [closed(32, 160), closed(88, 160)]),
        (192, [closed(32, 160), closed(96, 176)]),
        (304, [closed(32, 160), closed(96, 288)]),
        (512, [closed(32, 160), closed(96, 288)]),
        (768, [closed(32, 160), closed(96, 288)]),
    ],
)
def test_windows_have_the_published_ends(length, expected):
    assert windows(length, PAPER_FORK) == expected  # ranges without members are equal


@given(length=st.integers(0, 2000))
def test_forks_leave_a_start_and_a_margin(length):
    for window in windows(length, PAPER_FORK):
        assert all(32 <= t <= min(288, length - 16) for t in window)


# Selection


def with_peaks(length: int, **peaks: float) -> list[float]:
    """Entropies of 1 with higher ones at some positions (`t40=5.0`)."""
    entropies = [1.0] * length
    for name, value in peaks.items():
        entropies[int(name[1:])] = value
    return entropies


def test_planted_peaks_in_both_windows_are_selected_and_one_outside_never():
    entropies = with_peaks(304, t31=9.0, t40=5.0, t200=4.0, t289=9.0, t0=9.0, t303=9.0)
    found = select_prefixes([(2, entropies)], PAPER_FORK.model_copy(update={"k": 2}))
    assert found == [Prefix(2, 1, 40, 5.0), Prefix(2, 2, 200, 4.0)]


@given(data=st.data(), length=st.integers(64, 400))
def test_a_planted_peak_is_found_wherever_it_lies_inside_and_nowhere_else(data, length):
    t = data.draw(st.integers(0, length - 1))
    inside = [number for number, window in enumerate(windows(length, PAPER_FORK), 1) if t in window]
    prefixes = select_prefixes([(0, with_peaks(length, **{f"t{t}": 2.0}))], PAPER_FORK)
    assert len(prefixes) == PAPER_FORK.k
    assert ((prefixes[0].t_fork, prefixes[0].entropy) == (t, 2.0)) is bool(inside)
    assert {p.window for p in prefixes if p.t_fork == t and p.entropy == 2.0} == set(inside[:1])


def test_the_earliest_of_equal_positions_is_taken():
    found = select_prefixes([(0, [1.0] * 304)], PAPER_FORK.model_copy(update={"k": 2}))
    assert [(p.window, p.t_fork) for p in found] == [(1, 32), (2, 96)]


def test_a_position_that_both_windows_offer_counts_once():
    found = select_prefixes([(0, with_peaks(304, t100=5.0))], PAPER_FORK)
    assert found == [Prefix(0, 1, 100, 5.0)] * 4


def test_the_most_uncertain_of_all_failures_are_taken_and_few_are_cycled():
    failed = [(0, with_peaks(70, t40=2.0)), (1, with_peaks(304, t50=4.0, t250=3.0)), (3, with_peaks(63, t40=9.0))]
    ranked = [Prefix(1, 1, 50, 4.0), Prefix(1, 2, 250, 3.0), Prefix(0, 1, 40, 2.0)]
    assert select_prefixes(failed, PAPER_FORK) == [*ranked, ranked[0]]
    assert select_prefixes(failed, PAPER_FORK.model_copy(update={"k": 2})) == ranked[:2]
    assert select_prefixes(failed, PAPER_FORK.model_copy(update={"k": 7})) == [*ranked, *ranked, ranked[0]]


@pytest.mark.parametrize("failed", [[], [(0, [1.0] * 63)], [(0, []), (1, [2.0] * 10)]])
def test_without_a_long_failure_nothing_is_forked(failed):
    assert select_prefixes(failed, PAPER_FORK) == []


def test_entropies_are_those_of_the_whole_distribution():
    model = random_model()
    sequences = [((5, 6, 7), (8, 9, 10)), ((5,), (6, 7, 8, 9, 0))]
    for (context, target), found in zip(sequences, token_entropies(model, sequences), strict=True):
        logits = model(torch.tensor([[*context, *target]]), use_cache=False).logits[0, len(context) - 1 : -1]
        expected = torch.distributions.Categorical(logits=logits.double()).entropy()
        assert found == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize(("size", "entropy"), [(0.0, math.log(257)), (1e6, 0.0)])
def test_a_uniform_distribution_has_the_largest_entropy_and_a_certain_one_none(size, entropy):
    model = random_model(tie_word_embeddings=False)
    with torch.no_grad():
        model.lm_head.weight *= size
    [found] = token_entropies(model, [((5, 6), (7, 8, 9))])
    assert found == pytest.approx([entropy] * 3, abs=1e-4)


# Acceptance


def continuation(length: int, ended: bool) -> Completion:
    return Completion((5,) * (length - ended) + (0,) * ended, (-1.0,) * length, "stop" if ended else "length")


@pytest.mark.parametrize(
    ("length", "ended", "right", "taken"),
    [(896, True, True, True), (897, True, True, False), (896, False, True, False), (896, True, False, False)],
)
@pytest.mark.parametrize("kept", [32, 288])
def test_a_fork_is_taken_when_right_ended_and_short_enough(kept, length, ended, right, taken):
    assert accepted(kept, continuation(length - kept, ended), right, PAPER_FORK) is taken


# Prefix mask


def test_only_failed_parents_lose_their_tokens_before_the_smallest_fork():
    prefixes = [Prefix(0, 2, 9, 3.0), Prefix(0, 1, 4, 2.0), Prefix(2, 1, 5, 1.0), Prefix(0, 2, 9, 3.0)]
    assert fork_starts(prefixes, [-0.5, -0.5, 1.5, -0.5]) == {0: 4}
    assert fork_starts(prefixes, [-0.5, -0.5, -0.5, 1.5]) == {0: 4, 2: 5}
    assert fork_starts(prefixes, None) == {}
    assert fork_starts([], [-0.5, 0.5]) == {}


@pytest.fixture(scope="module")
def model():
    return random_model()


TARGETS = [(Prefix(0, 1, 2, 1.0), (8, 9, 10, 0)), (Prefix(1, 2, 3, 1.0), (11, 12, 13, 14, 15, 0))]


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("gate", ["none", "brier"])
def test_supervised_forks_are_means_over_tokens_then_sequences(model, mask, gate):
    context = scripted_context(Scripted(), model, FORKING | {"prefix_mask": mask, "gate": gate})
    segments = fork_segments((5, 6), TARGETS, context)
    model.zero_grad(set_to_none=True)
    result = backward(model, segments, accumulation=1, micro_batch_tokens=10**6)
    expected = 0.0
    for prefix, tokens in TARGETS:
        logprobs = reference_logprobs(model, (5, 6), tokens)[prefix.t_fork if mask else 0 :].double()
        p = logprobs.exp()
        losses = -logprobs * (4 * p * (1 - p) if gate == "brier" else 1)
        expected += losses.mean().item() / 2
    assert result.loss["distill"] == pytest.approx(expected, rel=1e-4)
    loss_tokens = (2 + 3) if mask else (4 + 6)
    assert result.tokens_loss == {"distill": loss_tokens}


def test_a_start_of_zero_is_no_mask(model):
    masked, plain = (
        fork_segments((5, 6), [(replace(prefix, t_fork=0), tokens) for prefix, tokens in TARGETS], context)
        for context in (scripted_context(Scripted(), model, FORKING | {"prefix_mask": mask}) for mask in (True, False))
    )
    assert masked == plain


def prefix_influence(model, segments, t: int) -> float:
    """How much the loss would change with logits of target positions before `t`."""
    logits = segment_logits(model, [(s.context_ids, s.target_ids) for s in segments])
    total = 0.0
    for segment, own in zip(segments, logits, strict=True):
        own = own.detach().requires_grad_()
        logprobs = target_logprobs(own, torch.tensor(segment.target_ids))
        (segment.weight * token_losses(segment, logprobs, own, None)[segment.start :].sum()).backward()
        total += float(own.grad[:t].abs().sum())
        assert own.grad[t:].any()
    return total


@pytest.mark.parametrize("mask", [True, False])
def test_logits_before_the_fork_matter_without_mask_alone(model, mask):
    context = scripted_context(Scripted(), model, FORKING | {"prefix_mask": mask})
    segments = fork_segments((5, 6), TARGETS[:1], context)
    assert (prefix_influence(model, segments, TARGETS[0][0].t_fork) == 0.0) is mask


# The episode, with texts that are given

GROUP = {"fast": [{"n": 4, "max_tokens": 6}], "censor": True}
FAST = [completion(text) for text in ("is 3", "is 4", "no", "5")]  # the last is too short to be forked
FORKS = [completion("=3"), completion("=3", ended=False), completion("=8")]


def ids(text):
    return tuple(byte_tokenizer().encode(text))


PROMPT = ids(f"{ITEM.question}:")


def episode(model, switches=None, fast=FAST, forks=FORKS, engine=None):
    engine = engine or Scripted(fast, forks)
    context = scripted_context(engine, model, GROUP | FORKING | (switches or {}))
    context.anchors.add([ANCHOR])
    return forking(ITEM, context)


def test_forks_continue_failures_from_their_most_uncertain_positions(model):
    engine = Scripted(FAST, FORKS)
    made = episode(model, engine=engine)
    assert [request.max_tokens for request in engine.asked[1]] == [6] * 3
    parents = made.record["fork_parents"]
    entropies = [parent["entropy"] for parent in parents]
    ranked = sorted(set(entropies), reverse=True)
    assert entropies == [ranked[i % len(ranked)] for i in range(3)]
    assert len(ranked) > 1
    for request, parent in zip(engine.asked[1], parents, strict=True):
        tokens, t = FAST[parent["rollout"]].token_ids, parent["t_fork"]
        assert parent["rollout"] in (1, 2)
        assert request.prompt_ids == PROMPT + tokens[:t]
        [entropies] = token_entropies(model, [(PROMPT, tokens)])
        assert parent["entropy"] == pytest.approx(entropies[t], abs=1e-4)
        window = windows(len(tokens), scripted_context(engine, model, FORKING).arm.fork)[parent["window"] - 1]
        assert t == max(window, key=entropies.__getitem__)
    assert made.record["fork_accepted"] == [True, False, False]
    assert made.record["n_fork"] == 3
    assert made.entropy_tokens == len(FAST[1].token_ids) + len(FAST[2].token_ids)
    assert made.generated == {
        name: sum(len(c.token_ids) for c in s) for name, s in {"fast": FAST, "fork": FORKS}.items()
    }


def test_an_accepted_fork_is_trained_whole_after_the_bare_question(model):
    made = episode(model)
    parent = made.record["fork_parents"][0]
    [segment] = [s for s in made.segments if s.kind == "distill"]
    assert segment.context_ids == PROMPT
    assert segment.target_ids == FAST[parent["rollout"]].token_ids[: parent["t_fork"]] + FORKS[0].token_ids
    assert segment.start == parent["t_fork"]
    assert segment.weight == pytest.approx(1 / len(FORKS[0].token_ids))
    assert segment.gated
    assert segment.alpha == 1.0
    assert (made.record["anchor_n"], made.record["anchor_sha1"]) == (1, [ANCHOR.sha1_12])


@pytest.mark.parametrize("mask", [True, False])
def test_the_policy_gradient_of_a_failed_parent_starts_at_its_first_fork(model, mask):
    made = episode(model, {"prefix_mask": mask})
    first = {}
    for parent in made.record["fork_parents"]:
        first[parent["rollout"]] = min(parent["t_fork"], first.get(parent["rollout"], 99))
    segments = [s for s in made.segments if s.kind == "pg"]
    assert [s.start for s in segments] == [first.get(i, 0) if mask else 0 for i in range(4)]
    assert [s.weight for s in segments] == pytest.approx([a / 32 for a in group_advantages([1.0, 0, 0, 0])])
    assert any(s.start for s in segments) is mask
    for segment in segments:
        if segment.start:
            assert prefix_influence(model, [segment], segment.start) == 0.0


def test_a_masked_step_is_that_of_the_loss_written_down(model):
    made = episode(model)
    model.zero_grad(set_to_none=True)
    segments = [replace(s, drawn=None) for s in made.segments]
    backward(model, segments, accumulation=1, micro_batch_tokens=10**6)
    found = flat_gradient(model)
    model.zero_grad(set_to_none=True)
    starts = {}
    for parent in made.record["fork_parents"]:
        starts[parent["rollout"]] = min(parent["t_fork"], starts.get(parent["rollout"], 99))
    loss = torch.zeros(())
    for i, (advantage, rollout) in enumerate(zip(group_advantages([1.0, 0, 0, 0]), FAST, strict=True)):
        loss = loss - advantage * reference_logprobs(model, PROMPT, rollout.token_ids)[starts.get(i, 0) :].sum() / 32
    parent = made.record["fork_parents"][0]
    target = FAST[parent["rollout"]].token_ids[: parent["t_fork"]] + FORKS[0].token_ids
    for logprobs, scale in (
        (reference_logprobs(model, PROMPT, target)[parent["t_fork"] :], 1.0),
        (reference_logprobs(model, ANCHOR.prompt_ids, ANCHOR.token_ids), 0.5),
    ):
        p = logprobs.detach().exp()
        loss = loss - scale * (4 * p * (1 - p) * logprobs).mean()
    loss.backward()
    assert relative_gap(found, flat_gradient(model)) < 1e-5


def test_a_solved_question_adds_no_fork_and_no_pass(model):
    made = episode(model, engine=Scripted([FAST[0]] * 4))
    assert made.segments == []
    assert made.generated["fork"] == made.entropy_tokens == made.record["n_fork"] == made.record["anchor_n"] == 0


def test_failures_that_are_too_short_are_not_forked(model):
    made = episode(model, engine=Scripted([FAST[3]] * 4))
    assert made.generated["fork"] == made.entropy_tokens == made.record["n_fork"] == 0


def test_forks_that_fail_leave_the_mask_and_no_target(model):
    made = episode(model, forks=[completion("=8")] * 3)
    assert {s.kind for s in made.segments} == {"pg"}
    assert any(s.start for s in made.segments)
    assert made.record["anchor_n"] == 0
