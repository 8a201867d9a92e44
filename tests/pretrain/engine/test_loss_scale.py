"""fp16's dynamic loss scale, by hand: halved by an overflow, doubled after loss_scale_window good steps.

DeepSpeed refuses fp16 on a CPU; with its support check overridden the logic runs here.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor

from pretrain.engine.build import build_engine, take_step
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.model.loss import loss_sums, micro_batch_loss

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("one_rank")]

STREAM = {
    "input_ids": torch.tensor([[2, 9, 3, 11, 12, 3, 2, 7, 3, 8, 3]]),
    "token_type_ids": torch.tensor([[0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1]]),
    "position_ids": torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4]]),
    "cu_seqlens": torch.tensor([0, 6, 11], dtype=torch.int32),
    "masked_positions": torch.tensor([1, 4, 7]),
    "pair_lengths": [6, 5],
}
LABELS, NEXT_SENTENCE_LABEL = torch.tensor([20, 21, 22]), torch.tensor([0, 1])
OVERFLOWING = 1e30
"""Times the loss: its gradients are beyond fp16's largest number, 65,504."""


@pytest.fixture
def make(monkeypatch, tiny_bert) -> Any:
    """Maker of an fp16 engine: (stage, **fp16 settings)."""
    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)

    def engine(stage: int, **fp16: Any) -> Any:
        config = {
            "train_batch_size": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
            "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "linear"}},
            "zero_optimization": {"stage": stage},
            "fp16": {"enabled": True, **fp16},
        }
        resolved = resolve_ds_config(config, path="j.json", world_size=1, total_steps=100, warmup_steps=1, on_cuda=True)
        return build_engine(tiny_bert(), resolved)

    return engine


def step(engine: Any, factor: float = 1.0) -> tuple[float, float]:
    """Make a step; return the loss scale after it and the lr that it would use next."""
    output = engine(**STREAM)
    sums = loss_sums(output.mlm_logits, LABELS, output.nsp_logits, NEXT_SENTENCE_LABEL)
    loss = micro_batch_loss(sums, global_masked_tokens=3, global_pairs=2, world_size=1, accumulation=1)
    engine.backward(loss * factor)
    take_step(engine)
    return float(engine.optimizer.loss_scale), float(engine.get_lr()[0])


def weights(engine: Any) -> Tensor:
    return torch.cat([part.detach().flatten() for part in engine.optimizer.single_partition_of_fp32_groups]).clone()


@pytest.mark.parametrize("stage", [1, 2])
def test_the_scale_goes_down_by_an_overflow_and_up_after_the_window(stage, make):
    engine = make(stage, initial_scale_power=8, loss_scale_window=3, hysteresis=1)
    scales, rates, moved = [], [], []
    factors = [*[1] * 4, OVERFLOWING, *[1] * 7, OVERFLOWING, OVERFLOWING, *[1] * 4]
    for factor in factors:
        before = weights(engine)
        scale, lr = step(engine, factor)
        scales.append(scale)
        rates.append(lr)
        moved.append(not torch.equal(before, weights(engine)))
    # The scale doubles at the step that has a multiple of three good ones right before it.
    assert scales == [
        *(256, 256, 256, 512),
        256,
        *(256, 256, 256, 512, 512, 512, 1024),
        *(512, 256),
        *(256, 256, 256, 512),
    ]
    assert engine.skipped_steps == 3
    # lr 0 at the first step of the warmup; an overflow moves neither weights nor schedule
    assert moved == [factor == 1 and number > 0 for number, factor in enumerate(factors)]
    assert [after == before for before, after in itertools.pairwise(rates)] == [factor != 1 for factor in factors[1:]]


def test_hysteresis_takes_a_second_overflow(make):
    engine = make(1, initial_scale_power=8, loss_scale_window=100, hysteresis=2)
    assert [step(engine, factor)[0] for factor in (1, OVERFLOWING, 1, OVERFLOWING, OVERFLOWING)] == [
        *(256, 256, 256, 128, 64)
    ]


def test_min_loss_scale_is_the_floor(make):
    engine = make(1, initial_scale_power=2, loss_scale_window=100, hysteresis=1, min_loss_scale=2)
    assert [step(engine, factor)[0] for factor in (1, OVERFLOWING)] == [4, 2]
    with pytest.raises(Exception, match="loss scale already at minimum"):
        step(engine, OVERFLOWING)


def test_the_scale_changes_no_update(make):
    """Scales of 1 and of 1,024 end at the same fp32 weights, but for what fp16 rounds; unscaled too late, lr is 0."""
    ends = []
    for scale in (1.0, 1024.0):
        engine = make(1, loss_scale=scale)
        start = weights(engine)
        for _ in range(4):
            assert step(engine)[0] == scale
        ends.append(weights(engine) - start)
    assert ends[0].norm() > 0.1
    assert (ends[0] - ends[1]).norm() < 0.2 * ends[0].norm()
