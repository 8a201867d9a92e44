"""The learning rate that each update uses, through the real engine; and what `take_step` says of it."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain.engine.build import batch_sizes_of, describe_precision, take_step
from pretrain.engine.checkpoint import Retention, TrainingState, begin_save, find_checkpoint, load_checkpoint
from pretrain.engine.ds_config import BatchSizes, resolve_ds_config

L1 = [0, 2.5e-4, 5e-4, 7.5e-4, 1e-3, 9.375e-4, 8.75e-4]
"""Case L1: warmup 4 linear, total 20, max 1e-3."""


def _config(*, stage: int = 0, warmup: int | None = 4, schedule: dict[str, Any] | None = None, **rest: Any) -> Any:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": stage},
        **rest,
    }
    if schedule is not None:
        config["scheduler"] = schedule
    return resolve_ds_config(config, path="ds.json", world_size=1, total_steps=20, warmup_steps=warmup, on_cuda=False)


def _decay(**params: Any) -> dict[str, Any]:
    return {"type": "WarmupDecayLR", "params": {"warmup_type": "linear", **params}}


def _loss(engine: Any, step: int) -> torch.Tensor:
    ids = torch.randint(0, 64, (1, 8), generator=torch.Generator().manual_seed(step))
    output = engine(
        input_ids=ids,
        token_type_ids=torch.zeros_like(ids),
        position_ids=torch.arange(8)[None],
        cu_seqlens=torch.tensor([0, 8], dtype=torch.int32),
        masked_positions=torch.tensor([1, 2]),
        pair_lengths=[8],
    )
    return output.mlm_logits.float().square().mean() + output.nsp_logits.float().square().mean()


def _train(engine: Any, first: int, last: int) -> list[float]:
    """Make the updates first … last - 1; return the lr of each, as the optimizer had it."""
    rates = []
    for step in range(first, last):
        engine.backward(_loss(engine, step))
        (rate,) = {float(group["lr"]) for group in engine.optimizer.param_groups}
        assert rate == engine.get_lr()[0]
        rates.append(rate)
        take_step(engine)
    return rates


@pytest.mark.parametrize("stage", [0, 2])
def test_l1_fresh_and_resumed(make_engine: Any, tmp_path: Path, stage: int):
    """Case L1, and the weights of a resumed run are those of one that went through."""
    config = _config(stage=stage, schedule=_decay())
    through = make_engine(config)
    rates = _train(through, 0, 4)
    saved = begin_save(
        through,
        tmp_path,
        TrainingState(step=4),
        world_size=1,
        recipe={},
        ds_config=config,
        fingerprints={},
        retention=Retention(1),
    ).finish()
    rates += _train(through, 4, 7)
    assert rates == pytest.approx(L1, abs=1e-12)

    resumed = make_engine(config)
    checkpoint = find_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.path == saved
    load_checkpoint(resumed, checkpoint)
    assert _train(resumed, 4, 7) == pytest.approx(L1[4:], abs=1e-12)
    for ours, theirs in zip(resumed.module.parameters(), through.module.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_first_update_of_a_warmup_changes_nothing_the_second_does(make_engine: Any):
    engine = make_engine(_config(schedule=_decay()))
    before = [parameter.detach().clone() for parameter in engine.module.parameters()]
    _train(engine, 0, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, engine.module.parameters(), strict=True))
    _train(engine, 1, 2)
    assert not any(torch.equal(a, b) for a, b in zip(before, engine.module.parameters(), strict=True) if a.abs().sum())


def test_the_end_of_the_schedule_is_0(make_engine: Any):
    rates = _train(make_engine(_config(schedule=_decay())), 0, 22)
    assert rates[19] == pytest.approx(1e-3 / 16)
    assert rates[20:] == [0.0, 0.0]


def test_a_warmup_of_one_step_is_one_step(make_engine: Any):
    """DeepSpeed makes two of one, without a word: half of the height at the second update."""
    rates = _train(make_engine(_config(warmup=1, schedule=_decay())), 0, 3)
    assert rates == pytest.approx([0, 1e-3, 1e-3 * 18 / 19], abs=1e-12)


def test_other_schedules_begin_at_step_0_too(make_engine: Any):
    linear = {"type": "WarmupLR", "params": {"warmup_type": "linear"}}
    assert _train(make_engine(_config(schedule=linear)), 0, 6) == pytest.approx([*L1[:5], 1e-3])
    logarithmic = {"type": "WarmupLR", "params": {}}
    expected = [1e-3 * min(1.0, math.log(step + 1) / math.log(4)) for step in range(5)]
    assert _train(make_engine(_config(schedule=logarithmic)), 0, 5) == pytest.approx(expected)
    cosine = {"type": "WarmupCosineLR", "params": {"warmup_type": "linear"}}
    assert _train(make_engine(_config(schedule=cosine)), 0, 4) == pytest.approx(L1[:4])


def test_without_a_schedule_the_lr_is_constant(make_engine: Any):
    assert _train(make_engine(_config(warmup=None)), 0, 3) == [1e-3] * 3


def test_the_schedule_counts_steps_not_micro_steps(make_engine: Any):
    engine = make_engine(_config(schedule=_decay(), gradient_accumulation_steps=2))
    assert batch_sizes_of(engine) == BatchSizes(2, 1, 2)
    assert _train(engine, 0, 6) == pytest.approx([rate for rate in L1[:3] for _ in range(2)], abs=1e-12)


@pytest.mark.parametrize("stage", [0, 2])
def test_take_step_gives_the_norm_of_the_gradient_before_clipping(make_engine: Any, tiny_bert: Any, stage: int):
    config = _config(stage=stage, gradient_accumulation_steps=2, gradient_clipping=1e-3, warmup=None)
    engine = make_engine(config)
    plain = tiny_bert()
    gradients = [torch.autograd.grad(_loss(plain, step), list(plain.parameters())) for step in range(2)]
    mean = torch.cat([((a + b) / 2).flatten() for a, b in zip(*gradients, strict=True)])
    norms = []
    for step in range(3):
        engine.backward(_loss(engine, step))
        norms.append(take_step(engine))
    assert norms[0] is None  # between
    assert float(norms[1]) == pytest.approx(mean.norm().item(), rel=1e-5)
    assert norms[2] is None  # between again, though the engine still knows the last
    assert mean.norm() > 1e-2  # above what it is clipped to


def test_what_the_engine_computes_in_is_said(make_engine: Any):
    assert describe_precision(make_engine(_config(warmup=None))) == (
        "parameters float32, gradients added up in float32, ZeRO stage 0"
    )
    bf16 = _config(stage=2, bf16={"enabled": True}, warmup=None)
    assert describe_precision(make_engine(bf16)) == ("parameters bfloat16, gradients added up in float32, ZeRO stage 2")


def test_deepspeed_is_silent_about_its_schedule(make_engine: Any, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, logger="DeepSpeed"):
        make_engine(_config(schedule=_decay()))
    assert not [record for record in caplog.records if "learning rate" in record.getMessage()]
