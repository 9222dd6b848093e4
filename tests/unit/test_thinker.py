"""The four-stage episode: verification rewards, stages and isolation (thinker-spec 5.2, 6; C3 to C7, C20)."""

from dataclasses import replace
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dosematch.backward import backward
from dosematch.episodes.anchors import Anchor
from dosematch.episodes.thinker import thinker
from dosematch.objectives import clamped, group_advantages, verdict_rewards

from ..tiny import (
    ISOLATED,
    SHARED,
    STAGES,
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
MIXED = (True, False, False, False)
YES, NO, UNCLEAR = r"\boxed{Yes}", r"\boxed{No}", "perhaps"
RIGHT = ["Yes", "No", "No", "No"]
WRONG = ["No", "Yes", "Yes", "Yes"]
binary = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=8).filter(lambda b: len(set(b)) > 1)


# Rewards


@pytest.mark.parametrize(("weight", "gap"), [(1 / 1.7, 3.399e-4), (1 / 0.3, 6.0e-5)])
def test_a_weight_common_to_a_group_cancels_but_for_epsilon(weight, gap):
    rewards = [1.0, 0.0, 0.0, 0.0]
    limit = group_advantages(rewards, epsilon=0.0)
    weighted = group_advantages([weight * reward for reward in rewards], epsilon=1e-4)
    assert limit is not None and weighted is not None
    gaps = [1 - w / a for w, a in zip(weighted, limit, strict=True)]
    assert gaps == pytest.approx([1e-4 / (weight * 0.5 + 1e-4)] * 4, rel=1e-6)
    assert gaps == pytest.approx([gap] * 4, rel=1e-3)


@given(rewards=binary, weight=st.floats(1 / 1.7, 1 / 0.3))
def test_a_common_weight_cancels_entirely_as_epsilon_vanishes(rewards, weight):
    weighted = group_advantages([weight * reward for reward in rewards], epsilon=0.0)
    assert weighted == pytest.approx(group_advantages(rewards, epsilon=0.0), abs=1e-12)


def test_without_division_by_sigma_a_weight_would_not_cancel():
    def centred(rewards):
        return [reward - fmean(rewards) for reward in rewards]

    small, large = (centred(verdict_rewards(MIXED, ["Yes"] * 4, p)) for p in (0.85, 0.15))
    assert [b / a for a, b in zip(small, large, strict=True)] == pytest.approx([(1 / 0.3) / (1 / 1.7)] * 4)


@pytest.mark.parametrize(
    ("verdicts", "pass_rate", "expected"),
    [
        (["Yes"] * 4, 0.3, [1.49982, -0.49994, -0.49994, -0.49994]),
        (["No"] * 4, 0.3, [-1.49958, 0.49986, 0.49986, 0.49986]),
        (RIGHT, 0.3, [1.499685, -0.499895, -0.499895, -0.499895]),
        (WRONG, 0.3, None),
        (["Invalid"] * 4, 0.3, None),
        (RIGHT, 0.5, None),
    ],
)
def test_advantages_of_verdicts_on_a_mixed_group_have_the_published_values(verdicts, pass_rate, expected):
    advantages = group_advantages(verdict_rewards(MIXED, verdicts, pass_rate))
    assert advantages == (None if expected is None else pytest.approx(expected, abs=6e-6))


@given(
    correct=st.booleans(),
    verdict=st.sampled_from(["Yes", "No", "Invalid"]),
    size=st.integers(2, 8),
    p=st.floats(0.15, 0.85),
)
def test_equal_verdicts_on_a_homogeneous_group_give_no_signal(correct, verdict, size, p):
    assert group_advantages(verdict_rewards([correct] * size, [verdict] * size, p)) is None


@given(
    group=st.lists(st.tuples(st.booleans(), st.sampled_from(["Yes", "No", "Invalid"])), min_size=2, max_size=8),
    p=st.floats(0.15, 0.85),
)
def test_inverse_and_complementary_weights_give_the_same_advantages(group, p):
    correct, verdicts = zip(*group, strict=True)
    inverse = verdict_rewards(correct, verdicts, p)
    agrees = [v == ("Yes" if c else "No") for c, v in group]
    complementary = [(1 - p if c else p) * agree for c, agree in zip(correct, agrees, strict=True)]
    a, b = (group_advantages(rewards, epsilon=0.0, floor=1e-9) for rewards in (inverse, complementary))
    assert (a is None) == (b is None)
    assert a is None or a == pytest.approx(b, abs=1e-9)


