"""Offload to the host's memory: the same weights as without it, and a checkpoint that goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pretrain.engine.build import build_engine, take_step
from pretrain.engine.checkpoint import (
    Retention,
    TrainingState,
    begin_save,
    find_checkpoint,
    load_checkpoint,
    load_fp32_weights,
)
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.engine.ds_rules import has_async_io
from pretrain.model.loss import loss_sums, micro_batch_loss
from tests.pretrain.engine.test_loss_scale import LABELS, NEXT_SENTENCE_LABEL, STREAM

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120), pytest.mark.usefixtures("one_rank")]

CPU = {"device": "cpu"}
TORCH_ADAM = {"torch_adam": True, "fused": True}


def make_config(stage: int, params: dict[str, Any], **zero: Any) -> dict[str, Any]:
    config = {
        "train_batch_size": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01, **params}},
        "zero_optimization": {"stage": stage, **zero},
    }
    return resolve_ds_config(config, path="j.json", world_size=1, total_steps=9, warmup_steps=None, on_cuda=False)


def train_steps(engine: Any, steps: int) -> None:
    for _ in range(steps):
        output = engine(**STREAM)
        sums = loss_sums(output.mlm_logits, LABELS, output.nsp_logits, NEXT_SENTENCE_LABEL)
        engine.backward(micro_batch_loss(sums, global_masked_tokens=3, global_pairs=2, world_size=1, accumulation=1))
        take_step(engine)


def save(engine: Any, config: dict[str, Any], run_dir: Any, step: int) -> None:
    state = TrainingState(step=step, epoch=0, consumed=2 * step, pairs_seen=2 * step, tokens_seen=step)
    settings: Any = {"world_size": 1, "recipe": {}, "ds_config": config, "fingerprints": {}, "retention": Retention(3)}
    begin_save(engine, run_dir, state, **settings).finish()


def weights_after_three(config: dict[str, Any], tiny_bert: Any, run_dir: Any) -> dict[str, torch.Tensor]:
    engine = build_engine(tiny_bert(), config)
    train_steps(engine, 3)
    save(engine, config, run_dir, 3)
    found = find_checkpoint(run_dir)
    assert found is not None
    return load_fp32_weights(found, tiny_bert())


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).detach().abs().max().item() for name in one)


def check_offload(stage: int, params: dict[str, Any], zero: dict[str, Any], tiny_bert: Any, tmp_path: Any) -> None:
    plain = make_config(stage, TORCH_ADAM)
    config = make_config(stage, params, **zero)
    expected = weights_after_three(plain, tiny_bert, tmp_path / "plain")
    fresh = dict(tiny_bert().named_parameters())
    name = "bert.encoder.layer.0.output.dense.weight"
    assert (expected[name] - fresh[name]).abs().max() > 1e-3
    assert largest_difference(weights_after_three(config, tiny_bert, tmp_path / "offload"), expected) < 1e-6

    # One step, saved, and two more by another engine.
    begun = build_engine(tiny_bert(), config)
    train_steps(begun, 1)
    save(begun, config, tmp_path / "resumed", 1)
    resumed = build_engine(tiny_bert(), config)
    load_checkpoint(resumed, find_checkpoint(tmp_path / "resumed"))
    train_steps(resumed, 2)
    save(resumed, config, tmp_path / "resumed", 3)
    found = find_checkpoint(tmp_path / "resumed")
    assert found is not None
    assert largest_difference(load_fp32_weights(found, tiny_bert()), expected) < 1e-6


PLACES = [
    pytest.param(1, {"offload_optimizer": CPU}, id="zero1"),
    pytest.param(2, {"offload_optimizer": CPU}, id="zero2"),
    pytest.param(3, {"offload_optimizer": CPU}, id="zero3"),
    pytest.param(3, {"offload_param": CPU}, id="zero3-parameters"),
    pytest.param(3, {"offload_optimizer": CPU, "offload_param": CPU}, id="zero3-both"),
]


@pytest.mark.parametrize(("stage", "zero"), PLACES)
def test_weights_are_those_without_offload(stage, zero, tiny_bert, tmp_path):
    """With torch's Adam, which needs no build."""
    check_offload(stage, TORCH_ADAM, zero, tiny_bert, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("stage", "zero"), PLACES)
def test_weights_of_deepspeed_s_own_adam(stage, zero, tiny_bert, tmp_path):
    """With DeepSpeed's CPUAdam, compiled at the first start, about 100 s."""
    check_offload(stage, {"torch_adam": False}, zero, tiny_bert, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not has_async_io(), reason="libaio is missing, DeepSpeed's async_io cannot be compiled")
@pytest.mark.parametrize("key", ["offload_optimizer", "offload_param"])
def test_weights_with_the_states_on_a_disk(key, tiny_bert, tmp_path):
    """With DeepSpeed's CPUAdam and async_io, both compiled at the first start."""
    disk = tmp_path / "disk"
    disk.mkdir()
    zero = {"offload_optimizer": CPU, key: {"device": "nvme", "nvme_path": str(disk)}}
    expected = weights_after_three(make_config(3, TORCH_ADAM), tiny_bert, tmp_path / "plain")
    found = weights_after_three(make_config(3, {"torch_adam": False}, **zero), tiny_bert, tmp_path / "nvme")
    assert largest_difference(found, expected) < 1e-6
