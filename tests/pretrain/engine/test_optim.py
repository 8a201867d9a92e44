"""Two groups: weight decay on matrices, none on biases and LayerNorm (case C5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pretrain.engine.optim import named_groups, parameter_groups
from pretrain.model.bert import StreamBert


def test_c5_no_bias_and_no_layer_norm_is_decayed(tiny_bert: Callable[[], StreamBert]):
    decayed, not_decayed = ([name for name, _ in group] for group in named_groups(tiny_bert()))
    assert not any("bias" in name or "LayerNorm" in name for name in decayed)
    assert all("bias" in name or "LayerNorm" in name for name in not_decayed)
    assert "bert.embeddings.word_embeddings.weight" in decayed
    assert "cls.predictions.transform.LayerNorm.weight" in not_decayed


def test_c5_the_groups_add_up_to_all_parameters(tiny_bert: Callable[[], StreamBert]):
    model = tiny_bert()
    groups = named_groups(model)
    everything = [id(parameter) for group in groups for _, parameter in group]
    assert len(everything) == len(set(everything))
    assert set(everything) == {id(parameter) for parameter in model.parameters()}
    # By hand: V=64, H=16, I=32, 16 positions, 2 types, 1 layer.
    matrices = 16 * (64 + 16 + 2) + 4 * 16 * 16 + 2 * 16 * 32 + 16 * 16 + 16 * 16 + 2 * 16
    vectors = 2 * 16 + (4 * 16 + 2 * 16) + (32 + 16 + 2 * 16) + 16 + (16 + 2 * 16) + 64 + 2
    assert [sum(parameter.numel() for _, parameter in group) for group in groups] == [matrices, vectors]


def test_c5_tied_parameters_count_once_under_their_first_name(tiny_bert: Callable[[], StreamBert]):
    model = tiny_bert()
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    names = [name for group in named_groups(model) for name, _ in group]
    assert "cls.predictions.decoder.weight" not in names
    assert "cls.predictions.decoder.bias" not in names
    assert "cls.predictions.bias" in names


def test_the_first_group_takes_the_json_s_decay_the_second_none(tiny_bert: Callable[[], StreamBert]):
    model = tiny_bert()
    first, second = parameter_groups(model)
    assert "weight_decay" not in first
    assert second["weight_decay"] == 0.0
    for group, named in zip((first, second), named_groups(model), strict=True):
        assert [id(parameter) for parameter in group["params"]] == [id(parameter) for _, parameter in named]


@pytest.mark.parametrize("stage", [0, 2])
def test_the_engine_s_optimizer_has_these_groups(make_engine: Any, stage: int):
    engine = make_engine(
        {
            "train_batch_size": 1,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.25, "torch_adam": True}},
            "zero_optimization": {"stage": stage},
        }
    )
    assert [group["weight_decay"] for group in engine.optimizer.param_groups] == [0.25, 0.0]
