"""Segments to gradients: however the batch is cut, that of the loss written down directly (thinker-spec 14)."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dosematch.backward import backward, micro_batches, segment_logits, token_entropies
from dosematch.objectives import Draw, Segment, target_logprobs

from ..tiny import flat_gradient, random_model, reference_logprobs, relative_gap

EOS = 0
SEGMENTS = (
    Segment((5, 6, 7), (8, 9, EOS), 0.7),
    Segment((5,), (EOS,), -1.3),
    Segment((5, 6, 7, 8), (9, 10, 11, 12, 13, 14, 15), -0.4, kind="distill"),
    Segment((20, 21), (22, 23, 24, 25), 0.9, start=2),
    Segment((30, 31, 32, 33, 34, 35, 36, 37), (38, 39, EOS), 0.2, kind="anchor"),
    Segment((5, 6, 7), (50, 51), 0.5),
)


@pytest.fixture(scope="module")
def model():
    return random_model()


def gradient(model, segments, accumulation=1, micro_batch_tokens=10**9, **options):
    model.zero_grad(set_to_none=True)
    result = backward(model, segments, accumulation=accumulation, micro_batch_tokens=micro_batch_tokens, **options)
    return flat_gradient(model), result


def direct_loss(model, segments):
    """The loss of every kind, each sequence alone through transformers."""
    losses = {}
    for s in segments:
        logprobs = reference_logprobs(model, s.context_ids, s.target_ids)
        losses[s.kind] = losses.get(s.kind, 0.0) - s.weight * logprobs[s.start :].sum()
    return losses


def direct_gradient(model, segments):
    model.zero_grad(set_to_none=True)
    sum(direct_loss(model, segments).values()).backward()
    return flat_gradient(model)


segments_strategy = st.lists(
    st.builds(
        lambda context, target, weight, start, kind: Segment(
            tuple(context), tuple(target), weight, kind=kind, start=min(start, len(target) - 1)
        ),
        st.lists(st.integers(0, 256), min_size=1, max_size=6),
        st.lists(st.integers(0, 256), min_size=1, max_size=6),
        st.sampled_from([-1.5, -0.25, 0.5, 2.0]),
        st.integers(0, 5),
        st.sampled_from(["pg", "distill"]),
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_gradient_is_that_of_the_loss_written_down_directly(architecture, tied):
    model = random_model(architecture, tie_word_embeddings=tied)
    assert relative_gap(gradient(model, SEGMENTS)[0], direct_gradient(model, SEGMENTS)) < 1e-6


@settings(max_examples=15, deadline=None)
@given(segments=segments_strategy)
def test_the_gradient_of_random_segments_is_that_of_the_direct_loss(model, segments):
    expected = direct_gradient(model, segments)
    size = expected.norm() + sum(abs(s.weight) * len(s.target_ids) for s in segments)  # terms may cancel
    assert (gradient(model, segments)[0] - expected).norm() < 2e-6 * size


@pytest.mark.parametrize("micro_batch_tokens", [1, 7, 8, 12, 20, 33, 66, 10**9])
@pytest.mark.parametrize("order", range(2))
def test_every_cut_and_order_gives_one_gradient(model, micro_batch_tokens, order):
    segments = random.Random(order).sample(SEGMENTS, len(SEGMENTS))
    reference, expected = gradient(model, SEGMENTS)
    cut, result = gradient(model, segments, micro_batch_tokens=micro_batch_tokens)
    assert relative_gap(cut, reference) < 1e-6
    assert result.tokens_fed == expected.tokens_fed
    assert result.tokens_loss == expected.tokens_loss
    assert result.loss == pytest.approx(expected.loss, rel=1e-5, abs=1e-6)


TAUGHT = Segment((5, 6), (7, 8, 9, 10), 0.3, "distill", start=1, gated=True, alpha=0.4, teacher_ids=(40, 41), top_k=8)


@pytest.mark.parametrize("logit_rows", [1, 2, 3, 4, 7, 24])
def test_the_runs_of_logits_change_the_gradient_by_rounding_only(model, logit_rows):
    segments = (*SEGMENTS, TAUGHT)
    reference, expected = gradient(model, segments)
    cut, result = gradient(model, segments, logit_rows=logit_rows)
    assert relative_gap(cut, reference) < 1e-6
    assert result.loss == pytest.approx(expected.loss, rel=1e-5, abs=1e-6)
    assert (result.tokens_fed, result.tokens_loss) == (expected.tokens_fed, expected.tokens_loss)


@pytest.mark.parametrize("logit_rows", [1, 2, 5, 10**9])
def test_gaps_are_those_of_the_tokens_whatever_the_run(model, logit_rows):
    target = (8, 9, 10, 11, EOS)
    sampled = reference_logprobs(model, (5, 6, 7), target).detach() + torch.tensor([0.0, 0.5, 0.25, 0.0, 1.0])
    segment = Segment((5, 6, 7), target, 0.7, drawn=Draw(tuple(sampled.tolist())))
    _, result = gradient(model, [SEGMENTS[3], segment], logit_rows=logit_rows)
    assert result.logp_gaps == pytest.approx([0.0, 0.5, 0.25, 0.0, 1.0], abs=1e-5)


@pytest.mark.parametrize("logit_rows", [1, 3, 5])
def test_no_more_rows_of_logits_than_asked_for_are_ever_made(model, logit_rows):
    rows = []
    hook = model.get_output_embeddings().register_forward_hook(lambda _, __, logits: rows.append(logits.shape[0]))
    gradient(model, (*SEGMENTS, TAUGHT), logit_rows=logit_rows)
    token_entropies(model, [(s.context_ids, s.target_ids) for s in SEGMENTS], logit_rows=logit_rows)
    hook.remove()
    assert max(rows) == logit_rows
    targets = sum(len(s.target_ids) for s in SEGMENTS)
    assert sum(rows) == 2 * targets + 2 * len(TAUGHT.target_ids)  # the taught one is projected as teacher, too


@given(segments=segments_strategy, max_tokens=st.integers(1, 80))
def test_micro_batches_hold_every_segment_once_within_the_padded_limit(segments, max_tokens):
    batches = list(micro_batches(segments, max_tokens))
    held = [segment for batch in batches for segment in batch]
    assert sorted(map(repr, held)) == sorted(map(repr, segments))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(map(len, batch)) <= max_tokens
        assert len({segment.kind for segment in batch}) == 1
    for kind in {segment.kind for segment in held}:
        lengths = [len(segment) for segment in held if segment.kind == kind]
        assert lengths == sorted(lengths, reverse=True)


def test_micro_batches_are_as_few_as_the_limit_allows_for_equal_lengths():
    batches = list(micro_batches([Segment((1, 2), (3, 4), 1.0)] * 10, 16))
    assert [len(batch) for batch in batches] == [4, 4, 2]


def test_one_pass_per_micro_batch_and_a_call_after_each(model):
    calls = []
    gradient(model, SEGMENTS, micro_batch_tokens=1, after_batch=calls.append)
    assert sorted(calls) == sorted(segment.kind for segment in SEGMENTS)


def test_gradients_by_the_kind_of_their_batch_are_those_of_the_loss_terms(model):
    by_kind = {}

    def move(kind: str) -> None:
        by_kind[kind] = by_kind.get(kind, 0.0) + flat_gradient(model)
        model.zero_grad(set_to_none=True)

    gradient(model, SEGMENTS, micro_batch_tokens=12, after_batch=move)
    assert by_kind.keys() == {"pg", "distill", "anchor"}
    for kind, found in by_kind.items():
        assert relative_gap(found, direct_gradient(model, [s for s in SEGMENTS if s.kind == kind])) < 1e-6


def test_gradients_moved_out_after_every_batch_add_up(model):
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)

    def move(_: str) -> None:
        total.add_(flat_gradient(model))
        model.zero_grad(set_to_none=True)

    whole, _ = gradient(model, SEGMENTS)
    gradient(model, SEGMENTS, micro_batch_tokens=12, after_batch=move)
    assert relative_gap(total, whole) < 1e-6


def test_losses_are_reported_by_kind_before_division_by_the_accumulation(model):
    _, result = gradient(model, SEGMENTS, accumulation=5)
    expected = {kind: loss.item() for kind, loss in direct_loss(model, SEGMENTS).items()}
    assert result.loss == pytest.approx(expected, rel=1e-5)


def test_accumulation_divides_the_gradient(model):
    whole, _ = gradient(model, SEGMENTS)
    fifth, _ = gradient(model, SEGMENTS, accumulation=5)
    assert relative_gap(5 * fifth, whole) < 1e-6


def test_the_end_of_sequence_is_trained(model):
    with_eos = Segment((5, 6), (7, EOS), 1.0)
    without = Segment((5, 6), (7,), 1.0)
    _, long = gradient(model, [with_eos])
    _, short = gradient(model, [without])
    last = reference_logprobs(model, (5, 6), (7, EOS))[-1].item()
    assert long.loss["pg"] - short.loss["pg"] == pytest.approx(-last, rel=1e-4)


def test_only_targets_from_start_on_bear_loss(model):
    segment = Segment((5, 6), (7, 8, 9, EOS), 1.0, start=3)
    moved = Segment((5, 6, 7, 8, 9), (EOS,), 1.0)
    a, counted = gradient(model, [segment])
    b, _ = gradient(model, [moved])
    assert relative_gap(a, b) < 1e-6
    assert (counted.tokens_fed, counted.tokens_loss) == ({"pg": 6}, {"pg": 1})


def test_a_segment_given_twice_doubles_loss_and_gradient(model):
    once, single = gradient(model, SEGMENTS[:1])
    twice, double = gradient(model, SEGMENTS[:1] * 2)
    assert relative_gap(twice, 2 * once) < 1e-6
    assert double.loss["pg"] == pytest.approx(2 * single.loss["pg"], rel=1e-6)


def test_length_never_divides_the_loss(model):
    for length in (1, 100):
        segment = Segment((5,), (6,) * length, 1 / 256)
        _, result = gradient(model, [segment])
        total = reference_logprobs(model, (5,), (6,) * length).sum().item()
        assert result.loss["pg"] == pytest.approx(-total / 256, rel=1e-5)


def test_segments_of_weight_zero_are_neither_fed_nor_counted(model):
    silent = [Segment((1, 2), (3,) * 50, 0.0), Segment((1,), (2, 3), -0.0, kind="anchor", drawn=Draw((9.0, 9.0)))]
    reference, expected = gradient(model, SEGMENTS)
    both, result = gradient(model, [silent[0], *SEGMENTS, silent[1]])
    assert torch.equal(both, reference)
    assert result == expected


def test_a_batch_of_nothing_but_zero_weights_runs_no_pass(model, monkeypatch):
    monkeypatch.setattr(type(model), "forward", lambda *_, **__: pytest.fail("a forward pass"))
    calls = []
    _, result = gradient(model, [Segment((1, 2), (3, 4), 0.0)], after_batch=calls.append)
    assert not calls
    assert all(p.grad is None for p in model.parameters())
    assert not any(result.loss.values())
    assert not any(result.tokens_fed.values())
    assert not any(result.tokens_loss.values())


def test_token_counters_add_up_by_kind(model):
    _, result = gradient(model, SEGMENTS, micro_batch_tokens=20)
    assert result.tokens_fed == {"pg": 6 + 2 + 6 + 5, "distill": 11, "anchor": 11}
    assert result.tokens_loss == {"pg": 3 + 1 + 2 + 2, "distill": 7, "anchor": 3}


@pytest.mark.parametrize("error", [-0.25, 0.25])
def test_gaps_are_the_distances_to_the_drawn_logprobs(model, error):
    exact = reference_logprobs(model, (5, 6, 7), (8, 9, EOS)).tolist()
    off = (exact[0], exact[1] + error, exact[2])
    _, result = gradient(model, [Segment((5, 6, 7), (8, 9, EOS), 1.0, drawn=Draw(off)), SEGMENTS[2]])
    assert sorted(map(abs, result.logp_gaps)) == pytest.approx([0, 0, 0.25], abs=1e-5)


def test_logprobs_of_a_padded_batch_are_those_of_every_sequence_alone(model):
    sequences = [(segment.context_ids, segment.target_ids) for segment in SEGMENTS]
    for segment, logits in zip(SEGMENTS, segment_logits(model, sequences), strict=True):
        assert logits.shape == (len(segment.target_ids), model.config.vocab_size)
        values = target_logprobs(logits, torch.tensor(segment.target_ids))
        assert values.dtype == torch.float32
        expected = reference_logprobs(model, segment.context_ids, segment.target_ids)
        torch.testing.assert_close(values, expected, rtol=0, atol=2e-5)
