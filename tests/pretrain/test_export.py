"""Export: a stock model with proof, or nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer, BertForPreTraining

from pretrain import export
from pretrain.engine.build import build_engine
from pretrain.engine.checkpoint import Retention, TrainingState, begin_save
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.initial import build_model
from pretrain.recipe import Recipe, load_recipe
from pretrain.tokenizer import load_tokenizer_info
from runtime.command import ConfigError

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]


@pytest.fixture(scope="module", autouse=True)
def group(one_rank):
    return one_rank


@pytest.fixture(scope="module")
def recipe(recipe_path) -> Recipe:
    return load_recipe(recipe_path)


@pytest.fixture(scope="module")
def run_dir(recipe, tmp_path_factory) -> Path:
    """A run with one checkpoint, of weights as they were drawn."""
    path = tmp_path_factory.mktemp("run")
    config = resolve_ds_config(
        {"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}},
        path="j.json",
        world_size=1,
        total_steps=1,
        warmup_steps=None,
        on_cuda=False,
    )
    tokenizer = load_tokenizer_info(recipe.tokenizer)
    begin_save(
        build_engine(build_model(recipe, tokenizer), config),
        path,
        TrainingState(step=1),
        world_size=1,
        recipe=recipe.model_dump(mode="json"),
        ds_config=config,
        fingerprints={"tokenizer": tokenizer.fingerprint, "shards": "s"},
        retention=Retention(1),
    ).finish()
    return path


@pytest.fixture(scope="module")
def model_dir(run_dir, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model"
    export.export(run_dir, path)
    return path


def test_tensors_of_the_stock_class(model_dir):
    """Cases H1 and H4: tied tensors once, no position_ids, LayerNorm's weight and bias by these names."""
    with safe_open(model_dir / "model.safetensors", "pt") as file:
        stored = set(file.keys())
        dtypes = {file.get_tensor(name).dtype for name in stored}
    model = BertForPreTraining.from_pretrained(model_dir)
    assert len(model.state_dict()) == 48  # two layers; one layer has 32
    assert len(stored) == 46
    assert dtypes == {torch.float32}
    assert "bert.embeddings.position_ids" not in stored
    assert "bert.embeddings.LayerNorm.weight" in stored
    assert "bert.embeddings.LayerNorm.gamma" not in stored
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert model.cls.predictions.decoder.bias is model.cls.predictions.bias


def test_one_layer_has_thirty_tensors_for_thirty_two_keys(recipe):
    """Case H1 in its own figures."""
    small = recipe.model_copy(update={"model": recipe.model.model_copy(update={"num_hidden_layers": 1})})
    state = build_model(small, load_tokenizer_info(recipe.tokenizer)).state_dict()
    assert len(state) == 32
    assert len({tensor.data_ptr() for tensor in state.values()}) == 30


def test_vocabulary_padding_is_trimmed(model_dir, recipe):
    """Case H3: 1,000 tokens, padded to 1,024 inside: embedding, decoder, bias and config.json agree on 1,000."""
    assert build_model(recipe, load_tokenizer_info(recipe.tokenizer)).config.vocab_size == 1024
    model = BertForPreTraining.from_pretrained(model_dir)
    sizes = {
        model.bert.embeddings.word_embeddings.weight.shape[0],
        model.cls.predictions.decoder.weight.shape[0],
        model.cls.predictions.decoder.bias.shape[0],
        model.cls.predictions.bias.shape[0],
        json.loads((model_dir / "config.json").read_text())["vocab_size"],
    }
    assert sizes == {1000}


def test_config_is_stock(model_dir):
    config = json.loads((model_dir / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"]
    assert config["model_type"] == "bert"
    assert config["pad_token_id"] == AutoTokenizer.from_pretrained(model_dir).pad_token_id
    assert "zerobert" not in json.dumps(config)


def test_provenance_is_kept(model_dir, run_dir):
    report = json.loads((model_dir / "export.json").read_text())
    assert report["largest_logit_difference"] <= 1e-5
    assert report["checkpoint"]["tag"] == "step_00000001"
    card = (model_dir / "README.md").read_text()
    for fingerprint in (*report["fingerprints"].values(), report["checkpoint"]["fingerprint"]):
        assert fingerprint in card


def _prefixed(state):
    return {f"module.{name}": tensor for name, tensor in state.items()}


def _without_a_key(state):
    return {name: tensor for name, tensor in state.items() if name != "bert.pooler.dense.bias"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_prefixed, r"missing keys: \['bert.embeddings.*unexpected keys: \['module.bert"),
        (_without_a_key, r"missing keys: \['bert.pooler.dense.bias'\]; unexpected keys: none"),
    ],
)
def test_wrong_keys_fail(damage, message, run_dir, tmp_path, monkeypatch, capsys):
    """Case H2: transformers alone would load random weights and only report it."""
    original = export.load_fp32_weights
    monkeypatch.setattr(export, "load_fp32_weights", lambda *arguments: damage(original(*arguments)))
    to = tmp_path / "model"
    with pytest.raises(export.ExportError, match=message):
        export.export(run_dir, to)
    assert export.main([str(run_dir), "--to", str(to)]) == 1
    assert f"no {to} was left behind" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [1e-3, float("nan")])
def test_other_logits_fail(value, run_dir, tmp_path, monkeypatch):
    """The stock model is written with one weight changed: the proof must see it."""
    original = export.grow_vocabulary

    def spoil(state, size):
        spoiled = original(state, size)
        name = "bert.encoder.layer.1.output.dense.bias"
        spoiled[name] = spoiled[name].clone()
        spoiled[name][3] += value
        return spoiled

    monkeypatch.setattr(export, "grow_vocabulary", spoil)
    with pytest.raises(export.ExportError, match=r"largest logit difference .* is above 1e-05"):
        export.export(run_dir, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_another_tokenizer_fails(run_dir, tmp_path, monkeypatch, recipe):
    other = tmp_path / "tokenizer"
    shutil.copytree(recipe.tokenizer, other)
    (other / "tokenizer.json").write_text((other / "tokenizer.json").read_text() + "\n")
    with pytest.raises(ConfigError, match=r"tokenizer.json is not the tokenizer that .* was trained with"):
        export.export(run_dir, tmp_path / "model", tokenizer_dir=other)


def test_a_damaged_file_of_the_right_size(run_dir, tmp_path):
    damaged = tmp_path / "run"
    shutil.copytree(run_dir, damaged)
    weights = damaged / "checkpoints" / "step_00000001" / "mp_rank_00_model_states.pt"
    weights.write_bytes(bytes(weights.stat().st_size))
    with pytest.raises(
        ConfigError,
        match=r"model_states.pt: its sha256 is not that of checkpoint.json: .*damaged\n--step takes an older one",
    ):
        export.export(damaged, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_bad_input(run_dir, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match=r"full: exists already"):
        export.export(run_dir, tmp_path / "full")
    with pytest.raises(ConfigError, match=r"nowhere: no such run dir"):
        export.export(tmp_path / "nowhere", tmp_path / "model")
    with pytest.raises(ConfigError, match=r"full: there is no checkpoint in it"):
        export.export(tmp_path / "full", tmp_path / "model")
    with pytest.raises(ConfigError, match=r"no checkpoint of step 7; there are: 1"):
        export.export(run_dir, tmp_path / "model", step=7)
