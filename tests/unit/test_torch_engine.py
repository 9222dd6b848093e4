"""The in-process engine against transformers (thinker-spec 12; property C32)."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from transformers import GPT2Config, GPT2LMHeadModel

from dosematch.errors import UserError
from dosematch.rollout.engine import Request
from dosematch.rollout.torch_engine import TorchEngine
from dosematch.sampling import uniforms

from ..tiny import VOCAB, random_model, reference_logprobs

NEVER = VOCAB - 1  # an end of sequence that these random models rarely choose
LENGTHS = (1, 2, 5, 9, 17, 18, 30)
SHAPES = [
    ("qwen3", {}),
    ("qwen3", {"tie_word_embeddings": False}),
    ("qwen3", {"num_key_value_heads": 4}),
    ("qwen3", {"num_key_value_heads": 1, "rope_theta": 1e6}),
    ("llama", {}),
    ("llama", {"tie_word_embeddings": False, "num_key_value_heads": 1}),
    ("llama", {"num_key_value_heads": 4, "head_dim": 8, "rms_norm_eps": 1e-3}),
]


def prompt(seed: int, length: int, vocabulary: int = VOCAB) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(vocabulary), k=length))


def requests(max_tokens=12, lengths=LENGTHS, **options) -> list[Request]:
    """Requests of different lengths, short and long limits mixed so that rows leave at different times."""
    return [
        Request(prompt(i, length), max_tokens=max_tokens - 3 * (i % 3), **options) for i, length in enumerate(lengths)
    ]


def sampled(chosen: list[Request], seed: int = 0) -> list[Request]:
    """The same requests with counter-based uniforms."""
    key = {"study": "test", "seed": seed, "run": 1, "step": 1, "question": "q", "stage": "fast"}
    return [replace(r, uniforms=uniforms(r.max_tokens, **key, rollout=i)) for i, r in enumerate(chosen)]


def greedy_reference(model, request: Request, eos: int) -> list[int]:
    ids = torch.tensor([request.prompt_ids])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=request.max_tokens,
        min_new_tokens=request.min_tokens or None,
        eos_token_id=eos,
        pad_token_id=eos,
    )
    return output[0, ids.shape[1] :].tolist()


def tokens(completions) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in completions]


@pytest.fixture(scope="module")
def model():
    return random_model()


@pytest.fixture(scope="module")
def references(model):
    """Greedy tokens of the default requests."""
    return [tuple(greedy_reference(model, request, NEVER)) for request in requests()]


@pytest.mark.parametrize(("architecture", "changes"), SHAPES)
def test_greedy_tokens_are_those_of_transformers(architecture, changes):
    model = random_model(architecture, **changes)
    chosen = requests()
    completions = TorchEngine(model, NEVER, batch_size=3).generate(chosen)
    for request, completion in zip(chosen, completions, strict=True):
        assert list(completion.token_ids) == greedy_reference(model, request, NEVER)


@pytest.mark.parametrize("batch_size", range(1, 8))
def test_greedy_tokens_in_request_order_at_every_batch_size(model, references, batch_size):
    assert tokens(TorchEngine(model, NEVER).generate(requests(), batch_size)) == references
    assert tokens(TorchEngine(model, NEVER, batch_size=batch_size).generate(requests())) == references


def test_many_more_requests_than_slots_come_back_in_order(model, references):
    order = random.Random(0).choices(range(len(LENGTHS)), k=40)
    completions = TorchEngine(model, NEVER).generate([requests()[i] for i in order], 6)
    assert tokens(completions) == [references[i] for i in order]


def test_no_requests_give_no_completions(model):
    assert TorchEngine(model, NEVER).generate([]) == []


@pytest.mark.parametrize("position", [0, 1, 4])
def test_generation_stops_after_the_end_of_sequence(model, references, position):
    eos = references[0][position]
    completions = TorchEngine(model, eos).generate(requests(), 4)
    for request, completion, reference in zip(requests(), completions, references, strict=True):
        assert list(completion.token_ids) == greedy_reference(model, request, eos)
        ended = eos in reference
        assert completion.finish_reason == ("stop" if ended else "length")
        assert completion.token_ids == (reference[: reference.index(eos) + 1] if ended else reference)


def test_an_end_of_sequence_as_the_last_allowed_token_is_a_stop(model, references):
    reference = max(references, key=lambda tokens: len(set(tokens)))
    length = next(n for n in range(2, 12) if reference[n - 1] not in reference[: n - 1])
    request = replace(requests()[references.index(reference)], max_tokens=length)
    [completion] = TorchEngine(model, reference[length - 1]).generate([request])
    assert completion.finish_reason == "stop"
    assert completion.token_ids == reference[:length]


@pytest.mark.parametrize("max_tokens", [1, 2, 15, 16, 17, 33])
def test_max_tokens_is_the_length_of_a_truncated_completion(model, max_tokens):
    chosen = [Request(prompt(i, i + 1), max_tokens, min_tokens=max_tokens) for i in range(4)]
    completions = TorchEngine(model, NEVER).generate(chosen, 3)
    assert [(len(c.token_ids), c.finish_reason) for c in completions] == [(max_tokens, "length")] * 4


@pytest.mark.parametrize("min_tokens", [1, 2, 5, 9])
def test_the_end_of_sequence_is_forbidden_before_min_tokens(model, references, min_tokens):
    eos = references[0][0]
    chosen = [Request(prompt(0, 1), max_tokens=9, min_tokens=min_tokens), Request(prompt(0, 1), max_tokens=9)]
    long, short = TorchEngine(model, eos).generate(chosen)
    assert list(long.token_ids) == greedy_reference(model, chosen[0], eos)
    assert eos not in long.token_ids[:min_tokens]
    assert short.token_ids == (eos,)  # the limit of one row is not that of its neighbours


@pytest.mark.parametrize("eos", [0, VOCAB - 1])
@pytest.mark.parametrize("uniform", [0.0, np.nextafter(1.0, 0.0)])
def test_extreme_uniforms_never_draw_a_forbidden_token(model, eos, uniform):
    request = Request(prompt(1, 4), max_tokens=6, min_tokens=5, uniforms=np.full(6, uniform))
    [completion] = TorchEngine(model, eos).generate([request])
    assert eos not in completion.token_ids[:5]
    assert all(0 <= token < VOCAB for token in completion.token_ids)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
@pytest.mark.parametrize("draw", [sampled, list])
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_logprobs_are_those_of_the_distribution_drawn_from(architecture, draw, temperature):
    model = random_model(architecture)
    chosen = draw(requests(temperature=temperature, min_tokens=3))
    for request, completion in zip(chosen, TorchEngine(model, 0).generate(chosen, 4), strict=True):
        divisor = 1.0 if request.uniforms is None else temperature
        expected = reference_logprobs(model, request.prompt_ids, completion.token_ids, divisor, 0, min_tokens=3)
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
@pytest.mark.parametrize("min_tokens", [0, 4])
def test_sampled_tokens_invert_the_cumulative_distribution_at_their_uniforms(model, temperature, min_tokens):
    eos = 100
    chosen = sampled(requests(max_tokens=20, temperature=temperature, min_tokens=min_tokens))
    for request, completion in zip(chosen, TorchEngine(model, eos).generate(chosen, 4), strict=True):
        ids = torch.tensor([[*request.prompt_ids, *completion.token_ids]])
        logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1].detach().double() / temperature
        logits[: request.min_tokens, eos] = -torch.inf
        above = logits.softmax(-1).cumsum(-1).numpy()
        below = np.concatenate([np.zeros((len(above), 1)), above[:, :-1]], axis=1)
        for t, token in enumerate(completion.token_ids):
            assert below[t, token] - 1e-6 <= request.uniforms[t] < above[t, token] + 1e-6


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_sampled_frequencies_are_the_softmax(temperature):
    model = random_model(vocab_size=16, initializer_range=0.2)
    ids = prompt(3, 6, 16)
    n = 3000
    chosen = sampled([Request(ids, max_tokens=1, temperature=temperature)] * n)
    counts = np.bincount([c.token_ids[0] for c in TorchEngine(model, 0).generate(chosen, 500)], minlength=16)
    expected = n * (model(torch.tensor([ids])).logits[0, -1].detach().double() / temperature).softmax(-1).numpy()
    rare = expected < 5
    counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
    keep = expected > 0
    assert stats.chisquare(counts[keep], expected[keep]).pvalue > 0.001


# Derandomised, with a small vocabulary: another batch rounds differently, so a uniform that falls within 1e-7 of a
# boundary of the cumulative distribution may draw its neighbour.
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_results_depend_neither_on_batch_size_nor_on_order(data, seed):
    architecture, changes = data.draw(st.sampled_from(SHAPES))
    model = random_model(architecture, seed=seed, vocab_size=32, **changes)
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=9))
    chosen = [Request(prompt(seed + i, length, 32), data.draw(st.integers(1, 20))) for i, length in enumerate(lengths)]
    chosen = sampled(chosen, seed) if data.draw(st.booleans()) else chosen
    engine = TorchEngine(model, eos_token_id=data.draw(st.integers(0, 31)))
    alone = engine.generate(chosen, 1)
    order = data.draw(st.permutations(range(len(chosen))))
    together = engine.generate([chosen[i] for i in order], data.draw(st.integers(2, 9)))
    for place, i in enumerate(order):
        assert together[place].token_ids == alone[i].token_ids
        assert together[place].finish_reason == alone[i].finish_reason
        assert together[place].logprobs == pytest.approx(alone[i].logprobs, abs=1e-4)


def test_the_same_call_gives_the_same_bytes(model):
    chosen = sampled(requests(max_tokens=20))
    engine = TorchEngine(model, 0)
    assert engine.generate(chosen, 4) == engine.generate(chosen, 4)


def test_greedy_and_sampled_requests_may_share_a_batch(model, references):
    chosen = [*requests(), *sampled(requests())]
    completions = TorchEngine(model, NEVER).generate(chosen, 5)
    alone = TorchEngine(model, NEVER).generate(chosen[len(LENGTHS) :], 1)
    assert tokens(completions) == references + tokens(alone)


def test_loaded_weights_change_the_output_and_loading_back_restores_it(references):
    model, other = random_model(seed=0), random_model(seed=1)
    engine = TorchEngine(model, NEVER)
    engine.load_weights(other.state_dict())
    changed = tokens(engine.generate(requests()))
    assert changed == tokens(TorchEngine(other, NEVER).generate(requests()))
    assert changed != references
    engine.load_weights(model.state_dict())
    assert tokens(engine.generate(requests())) == references


def test_weights_are_copied_when_loaded():
    model = random_model()
    engine = TorchEngine(model, NEVER)
    before = tokens(engine.generate(requests()))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-0.5)
    assert tokens(engine.generate(requests())) == before
    engine.load_weights(model.state_dict())
    assert tokens(engine.generate(requests())) != before


def test_an_untied_model_uses_its_own_output_layer_after_loading():
    model, other = (random_model(seed=seed, tie_word_embeddings=False) for seed in (0, 1))
    other.load_state_dict({k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}, strict=False)
    engine = TorchEngine(model, NEVER)
    engine.load_weights(other.state_dict())
    assert tokens(engine.generate(requests())) == tokens(TorchEngine(other, NEVER).generate(requests()))


def test_an_unsupported_architecture_is_refused_by_name():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=16, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(UserError, match="gpt2"):
        TorchEngine(model, 0)


VARIANTS = [
    ("llama", {"attention_bias": True}),
    ("llama", {"mlp_bias": True}),
    ("qwen3", {"attention_bias": True}),
    ("llama", {"hidden_act": "gelu"}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "rope_theta": 10000.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    ),
    (
        "qwen3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 10000.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}),
]


VARIANT_NAMES = ["bias", "mlp_bias", "qwen3_bias", "gelu", "sliding_window", "linear", "llama3", "yarn", "dynamic"]


@pytest.mark.parametrize(("architecture", "changes"), VARIANTS, ids=VARIANT_NAMES)
def test_a_variant_of_a_supported_architecture_is_right_or_refused(architecture, changes):
    model = random_model(architecture, **changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    chosen = requests(max_tokens=20)
    try:
        completions = TorchEngine(model, NEVER).generate(chosen, 4)
    except UserError:
        return
    for request, completion in zip(chosen, completions, strict=True):
        assert list(completion.token_ids) == greedy_reference(model, request, NEVER)


def test_a_request_beyond_the_positions_of_the_model_is_refused(model):
    positions = model.config.max_position_embeddings
    engine = TorchEngine(model, NEVER)
    [completion] = engine.generate([Request(prompt(0, positions - 10), max_tokens=10)])
    assert list(completion.token_ids) == greedy_reference(model, Request(prompt(0, positions - 10), 10), NEVER)
    with pytest.raises(UserError):
        engine.generate([Request(prompt(0, 3), 5), Request(prompt(0, positions - 10), max_tokens=12)])


def test_bf16_models_generate_close_to_their_own_distribution():
    model = random_model().bfloat16()
    chosen = sampled(requests())
    for request, completion in zip(chosen, TorchEngine(model, NEVER).generate(chosen, 4), strict=True):
        expected = reference_logprobs(model, request.prompt_ids, completion.token_ids).detach()
        assert np.mean(np.abs(np.array(completion.logprobs) - expected.numpy())) < 0.15
