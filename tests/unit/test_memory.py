"""The memory estimate: shapes counted without weights, refusal in one line, what gradient checkpointing saves."""

import json

import pytest
import torch
from transformers import Qwen3Config

from dosematch import memory
from dosematch.config import StudyConfig
from dosematch.errors import UserError
from dosematch.policy import checkpoint_activations
from dosematch.random_weights import QWEN3_0_6B
from dosematch.records import read_yaml
from dosematch.settings import TrainSettings

from ..tiny import flat_gradient, random_model, reference_logprobs

QWEN3 = Qwen3Config(**QWEN3_0_6B)


def settings(arm, scale="qwen3-0.6b", **training):
    values = json.loads(StudyConfig(read_yaml("config/config.yaml") | {"scale": scale}).train_settings(arm))
    values["training"] |= training
    values["runtime"] |= {"device": "cpu", "engine": "torch"}
    return TrainSettings.model_validate(values)


def test_parameters_are_those_of_the_model():
    model = random_model()
    assert memory.count_parameters(model.config) == sum(parameter.numel() for parameter in model.parameters())
    assert memory.count_parameters(QWEN3) == 596_049_920  # as published for Qwen3-0.6B-Base


def test_logits_are_counted_by_the_rows_that_exist_at_a_time():
    few, many = (
        memory.training_memory(QWEN3, settings("std_rlvr_cont", logit_rows=rows))["logits"] for rows in (64, 4096)
    )
    assert many == 64 * few
    assert many > 4096 * QWEN3.vocab_size * 4  # fp32 logits alone


def test_checkpointing_and_terms_change_what_they_should():
    plain, checkpointed = (
        memory.training_memory(QWEN3, settings("std_rlvr_cont", gradient_checkpointing=on)) for on in (False, True)
    )
    assert {key for key in plain if plain[key] != checkpointed[key]} == {"activations"}
    assert checkpointed["activations"] < plain["activations"] / 4
    forked = memory.training_memory(QWEN3, settings("fork_thinker"))
    assert forked["gradients"] > plain["gradients"]


def test_a_training_that_cannot_fit_is_refused_in_one_line(monkeypatch, tmp_path):
    QWEN3.save_pretrained(tmp_path)
    monkeypatch.setattr(memory, "free_memory", lambda _: 8_000_000_000)
    with pytest.raises(UserError) as refusal:
        memory.check_memory(tmp_path, settings("std_rlvr_cont"))
    assert "std_rlvr_cont needs about" in str(refusal.value)
    assert "has 8.0 GB free" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    monkeypatch.setattr(memory, "free_memory", lambda _: 200_000_000_000)
    memory.check_memory(tmp_path, settings("std_rlvr_cont"))


def test_free_memory_is_that_of_the_cgroup_where_it_is_less(monkeypatch, tmp_path):
    for name, value in (("CGROUP_LIMIT", "5000000"), ("CGROUP_USED", "2000000")):
        file = tmp_path / name
        file.write_text(value + "\n", encoding="ascii")
        monkeypatch.setattr(memory, name, file)
    assert memory.free_memory("cpu") == 3_000_000
    (tmp_path / "CGROUP_LIMIT").write_text("max\n", encoding="ascii")
    assert memory.free_memory("cpu") > 3_000_000


def test_checkpointed_activations_give_the_same_gradient():
    gradients = []
    for checkpointed in (False, True):
        model = random_model()
        if checkpointed:
            checkpoint_activations(model)
        (-reference_logprobs(model, (5, 6, 7), (8, 9, 10)).sum()).backward()
        gradients.append(flat_gradient(model))
    assert torch.equal(*gradients)


def test_checkpointing_refuses_a_model_with_dropout():
    with pytest.raises(UserError, match="attention_dropout"):
        checkpoint_activations(random_model(attention_dropout=0.1))
