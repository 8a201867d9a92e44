from __future__ import annotations

import pytest

from pretrain.parameters import Parameter
from pretrain.plan.traffic import traffic_of_step

PARAMETERS = [Parameter("a", (500,), "encoder"), Parameter("b", (50, 10), "encoder")]  # P = 1,000


def config(stage, optimizer="AdamW", **more):
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": optimizer, "params": {"lr": 1e-3}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
    } | more


@pytest.mark.parametrize(
    ("stage", "algorithm", "deepspeed"),
    # 2 bytes x 1,000 x 3/4 is 1,500 for a reduction or a gathering
    [(0, 3000, 3000), (1, 3000, 4500), (2, 3000, 4500), (3, 4500, 4500)],
)
def test_bytes_by_hand(stage, algorithm, deepspeed):
    traffic = traffic_of_step(PARAMETERS, config(stage), world_size=4)
    assert (traffic.algorithm, traffic.deepspeed) == (algorithm, deepspeed)


def test_alone_nothing_is_sent():
    assert traffic_of_step(PARAMETERS, config(2), world_size=1).deepspeed == 0


def test_gradients_in_fp32_and_micro_steps():
    assert traffic_of_step(PARAMETERS, config(1, communication_data_type="fp32"), 4).algorithm == 750 * (4 + 2)
    assert traffic_of_step(PARAMETERS, config(1, gradient_accumulation_steps=8), 4).algorithm == 750 * (2 + 2)
    assert traffic_of_step(PARAMETERS, config(2, gradient_accumulation_steps=8), 4).algorithm == 750 * (16 + 2)


def test_lamb_adds_two_norms_a_tensor():
    difference = traffic_of_step(PARAMETERS, config(1, "Lamb"), 4).algorithm - 3000
    assert difference == 2 * 2 * 8 * 2 * 3 // 4
