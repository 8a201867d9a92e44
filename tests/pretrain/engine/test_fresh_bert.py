"""A fresh BERT under every ZeRO stage: the same losses, and the types that the engine says it has."""

from __future__ import annotations

from typing import Any

import pytest

from pretrain.engine.build import build_engine, describe_precision, take_step
from pretrain.engine.ds_buckets import element_bytes, sends_in_one_piece
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.model.loss import loss_sums, micro_batch_loss
from tests.pretrain.engine.test_loss_scale import LABELS, NEXT_SENTENCE_LABEL, STREAM

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120), pytest.mark.usefixtures("one_rank")]


def make(stage: int, tiny_bert: Any, **config: Any) -> Any:
    given = {"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, **config}
    return build_engine(tiny_bert(), resolve({"zero_optimization": {"stage": stage}, **given}))


def resolve(config: dict[str, Any]) -> dict[str, Any]:
    return resolve_ds_config(config, path="j.json", world_size=1, total_steps=9, warmup_steps=None, on_cuda=False)


def losses(engine: Any, steps: int = 5) -> list[float]:
    found = []
    for _ in range(steps):
        output = engine(**STREAM)
        sums = loss_sums(output.mlm_logits, LABELS, output.nsp_logits, NEXT_SENTENCE_LABEL)
        loss = micro_batch_loss(sums, global_masked_tokens=3, global_pairs=2, world_size=1, accumulation=1)
        engine.backward(loss)
        take_step(engine)
        found.append(loss.item())
    return found


def test_z8_zero_3_trains_a_fresh_bert(tiny_bert):
    """Case Z8: the losses fall, and are those of no ZeRO at all."""
    plain, sharded = losses(make(0, tiny_bert)), losses(make(3, tiny_bert))
    assert sharded[-1] < sharded[0] - 0.1
    assert sharded == pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_p4_sums_are_in_fp32_and_the_engine_says_so(stage, tiny_bert):
    """Case P4: bf16 parameters, gradients added up in fp32 where the JSON says nothing."""
    engine = make(stage, tiny_bert, bf16={"enabled": True})
    assert describe_precision(engine) == f"parameters bfloat16, gradients added up in float32, ZeRO stage {stage}"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("zero", [{"stage": 1}, {"stage": 2}, {"stage": 1, "offload_optimizer": {"device": "cpu"}}])
def test_o1_what_is_said_of_buckets_is_what_deepspeed_does(zero, precision, tiny_bert):
    """Case O1: whether gradients go through buckets at all, and the bytes of an element."""
    optimizer = {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}}
    config: dict[str, Any] = {"train_batch_size": 2, "optimizer": optimizer, "zero_optimization": zero}
    config = resolve({**config, "bf16": {"enabled": precision == "bf16"}})
    engine = build_engine(tiny_bert(), config)
    assert hasattr(engine.optimizer, "setup_buckets") != sends_in_one_piece(config)
    if not sends_in_one_piece(config):
        assert engine.optimizer._gradient_reduction_buffer_dtype().itemsize == element_bytes(config)
        engine.optimizer.setup_buckets()
        sizes = {len(buffer) for bucket in engine.optimizer.ipg_buckets.values() for buffer in bucket.buffer}
        assert sizes == {config["zero_optimization"]["reduce_bucket_size"]}