@given(c=st.booleans(), verdict=st.sampled_from(["Yes", "No", "Invalid"]), p=st.floats(0.15, 0.85))
def test_only_an_agreeing_verdict_is_rewarded(c, verdict, p):
    [reward] = verdict_rewards([c], [verdict], p)
    expected = {(True, "Yes"): 1 / (2 * p), (False, "No"): 1 / (2 * (1 - p))}
    assert reward == pytest.approx(expected.get((c, verdict), 0.0))


@pytest.mark.parametrize(("rate", "of_yes", "of_no"), [(0.01, 3.3333, 0.5882), (0.99, 0.5882, 3.3333), (0.5, 1.0, 1.0)])
def test_the_pass_rate_is_clamped(rate, of_yes, of_no):
    assert verdict_rewards([True, False], ["Yes", "No"], clamped(rate)) == pytest.approx([of_yes, of_no], abs=5e-5)


@given(rate=st.floats(0, 1))
def test_weights_stay_within_their_bounds(rate):
    p = clamped(rate)
    assert p == rate or not 0.15 <= rate <= 0.85
    for weight in verdict_rewards([True, False], ["Yes", "No"], p):
        assert 1 / 1.7 - 1e-12 <= weight <= 1 / 0.3 + 1e-12


# The episode, with texts that are given


@pytest.fixture(scope="module")
def model():
    return random_model()


FAST = [completion(text) for text in ("is 3", "is 4", "is 5", "no")]
CHECKS = [completion(text) for text in (YES, YES, NO, UNCLEAR)]
AGAIN = [completion("so 3"), completion("so 9"), completion("it is 3", ended=True)]
SUMMARIES = [completion("= 3"), completion("= 33", ended=False)]
ANCHOR = Anchor("0" * 12, 0, (40, 41), (42, 43, 0))
GROUP = {"fast": [{"n": 4, "max_tokens": 6}], "censor": True}


def ids(text):
    return tuple(byte_tokenizer().encode(text))


PROMPT = ids(f"{ITEM.question}:")


def episode(model, switches, stages=(FAST, CHECKS, AGAIN, SUMMARIES), pass_rate=0.5, engine=None):
    context = scripted_context(engine or Scripted(*stages), model, GROUP | switches, pass_rate)
    context.anchors.add([ANCHOR] * context.arm.anchor)
    return thinker(ITEM, context)


def gradient(model, *args, **options):
    """Gradient and losses of one episode."""
    made = episode(model, *args, **options)
    model.zero_grad(set_to_none=True)
    segments = [replace(s, drawn=None) for s in made.segments]
    result = backward(model, segments, accumulation=1, micro_batch_tokens=10**6)
    return flat_gradient(model), result


def test_every_stage_reads_the_dialogue_that_belongs_to_it(model):
    engine = Scripted(FAST, CHECKS, AGAIN, SUMMARIES)
    episode(model, SHARED, engine=engine)
    fast, verify, slow, summary = ([request.prompt_ids for request in asked] for asked in engine.asked)
    texts = ["is 3", "is 4", "is 5", "no"]
    checks = [YES, YES, NO, UNCLEAR]
    assert fast == [PROMPT] * 4
    assert verify == [PROMPT + ids(f"{text}v:") for text in texts]
    assert slow == [PROMPT + ids(f"{texts[i]}v:{checks[i]}s:") for i in (1, 2, 3)]
    assert summary == [PROMPT + ids(f"{text}t:") for text in ("so 3", "it is 3")]
    assert 0 not in {token for prompts in (verify, slow, summary) for prompt in prompts for token in prompt}


def test_stages_have_random_numbers_and_limits_of_their_own(model):
    engine = Scripted(FAST, CHECKS, AGAIN, SUMMARIES)
    episode(model, SHARED, engine=engine)
    assert [{request.max_tokens for request in asked} for asked in engine.asked] == [{6}, {4}, {6}, {6}]
    draws = {request.uniforms[:4].tobytes() for asked in engine.asked for request in asked}
    assert len(draws) == 4 + 4 + 3 + 2


