from __future__ import annotations

import pytest
import torch

from pretrain.engine.build import build_engine
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.plan.schedule import lr_at, milestones


def resolved(scheduler, steps=20, warmup=4):
    config = {"train_batch_size": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
    if scheduler:
        config["scheduler"] = scheduler
    return resolve_ds_config(
        config, path="j", world_size=1, total_steps=steps, warmup_steps=warmup if scheduler else None, on_cuda=False
    )


def test_warmup_decay_by_hand():
    config = resolved({"type": "WarmupDecayLR", "params": {"warmup_type": "linear"}})
    assert milestones(20, 4) == [1, 4, 5, 10, 15, 20]
    found = lr_at(config, [1, 2, 3, 4, 5, 6, 7])
    assert list(found.values()) == pytest.approx([0, 2.5e-4, 5e-4, 7.5e-4, 1e-3, 9.375e-4, 8.75e-4])


def test_constant_without_a_schedule():
    assert lr_at(resolved(None), [1, 20]) == {1: 1e-3, 20: 1e-3}


@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupCosineLR", "WarmupDecayLR"])
def test_it_is_what_the_engine_uses(kind, one_rank):
    config = resolved({"type": kind, "params": {}}, steps=6, warmup=2)
    engine = build_engine(torch.nn.Linear(2, 2), config)
    used = []
    for _ in range(6):
        used.append(engine.get_lr()[0])
        engine.lr_scheduler.step()
    assert list(lr_at(config, [1, 2, 3, 4, 5, 6]).values()) == pytest.approx(used)
