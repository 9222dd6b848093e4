"""The vLLM engine on the shipped micro base, with vLLM's CPU build: `make test-vllm`."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import PreTrainedModel

from dosematch.config import StudyConfig
from dosematch.errors import UserError
from dosematch.evaluation import generate_greedy
from dosematch.grading import Grader
from dosematch.identity import sha1_12
from dosematch.policy import load_policy, load_tokenizer
from dosematch.questions import Question
from dosematch.records import read_yaml, write_json, write_jsonl
from dosematch.resume import ResumeFolder
from dosematch.rollout.engine import Completion, Request
from dosematch.rollout.torch_engine import TorchEngine
from dosematch.settings import EvalSettings, TrainSettings
from dosematch.streams import StreamItem
from dosematch.training import Trainer

pytest.importorskip("vllm")
from vllm import SamplingParams

from dosematch.rollout.vllm_engine import VllmEngine

ROOT = Path(__file__).parents[2]
BASE = ROOT / "resources/micro_base"
STEPS = 3
QUESTIONS = [
    Question(id=text[0], text=f"Start at {text}. What is the result?", answer=answer, source="test")
    for text, answer in (("4, add 3", "7"), ("9, minus 2, times 3", "21"), ("12, add 30, minus 7", "35"))
]


@pytest.fixture
def model() -> PreTrainedModel:
    return load_policy(BASE)


@pytest.fixture(scope="module")
def engine() -> Iterator[VllmEngine]:
    """One engine for all tests, since a start takes seconds; every test loads the weights it needs."""
    started = VllmEngine(load_policy(BASE), load_tokenizer(BASE).eos_token_id, batch_size=8)
    yield started
    started.close()


def requests(sampled: bool = False, temperature: float = 1.0, n: int = 24) -> list[Request]:
    tokenizer = load_tokenizer(BASE)
    numbers = np.random.default_rng(0).random((n, 40))
    texts = [f"Start at {i}, add {2 * i + 1}, minus 3. What is the result?\nSolve:" for i in range(n)]
    return [
        Request(tuple(tokenizer.encode(text)), 40, 2, numbers[i] if sampled else None, temperature)
        for i, text in enumerate(texts)
    ]


def torch_completions(model: PreTrainedModel, chosen: list[Request]) -> list[Completion]:
    return TorchEngine(model, load_tokenizer(BASE).eos_token_id).generate(chosen)


def recomputed(model: PreTrainedModel, request: Request, completion: Completion) -> torch.Tensor:
    """Log-probabilities by transformers of the completion's tokens in the distribution drawn from, [len(token_ids)]."""
    ids = torch.tensor([[*request.prompt_ids, *completion.token_ids]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1].float() / request.temperature
    logits[: request.min_tokens, load_tokenizer(BASE).eos_token_id] = -torch.inf
    return logits.log_softmax(-1).gather(1, ids[0, len(request.prompt_ids) :, None])[:, 0]


def largest_gap(model: PreTrainedModel, chosen: list[Request], completions: list[Completion]) -> float:
    gaps = [
        (recomputed(model, request, completion) - torch.tensor(completion.logprobs)).abs().max().item()
        for request, completion in zip(chosen, completions, strict=True)
    ]
    return max(gaps)


def changed(model: PreTrainedModel) -> PreTrainedModel:
    """The same model with every weight moved a little."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def test_greedy_tokens_equal_those_of_the_torch_engine(engine: VllmEngine, model: PreTrainedModel) -> None:
    engine.load_weights(model.state_dict())
    completions, expected = engine.generate(requests()), torch_completions(model, requests())
    assert [(c.token_ids, c.finish_reason) for c in completions] == [(c.token_ids, c.finish_reason) for c in expected]
    assert len({len(c.token_ids) for c in completions}) > 1
    assert largest_gap(model, requests(), completions) < 1e-3


def test_reloaded_weights_change_the_tokens_and_they_are_equal_again(
    engine: VllmEngine, model: PreTrainedModel
) -> None:
    engine.load_weights(model.state_dict())
    before = [c.token_ids for c in engine.generate(requests())]
    other = changed(load_policy(BASE))
    engine.load_weights(other.state_dict())
    after = engine.generate(requests())
    assert [c.token_ids for c in after] != before
    assert [c.token_ids for c in after] == [c.token_ids for c in torch_completions(other, requests())]
    engine.load_weights(model.state_dict())
    assert [c.token_ids for c in engine.generate(requests())] == before


def test_sampled_log_probabilities_are_those_of_the_distribution_drawn_from(
    engine: VllmEngine, model: PreTrainedModel
) -> None:
    """At any temperature, and where the end of sequence was forbidden."""
    engine.load_weights(model.state_dict())
    for temperature in (1.0, 0.5):
        chosen = requests(sampled=True, temperature=temperature)
        assert largest_gap(model, chosen, engine.generate(chosen)) < 1e-3


def test_sampling_repeats_and_depends_on_the_random_numbers(engine: VllmEngine, model: PreTrainedModel) -> None:
    engine.load_weights(model.state_dict())
    chosen = requests(sampled=True)
    first = [c.token_ids for c in engine.generate(chosen)]
    assert [c.token_ids for c in engine.generate(chosen)] == first
    moved = [Request(r.prompt_ids, r.max_tokens, r.min_tokens, r.uniforms[::-1].copy()) for r in chosen]
    assert [c.token_ids for c in engine.generate(moved)] != first


def test_limits_are_kept(engine: VllmEngine, model: PreTrainedModel) -> None:
    engine.load_weights(model.state_dict())
    prompt = requests()[0].prompt_ids
    for minimum, maximum in ((0, 1), (5, 5), (30, 34)):
        [completion] = engine.generate([Request(prompt, maximum, minimum)])
        assert minimum <= len(completion.token_ids) <= maximum
    with pytest.raises(UserError, match="positions"):
        engine.generate([Request(prompt, 100_000)])


def settings(arm: str) -> TrainSettings:
    """The smoke scale's settings of an arm, three steps long, with the vLLM engine."""
    config = read_yaml(ROOT / "config/config.yaml") | {"scale": "smoke"}
    values = json.loads(StudyConfig(config, ROOT).train_settings(arm))
    values["training"] |= {"steps": STEPS, "tail_start": 2, "curve_every": STEPS}
    values["arm"] |= {"accumulation": 1}
    values["runtime"] |= {"engine": "vllm"}
    return TrainSettings.model_validate(values)


def items() -> list[StreamItem]:
    return [
        StreamItem(step=i, source="stencil", index=i, sha1_12=sha1_12(q.text), question=q.text, answer=q.answer)
        for i, q in enumerate(QUESTIONS, 1)
    ]


def trainer(arm: str, monkeypatch: pytest.MonkeyPatch, engine: VllmEngine) -> Trainer:
    """A trainer whose engine is the running one: a second vLLM in one process would double the time."""
    model = load_policy(BASE)
    engine.load_weights(model.state_dict())
    monkeypatch.setattr("dosematch.training.start_engine", lambda *_: engine)
    return Trainer(settings(arm), 102, model, load_tokenizer(BASE), Grader(), QUESTIONS)


def advance(run: Trainer) -> None:
    for item in items():
        run.advance(item)


@pytest.mark.parametrize("arm", ["std_stabilized_g8", "bc_thinker", "fork_thinker"])
def test_every_kind_of_arm_trains(
    arm: str, monkeypatch: pytest.MonkeyPatch, engine: VllmEngine, tmp_path: Path
) -> None:
    run = trainer(arm, monkeypatch, engine)
    run.train(items(), ResumeFolder(tmp_path))
    assert [row["step"] for row in run.rows] == [1, 2, 3]
    compared = [row["sampling/logp_difference/max"] for row in run.rows if row["pg_bwd_tokens"]["loss"]]
    assert compared
    assert max(compared) < 1e-3
    assert run.curve[-1]["step"] == STEPS


def test_stale_weights_stop_a_training(monkeypatch: pytest.MonkeyPatch, engine: VllmEngine) -> None:
    run = trainer("std_stabilized_g8", monkeypatch, engine)
    engine.load_weights(changed(load_policy(BASE)).state_dict())
    with pytest.raises(UserError, match="log-probabilities differ"):
        advance(run)


def test_a_rescaled_final_norm_stops_a_training(monkeypatch: pytest.MonkeyPatch, engine: VllmEngine) -> None:
    run = trainer("std_stabilized_g8", monkeypatch, engine)
    weights = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    weights["model.norm.weight"] *= 1.2
    engine.load_weights(weights)
    with pytest.raises(UserError, match="log-probabilities differ"):
        advance(run)


@pytest.mark.parametrize("asked", [0.7, 0.9, 1.1, 2.0])
def test_a_wrong_sampling_temperature_stops_a_training(
    monkeypatch: pytest.MonkeyPatch, engine: VllmEngine, asked: float
) -> None:
    run = trainer("std_stabilized_g8", monkeypatch, engine)
    monkeypatch.setattr(engine, "parameters", lambda **options: SamplingParams(**options | {"temperature": asked}))
    with pytest.raises(UserError, match="log-probabilities differ"):
        advance(run)


def test_a_forgotten_least_length_shows_in_the_gap(
    monkeypatch: pytest.MonkeyPatch, engine: VllmEngine, model: PreTrainedModel
) -> None:
    engine.load_weights(model.state_dict())
    numbers = np.random.default_rng(1).random((8, 40))
    chosen = [Request(requests()[0].prompt_ids, 40, 39, row) for row in numbers]
    assert largest_gap(model, chosen, engine.generate(chosen)) < 1e-3
    monkeypatch.setattr(engine, "parameters", lambda **options: SamplingParams(**options | {"min_tokens": 0}))
    assert largest_gap(model, chosen, engine.generate(chosen)) > 1e-3


def test_the_scripts_train_and_evaluate_with_it_by_configuration_alone(tmp_path: Path) -> None:
    chosen = settings("std_stabilized_g8")
    stream, panel = tmp_path / "stream.json", tmp_path / "val350.jsonl"
    write_json(
        stream, {"seed": 102, "decontaminated": False, "dropped": [], "items": [i.model_dump() for i in items()]}
    )
    write_jsonl(panel, [question.model_dump() for question in QUESTIONS])
    train = ["--settings", chosen.model_dump_json(), "--seed", "102", "--start", BASE / "model.safetensors"]
    script("train_arm", *train, "--stream", stream, "--development", panel, "--out-dir", tmp_path / "run")
    evaluation = EvalSettings(
        study="thinker",
        verify_slow_panel="val350",
        runtime=chosen.runtime,
        evaluation=chosen.evaluation,
        prompts=chosen.prompts,
    ).model_dump_json()
    weights = tmp_path / "run/model/model.safetensors"
    slow = tmp_path / "slow.parquet"
    options = ["--settings", evaluation, "--weights", weights, "--out-dir", tmp_path, "--verify-slow", slow]
    script("generate_panel", panel, *options)
    texts = pd.read_parquet(tmp_path / "val350.parquet")["token_ids"].map(tuple).tolist()
    trained, tokenizer = load_policy(weights.parent), load_tokenizer(weights.parent)
    engine = TorchEngine(trained, tokenizer.eos_token_id)
    expected = generate_greedy(engine, tokenizer, chosen.prompts, chosen.evaluation, QUESTIONS)
    assert texts == [completion.token_ids for completion in expected]
    assert len(pd.read_parquet(slow)) == len(QUESTIONS)


def script(name: str, *options: str | Path) -> None:
    command = [sys.executable, ROOT / f"workflow/scripts/{name}.py", *options]
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