def test_the_record_says_what_happened(model):
    made = episode(model, SHARED, pass_rate=0.4)
    assert made.record["fast_correct"] == [True, False, False, False]
    assert made.record["verdicts"] == ["Yes", "Yes", "No", "Invalid"]
    assert made.record["verify_acc"] == 0.5
    assert (made.record["n_slow"], made.record["slow_acc"]) == (3, pytest.approx(2 / 3))
    assert (made.record["n_summary"], made.record["summary_acc"]) == (2, 1.0)
    assert made.record["pbar_ema"] == 0.4
    stages = {"fast": FAST, "verify": CHECKS, "slow": AGAIN, "summary": SUMMARIES}
    assert made.generated == {name: sum(len(c.token_ids) for c in stage) for name, stage in stages.items()}


def test_later_stages_of_a_solved_question_do_not_happen(model):
    made = episode(model, SHARED, (FAST[:1] * 4, CHECKS[:1] * 4))
    assert made.generated["slow"] == made.generated["summary"] == made.record["n_slow"] == 0
    assert made.record["slow_acc"] is made.record["summary_acc"] is None


@pytest.mark.parametrize(("fast", "check"), [("is 3", YES), ("is 3", NO), ("is 3", UNCLEAR)])
def test_equal_verdicts_on_equal_attempts_move_no_parameter(model, fast, check):
    moved, result = gradient(model, SHARED, ([completion(fast)] * 4, [completion(check)] * 4))
    assert not moved.any()
    assert result.loss == {}


@pytest.mark.parametrize("check", [YES, NO, UNCLEAR])
def test_equal_verdicts_on_failures_add_no_verification_term(model, check):
    stages = ([FAST[1]] * 4, [completion(check)] * 4, [completion("so 9")] * 4)
    moved, result = gradient(model, SHARED, stages)
    assert not moved.any()
    assert result.loss == {}


def test_the_shared_actor_trains_every_stage_in_its_own_dialogue(model):
    segments = episode(model, SHARED | {"summary_sft": False}).segments
    kinds = {kind: [s for s in segments if s.kind == kind] for kind in ("pg", "verify", "slow", "summary_pg")}
    assert [len(found) for found in kinds.values()] == [4, 4, 3, 0]  # both summaries are right: no signal
    assert [s.context_ids for s in kinds["slow"]] == [
        PROMPT + ids(f"{text}v:{check}s:") for text, check in (("is 4", YES), ("is 5", NO), ("no", UNCLEAR))
    ]
    slow = group_advantages([1.0, 0.0, 1.0])
    assert [s.weight for s in kinds["slow"]] == pytest.approx([a / (3 * 8.0) for a in slow])
    verify = group_advantages(verdict_rewards(MIXED, ["Yes", "Yes", "No", "Invalid"], 0.5))
    assert [s.weight for s in kinds["verify"]] == pytest.approx([a / (4 * 8.0) for a in verify])


def test_one_slow_answer_alone_is_no_group(model):
    stages = ([FAST[0]] * 3 + [FAST[1]], CHECKS, [completion("so 3")], [completion("= 3")])
    kinds = {s.kind for s in episode(model, SHARED | {"summary_sft": False}, stages).segments}
    assert kinds == {"pg", "verify"}


def test_only_right_summaries_that_ended_are_trained_on(model):
    [segment] = [s for s in episode(model, SHARED).segments if s.kind == "distill"]
    assert (segment.context_ids, segment.target_ids) == (PROMPT, SUMMARIES[0].token_ids)
    assert segment.weight == pytest.approx(1 / len(SUMMARIES[0].token_ids))
    wrong = (FAST, CHECKS, AGAIN, [completion("= 4"), completion("= 5")])
    assert "distill" not in {s.kind for s in episode(model, SHARED, wrong).segments}


# Isolation


