"""Where weights come from: fresh, a Hugging Face directory, the run of the phase before."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertForPreTraining

from pretrain.initial import build_model
from pretrain.recipe import load_recipe
from pretrain.tokenizer import load_tokenizer_info
from runtime.command import ConfigError


def make(recipe_path, *settings):
    recipe = load_recipe(recipe_path, settings)
    return build_model(recipe, load_tokenizer_info(recipe.tokenizer))


@pytest.fixture(scope="module")
def stock_dir(recipe_path, tokenizer_dir, tmp_path_factory):
    """A stock model of the tiny recipe's shape, with other weights, and its tokenizer."""
    path = tmp_path_factory.mktemp("stock")
    config = BertConfig.from_dict(make(recipe_path).config.to_dict() | {"vocab_size": 1000})
    torch.manual_seed(9)
    BertForPreTraining(config).save_pretrained(path)
    AutoTokenizer.from_pretrained(tokenizer_dir).save_pretrained(path)
    return path


def test_fresh_weights_follow_the_seed(recipe_path):
    one, same, other = (make(recipe_path, f"training.seed={seed}") for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.bert.pooler.dense.weight, other.bert.pooler.dense.weight)


def test_weights_of_a_hugging_face_directory(recipe_path, stock_dir):
    model = make(recipe_path, f"training.init_from={stock_dir}")
    stock = BertForPreTraining.from_pretrained(stock_dir).state_dict()
    assert model.config.vocab_size == 1024  # padded inside
    for name, tensor in model.state_dict().items():
        expected = stock[name]
        assert torch.equal(tensor[: len(expected)], expected), name
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight


def test_heads_that_are_not_there_are_named(recipe_path, stock_dir, tmp_path, caplog):
    BertForMaskedLM.from_pretrained(stock_dir).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(stock_dir).save_pretrained(tmp_path)
    make(recipe_path, f"training.init_from={tmp_path}")
    assert "not there, fresh weights: bert.pooler.dense.bias" in caplog.text


@pytest.mark.parametrize(
    ("key", "value", "theirs"),
    [
        ("hidden_size", "64", "32"),
        ("num_hidden_layers", "1", "2"),
        ("num_attention_heads", "4", "2"),
        ("hidden_act", "relu", "'gelu'"),
        ("max_position_embeddings", "128", "64"),
    ],
)
def test_another_architecture_is_refused(key, value, theirs, recipe_path, stock_dir):
    with pytest.raises(ConfigError, match=rf"{key} is {theirs} there, the recipe has model.{key} = '?{value}'?"):
        make(recipe_path, f"training.init_from={stock_dir}", f"model.{key}={value}")


def test_weights_of_another_model_are_refused(recipe_path, stock_dir, tmp_path):
    """Case H2 on the way in: transformers would draw fresh weights and only report it."""
    shutil.copytree(stock_dir, tmp_path, dirs_exist_ok=True)
    state = load_file(tmp_path / "model.safetensors")
    save_file({f"module.{name}": tensor for name, tensor in state.items()}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"tensors of the encoder are missing or of another shape, first bert"):
        make(recipe_path, f"training.init_from={tmp_path}")
    (tmp_path / "model.safetensors").write_bytes(b"{}")
    with pytest.raises(ConfigError, match=r"its weights cannot be read"):
        make(recipe_path, f"training.init_from={tmp_path}")
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match=r"no tokenizer.json or vocab.txt there"):
        make(recipe_path, f"training.init_from={tmp_path}")


def test_another_vocabulary_is_refused(recipe_path, stock_dir, tmp_path):
    BertForPreTraining.from_pretrained(stock_dir).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(stock_dir)
    tokenizer.add_tokens(["zebra-crossing"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"its vocabulary \(1001 tokens\) differs from the recipe's tokenizer \(1000"):
        make(recipe_path, f"training.init_from={tmp_path}")


def test_neither_a_run_nor_a_model(recipe_path, tmp_path):
    with pytest.raises(ConfigError, match=r"neither a run \(checkpoints/\) nor a Hugging Face directory"):
        make(recipe_path, f"training.init_from={tmp_path}")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ConfigError, match=r"this run has no checkpoint yet"):
        make(recipe_path, f"training.init_from={tmp_path}")
