"""torch_autocast of the JSON on a CPU: the layers run, and learn, with operators in bf16."""

from __future__ import annotations

import pytest
import torch

from pretrain.engine.build import build_engine, describe_precision, take_step
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.model.loss import loss_sums, micro_batch_loss
from tests.pretrain.engine.test_loss_scale import LABELS, NEXT_SENTENCE_LABEL, STREAM

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("one_rank")]


@pytest.mark.parametrize("stage", [0, 1])
def test_a_model_learns_under_autocast(stage: int, tiny_bert):
    config = {
        "train_batch_size": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {"stage": stage},
        "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
    }
    resolved = resolve_ds_config(config, path="j.json", world_size=1, total_steps=9, warmup_steps=None, on_cuda=False)
    engine = build_engine(tiny_bert(), resolved)
    assert describe_precision(engine) == (
        f"parameters float32, operators by autocast in bfloat16, gradients added up in float32, ZeRO stage {stage}"
    )
    losses = []
    for _ in range(5):
        output = engine(**STREAM)
        assert output.mlm_logits.dtype == torch.bfloat16
        sums = loss_sums(output.mlm_logits, LABELS, output.nsp_logits, NEXT_SENTENCE_LABEL)
        loss = micro_batch_loss(sums, global_masked_tokens=3, global_pairs=2, world_size=1, accumulation=1)
        engine.backward(loss)
        take_step(engine)
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
