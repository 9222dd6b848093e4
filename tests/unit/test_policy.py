"""Policies as Hugging Face folders of safetensors."""

import pickle
import shutil
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from dosematch.errors import UserError
from dosematch.policy import load_policy, load_tokenizer, save_policy
from dosematch.pretraining import EOS

from ..tiny import byte_tokenizer, random_model

SHAPES = [
    ("qwen3", {}),
    ("qwen3", {"tie_word_embeddings": False}),
    ("llama", {"tie_word_embeddings": False, "num_key_value_heads": 1}),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory, tiny) -> Path:
    """A saved policy that no test may change."""
    folder = tmp_path_factory.mktemp("policy") / "model"
    save_policy(tiny.model, tiny.tokenizer, folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(saved, tmp_path / "model")


def assert_same_bits(a: torch.nn.Module, b: torch.nn.Module) -> None:
    left, right = a.state_dict(), b.state_dict()
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype
        assert torch.equal(left[name], right[name]), name


@pytest.mark.parametrize(("architecture", "changes"), SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saving_and_loading_changes_no_bit(tmp_path, architecture, changes, dtype):
    model = random_model(architecture, **changes).to(getattr(torch, dtype))
    save_policy(model, byte_tokenizer(), tmp_path / "model")
    loaded = load_policy(tmp_path / "model", dtype)
    assert_same_bits(loaded, model)
    assert not loaded.training


def test_a_policy_is_loaded_in_the_dtype_asked_for(saved, tiny):
    loaded = load_policy(saved, "bfloat16")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    weight = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(loaded.state_dict()[weight], tiny.model.state_dict()[weight].bfloat16())


def test_transformers_loads_the_folder_without_this_project(saved, tiny):
    assert_same_bits(AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32), tiny.model)
    tokenizer = AutoTokenizer.from_pretrained(saved)
    text = "12 + 30 = 42\nüñ🦉 \\boxed{42}"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(text) == tiny.tokenizer.encode(text)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == (EOS, tiny.tokenizer.eos_token_id)


def test_the_tokenizer_survives_the_round_trip(saved, tiny):
    tokenizer = load_tokenizer(saved)
    assert tokenizer.get_vocab() == tiny.tokenizer.get_vocab()


def test_the_same_policy_is_saved_as_the_same_bytes(saved, tmp_path, tiny):
    save_policy(tiny.model, tiny.tokenizer, tmp_path / "model")
    digests = [{f.name: sha256(f.read_bytes()).hexdigest() for f in d.iterdir()} for d in (saved, tmp_path / "model")]
    assert digests[0] == digests[1]


def test_saving_replaces_an_older_policy_and_leaves_nothing_else(saved, folder):
    other = random_model(seed=1)
    save_policy(other, byte_tokenizer(), folder)
    assert_same_bits(load_policy(folder), other)
    assert {f.name for f in folder.iterdir()} == {f.name for f in saved.iterdir()}
    assert [f.name for f in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model_tail_avg.pth", "last.ckpt"])
def test_pickled_checkpoints_are_refused_unopened(folder, name):
    (folder / "model.safetensors").unlink()
    marker = folder / "executed"
    (folder / name).write_bytes(pickle.dumps(Trap(marker)))
    with pytest.raises(UserError) as caught:
        load_policy(folder)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not marker.exists()


class Trap:
    """Creates a file when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return Path.touch, (self.marker,)


def test_pickled_weights_beside_safetensors_are_not_opened(folder, tiny):
    marker = folder / "executed"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(marker)))
    assert_same_bits(load_policy(folder), tiny.model)
    assert not marker.exists()


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, empty, Path.unlink])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_model_is_one_line_that_names_the_folder(folder, name, damage):
    damage(folder / name)
    with pytest.raises(UserError) as caught:
        load_policy(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", [truncate, empty])
def test_a_damaged_tokenizer_is_one_line_that_names_the_folder(folder, damage):
    damage(folder / "tokenizer.json")
    with pytest.raises(UserError) as caught:
        load_tokenizer(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_that_lack_a_tensor_are_refused(folder):
    """Transformers would fill it at random and only warn."""
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="up_proj"):
        load_policy(folder)


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        load_policy(tmp_path / "nowhere")
    with pytest.raises(UserError, match="nowhere"):
        load_tokenizer(tmp_path / "nowhere")


def test_a_tokenizer_without_end_of_sequence_is_refused(tmp_path, tiny):
    save_policy(tiny.model, tiny.tokenizer, tmp_path)
    bare = AutoTokenizer.from_pretrained(tmp_path)
    bare.eos_token = None
    bare.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="eos_token"):
        load_tokenizer(tmp_path)
