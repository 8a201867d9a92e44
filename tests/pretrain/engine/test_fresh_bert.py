"""A fresh BERT under every ZeRO stage: the same losses, and the types that the engine says it has."""

from __future__ import annotations

from typing import Any

import pytest

from pretrain.engine.build import build_engine, describe_precision, take_step
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.model.loss import loss_sums, micro_batch_loss
from tests.pretrain.engine.test_loss_scale import LABELS, NEXT_SENTENCE_LABEL, STREAM

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120), pytest.mark.usefixtures("one_rank")]


def make(stage: int, tiny_bert: Any, **config: Any) -> Any:
    given = {"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, **config}
    given["zero_optimization"] = {"stage": stage}
    resolved = resolve_ds_config(given, path="j.json", world_size=1, total_steps=9, warmup_steps=None, on_cuda=False)
    return build_engine(tiny_bert(), resolved)


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
