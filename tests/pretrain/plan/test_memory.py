"""Hand-worked bytes of a model of two matrices and a bias; real ranks: benchmarks/memory.py and the slow test."""

from __future__ import annotations

import pytest

from pretrain.engine.ds_config import resolve_ds_config
from pretrain.parameters import Parameter
from pretrain.plan.memory import model_states

PARAMETERS = [Parameter("a", (5, 6), "encoder"), Parameter("bias", (3,), "encoder"), Parameter("b", (7, 2), "encoder")]
"""Group with decay: 30 + 14 = 44, without: 3. Flat for 2 ranks: 44 and 4, for 4: 48 and 8."""


def resolved(stage, precision="bf16", world=2, **more):
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}} | more
    config["zero_optimization"] = {"stage": stage, "reduce_bucket_size": 10, **more.get("zero_optimization", {})}
    if precision != "fp32":
        config[precision] = {"enabled": True}
    return resolve_ds_config(config, path="j", world_size=world, total_steps=1, warmup_steps=None, on_cuda=True)


@pytest.mark.parametrize(
    ("stage", "precision", "world", "wanted"),
    [
        # parameters, gradients, masters, moments
        (0, "bf16", 2, (94, 94, 188, 376)),
        (0, "fp32", 2, (188, 188, 0, 376)),
        # whole sums of 48 elements in fp32 and whole bf16 gradients of 47; masters of half
        (1, "bf16", 2, (96, 192 + 94, 96, 192)),
        (2, "bf16", 2, (96, 96, 96, 192)),
        # slices of 22 and 2: rank 0 touches a and the bias (33 whole elements), rank 1 a, b and the bias (47)
        (2, "fp32", 2, (192, 188, 96, 192)),
        # slices of 12 and 2 of flats 48 and 8; the most touched: rank 2 has a's last 6 and b's first 6
        (2, "fp32", 4, (224, 44 * 4, 56, 112)),
        # shares: 15 + 7 + 2; all three stay whole on each rank beside them
        (3, "bf16", 2, ((24 + 47) * 2, 96, 96, 192)),
        (3, "fp32", 2, ((24 + 47) * 4, 96, 96, 192)),
    ],
)
def test_states_by_hand(stage, precision, world, wanted):
    states = model_states(PARAMETERS, resolved(stage, precision, world), world)
    assert (states.parameters, states.gradients, states.masters, states.moments) == wanted
    assert states.buckets == (10 * (2 if precision == "bf16" else 4) if stage == 3 else 0)
    assert states.total == sum(wanted) + states.buckets


def test_immediate_grad_update_frees_the_bf16_gradients():
    config = resolved(1)
    config["bf16"]["immediate_grad_update"] = True
    assert model_states(PARAMETERS, config, 2).gradients == 192


def test_threshold_of_stage_3_decides_what_stays_whole():
    config = resolved(3, zero_optimization={"stage3_param_persistence_threshold": 14})
    assert model_states(PARAMETERS, config, 2).parameters == (24 + 14 + 3) * 2
    assert model_states(PARAMETERS, config, 1).parameters == 47 * 2


@pytest.mark.parametrize(
    ("optimizer", "moments"),
    [
        ({"type": "Lion", "params": {"lr": 1e-3}}, 1),
        ({"type": "Lamb", "params": {"lr": 1e-3}}, 2),
        ({"type": "SGD", "params": {"lr": 1e-3, "momentum": 0.9}}, 1),
        ({"type": "SGD", "params": {"lr": 1e-3}}, 0),
        ({"type": "NAdam", "params": {"lr": 1e-3}}, 2),
    ],
)
def test_optimizers_differ_in_moments(optimizer, moments):
    config = resolved(0) | {"optimizer": optimizer}
    assert model_states(PARAMETERS, config, 2).moments == 47 * 4 * moments


def test_offload_moves_masters_moments_and_gradients():
    config = resolved(2, zero_optimization={"offload_optimizer": {"device": "cpu"}})
    states = model_states(PARAMETERS, config, 2)
    assert (states.gradients, states.masters, states.moments) == (0, 0, 0)
    assert states.host == 96 * 2 + 192


def test_every_other_stage_of_the_same_json():
    config = resolved(1, world=2)
    for stage in (0, 1, 2, 3):
        own = resolved(stage, world=2)
        assert model_states(PARAMETERS, config, 2, stage=stage) == model_states(PARAMETERS, own, 2)