def directly(model):
    """Gradient of an isolated step written down: Fast policy gradient, gated mix for the summary, gated anchor."""
    model.zero_grad(set_to_none=True)
    advantages = group_advantages([float(c) for c in MIXED])
    loss = -sum(
        a * reference_logprobs(model, PROMPT, c.token_ids).sum() / (4 * 8.0)
        for a, c in zip(advantages, FAST, strict=True)
    )
    target = SUMMARIES[0].token_ids

    def all_logprobs(context):
        tokens = torch.tensor([*context, *target]).unsqueeze(0)
        return model(tokens, use_cache=False).logits[0, len(context) - 1 : -1].log_softmax(-1)

    with torch.no_grad():
        teacher = all_logprobs(PROMPT + ids("so 3t:")).topk(16, -1)
        q = teacher.values.softmax(-1)
    student = all_logprobs(PROMPT)
    hard = student.gather(-1, torch.tensor(target).unsqueeze(-1)).squeeze(-1)
    p = hard.detach().exp()
    kl = (q * (q.log() - student.gather(-1, teacher.indices))).sum(-1)
    loss = loss + (4 * p * (1 - p) * (0.5 * -hard + 0.5 * kl)).mean()
    anchor = reference_logprobs(model, ANCHOR.prompt_ids, ANCHOR.token_ids)
    p = anchor.detach().exp()
    loss = loss - 0.5 * (4 * p * (1 - p) * anchor).mean()
    loss.backward()
    return flat_gradient(model)


def test_an_isolated_step_is_fast_summary_and_anchor_after_the_bare_question(model):
    found, result = gradient(model, ISOLATED)
    assert result.loss.keys() == {"pg", "distill", "anchor"}
    assert relative_gap(found, directly(model)) < 1e-5


def unlikely(stage):
    return [replace(c, logprobs=(-7.0,) * len(c.logprobs)) for c in stage]


FROZEN = {
    "log-probabilities of later stages": (FAST, unlikely(CHECKS), unlikely(AGAIN), unlikely(SUMMARIES)),
    "verifications": (FAST, [completion(text) for text in (NO, "x", YES, YES)], AGAIN, SUMMARIES),
    "a slow answer that failed": (FAST, CHECKS, [AGAIN[0], completion("so 77"), AGAIN[2]], SUMMARIES),
}


@pytest.mark.parametrize("stages", FROZEN.values(), ids=FROZEN)
def test_an_isolated_step_does_not_depend_on(model, stages):
    before, _ = gradient(model, ISOLATED)
    after, _ = gradient(model, ISOLATED, stages)
    assert torch.equal(after, before)


def test_a_shared_actor_depends_on_its_verifications_and_slow_answers(model):
    before, _ = gradient(model, SHARED)
    for name in ("verifications", "a slow answer that failed"):
        after, _ = gradient(model, SHARED, FROZEN[name])
        assert relative_gap(after, before) > 1e-2


def test_a_solved_dialogue_reaches_an_isolated_step_through_the_teacher_alone(model):
    other = (FAST, CHECKS, [completion("now 3"), *AGAIN[1:]], SUMMARIES)
    with_teacher = [gradient(model, ISOLATED, stages)[0] for stages in (FROZEN["verifications"], other)]
    assert relative_gap(*with_teacher) > 1e-6
    alone = [gradient(model, ISOLATED | {"alpha": 1.0}, stages)[0] for stages in (FROZEN["verifications"], other)]
    assert torch.equal(*alone)


def test_every_isolated_segment_follows_a_bare_question(model):
    for segment in episode(model, ISOLATED).segments:
        assert segment.context_ids in (PROMPT, ANCHOR.prompt_ids)


# Anchors


def test_one_anchor_is_replayed_per_accepted_summary(model):
    made = episode(model, ISOLATED)
    assert (made.record["anchor_n"], made.record["anchor_sha1"]) == (1, [ANCHOR.sha1_12])
    nothing = (FAST, CHECKS, [completion("so 9")] * 3)
    assert episode(model, ISOLATED, nothing).record["anchor_n"] == 0
    assert episode(model, ISOLATED | {"anchor_on_failure": True}, nothing).record["anchor_n"] == 1
    solved = (FAST[:1] * 4, CHECKS)
    assert episode(model, ISOLATED | {"anchor_on_failure": True}, solved).record["anchor_n"] == 0


def test_right_rollouts_that_ended_become_anchors(model):
    stages = ([completion("3"), completion("33", ended=False), completion("4"), completion("5")], CHECKS, AGAIN[1:])
    stages = (*stages[:2], [completion("so 9")] * 2)
    [anchor] = episode(model, STAGES | {"summary_sft": True}, stages).anchors
    assert anchor == Anchor(ITEM.sha1_12, ITEM.step, PROMPT, completion("3").token_ids)
