"""The micro base model in resources/ belongs to its recipe and is what other tools can load."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, Qwen3ForCausalLM

from dosematch.config import check
from dosematch.pretraining import Recipe, pretrain, recipe_digest
from dosematch.prompts import load_prompts
from dosematch.records import read_yaml, sha256_file

ROOT = Path(__file__).parents[2]
BASE = ROOT / "resources/micro_base"
RECIPE = ROOT / "config/base/micro.yaml"


@pytest.fixture(scope="module")
def provenance() -> dict:
    return json.loads((BASE / "provenance.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    chosen = check(Recipe, read_yaml(RECIPE), str(RECIPE))
    return chosen.model_copy(update={"prompts": str(ROOT / chosen.prompts)})


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(BASE, local_files_only=True)


def test_provenance_names_this_recipe_and_these_weights(provenance: dict, recipe: Recipe) -> None:
    assert provenance["recipe"] == RECIPE.relative_to(ROOT).as_posix()
    assert provenance["recipe_digest"] == recipe_digest(RECIPE, recipe)
    assert provenance["weights_sha256"] == sha256_file(BASE / "model.safetensors")
    assert (provenance["seed"], provenance["threads"]) == (recipe.seed, recipe.threads)


def test_the_loss_fell(provenance: dict, recipe: Recipe) -> None:
    curve = provenance["loss_curve"]
    assert len(curve["loss"]) == -(-recipe.optimizer.steps // curve["every"])
    assert curve["loss"][-1] < 0.5 * curve["loss"][0]


def test_the_first_losses_are_reproduced(provenance: dict, recipe: Recipe) -> None:
    expected = provenance["first_losses"]
    losses: list[float] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(recipe.threads)
    try:
        pretrain(recipe, load_prompts(recipe.prompts), lambda _, loss: losses.append(loss), steps=len(expected))
    finally:
        torch.set_num_threads(threads)
    assert len(expected) == 3
    assert losses == pytest.approx(expected, abs=1e-3)  # another processor may round differently


def test_small_and_without_pickles() -> None:
    files = list(BASE.iterdir())
    assert sum(path.stat().st_size for path in files) <= 5_000_000
    assert {path.suffix for path in files} == {".json", ".safetensors"}


def test_transformers_loads_it(provenance: dict, tokenizer: PreTrainedTokenizerBase) -> None:
    model = AutoModelForCausalLM.from_pretrained(BASE, local_files_only=True, use_safetensors=True)
    assert type(model) is Qwen3ForCausalLM
    assert model.num_parameters() == provenance["parameters"]
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.eos_token_id == model.config.eos_token_id is not None
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(tokens, clean_up_tokenization_spaces=False) == text


def test_digits_are_single_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "".join(f"{n} + {n * 37} = {n * 38}; " for n in range(0, 2000, 13))
    tokens = [tokenizer.decode([token]) for token in tokenizer.encode(text, add_special_tokens=False)]
    assert sum(any(c.isdigit() for c in token) for token in tokens) == sum(c.isdigit() for c in text)
    assert len({tokenizer.encode(str(digit), add_special_tokens=False)[0] for digit in range(10)}) == 10
