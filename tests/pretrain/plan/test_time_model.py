from __future__ import annotations

import pytest

from pretrain.plan.time_model import MEASURED_IMBALANCE, SECONDS_OF_STEP, from_tokens_per_second, seconds_of_run


@pytest.mark.parametrize(("devices", "published"), [(16, 1993), (64, 521), (256, 144), (1024, 44)])
@pytest.mark.parametrize("imbalance", [1.0, MEASURED_IMBALANCE])
def test_the_model_gives_deepspeeds_published_minutes(devices, published, imbalance):
    seconds = seconds_of_run(31_888 * 60, devices, 6_760, seconds_of_step=SECONDS_OF_STEP, imbalance=imbalance)
    assert seconds / 60 == pytest.approx(published, rel=0.05)


def test_a_speed_measured_on_as_many_devices_holds_all_costs():
    # 1,000,000 tokens at 100 a second
    time = from_tokens_per_second(1e6, 100, measured_on=4, devices=4, steps=500)
    assert time.seconds == pytest.approx(10_000)
    assert time.device_hours == pytest.approx(4 * 10_000 / 3600)


def test_another_number_of_devices_pays_for_every_step():
    time = from_tokens_per_second(1e6, 100, measured_on=1, devices=4, steps=500)
    assert time.seconds == pytest.approx(10_000 / 4 * 1.002 + 500 * 0.12)
