"""The means of a log line by hand: weighted by tokens and pairs, not means of means."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pretrain import metrics
from pretrain.flops import ModelShape, WorkCounts
from pretrain.metrics import LossMeter, SpeedMeter, peak_memory_gib
from pretrain.model.loss import LossSums


def _sums(*values: float) -> LossSums:
    return LossSums(*(torch.tensor(value, dtype=torch.float32) for value in values))


def test_means_are_weighted_by_tokens_and_pairs(device: torch.device):
    meter = LossMeter(device)
    # mlm_loss, nsp_loss, mlm_correct, mlm_tokens, nsp_correct, nsp_pairs
    meter.add(_sums(12.0, 1.0, 1, 3, 2, 2))  # means 4.0 and 0.5
    meter.add(_sums(1.0, 6.0, 1, 1, 1, 6))  # means 1.0 and 1.0
    values = meter.reduce("train")
    assert values == pytest.approx(
        {
            "train/loss": 13 / 4 + 7 / 8,  # not (4.0 + 1.0) / 2 + 0.75
            "train/mlm_loss": 3.25,
            "train/mlm_accuracy": 2 / 4,
            "train/nsp_loss": 7 / 8,
            "train/nsp_accuracy": 3 / 8,
        }
    )
    assert next(iter(values)) == "train/loss"


def test_reading_starts_anew(device: torch.device):
    meter = LossMeter(device)
    meter.add(_sums(100.0, 100.0, 9, 10, 9, 10))
    meter.reduce("train")
    meter.add(_sums(4.0, 1.0, 0, 2, 1, 1))
    assert meter.reduce("eval") == pytest.approx(
        {
            "eval/loss": 3.0,
            "eval/mlm_loss": 2.0,
            "eval/mlm_accuracy": 0.0,
            "eval/nsp_loss": 1.0,
            "eval/nsp_accuracy": 1.0,
        }
    )


def test_without_nsp_there_is_no_nsp(device: torch.device):
    meter = LossMeter(device)
    meter.add(_sums(6.0, 0.0, 1, 4, 0, 0))
    assert meter.reduce("train") == {"train/loss": 1.5, "train/mlm_loss": 1.5, "train/mlm_accuracy": 0.25}


def test_nothing_masked_is_0_not_nan(device: torch.device):
    meter = LossMeter(device)
    meter.add(_sums(0.0, 0.5, 0, 0, 1, 1))
    values = meter.reduce("train")
    assert values["train/mlm_loss"] == values["train/mlm_accuracy"] == 0.0
    assert values["train/loss"] == 0.5
    assert LossMeter(device).reduce("train") == {"train/loss": 0.0, "train/mlm_loss": 0.0, "train/mlm_accuracy": 0.0}


def test_a_perfect_nsp_loss_of_0_is_still_shown(device: torch.device):
    meter = LossMeter(device)
    meter.add(_sums(1.0, 0.0, 1, 1, 4, 4))
    assert meter.reduce("train")["train/nsp_loss"] == 0.0


def test_sums_beyond_what_float32_can_count(device: torch.device):
    meter = LossMeter(device)
    meter.add(_sums(0.0, 0.0, 2**24, 2**25, 0, 0))
    for _ in range(100):
        meter.add(_sums(0.0, 0.0, 1, 1, 0, 0))
    assert meter.reduce("train")["train/mlm_accuracy"] == (2**24 + 100) / (2**25 + 100)


def test_all_ranks_count(device: torch.device, monkeypatch: pytest.MonkeyPatch):
    other = torch.tensor([1.0, 6.0, 1, 1, 1, 6], dtype=torch.float64)  # what another rank brings
    monkeypatch.setattr(metrics, "sum_over_ranks", lambda values: values.add_(other))
    meter = LossMeter(device)
    meter.add(_sums(12.0, 1.0, 1, 3, 2, 2))
    assert meter.reduce("train")["train/mlm_loss"] == 3.25


def test_the_graph_is_let_go(device: torch.device):
    meter = LossMeter(device)
    leaf = torch.tensor(2.0, requires_grad=True)
    zero = torch.zeros(())
    meter.add(LossSums(leaf * 2, leaf * 3, zero, zero + 1, zero, zero + 1))
    assert not meter._sums.requires_grad


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(metrics.time, "monotonic", lambda: self.now)


# 192 operations a token, 24 a squared token, 120 a masked one.
SHAPE = ModelShape(num_hidden_layers=1, hidden_size=2, intermediate_size=4, vocab_size=8)


def test_speed_by_hand(device: torch.device, monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    meter = SpeedMeter(SHAPE, 1, device, None)
    meter.add(WorkCounts(3000, 200_000, 450, 32), padding_tokens=60, waited_seconds=0.25)
    meter.add(WorkCounts(1000, 50_000, 150, 32), padding_tokens=0, waited_seconds=0.15)
    clock.now += 10.0
    meter.exclude(6.0)  # evaluated and saved meanwhile
    flops = 192 * 4000 + 24 * 250_000 + 120 * 600
    assert meter.read() == pytest.approx(
        {
            "speed/tokens_per_second": 1000.0,
            "speed/pairs_per_second": 16.0,
            "speed/step_seconds": 2.0,
            "speed/model_tflops_per_device": flops / 4 / 1e12,
            "speed/data_wait_share": 0.1,
            "speed/padding_share": 60 / 4060,
        }
    )
    meter.add(WorkCounts(500, 0, 0, 5), padding_tokens=0, waited_seconds=0.0)
    clock.now += 5.0
    assert meter.read() == pytest.approx(
        {
            "speed/tokens_per_second": 100.0,
            "speed/pairs_per_second": 1.0,
            "speed/step_seconds": 5.0,
            "speed/model_tflops_per_device": 192 * 100 / 1e12,
            "speed/data_wait_share": 0.0,
            "speed/padding_share": 0.0,
        }
    )


def test_mfu_is_a_ranks_share_of_the_work_over_one_devices_peak(device: torch.device, monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    meter = SpeedMeter(SHAPE, 4, device, 600.0)
    meter.add(WorkCounts(tokens=100), padding_tokens=0, waited_seconds=0.0)
    clock.now += 10.0
    values = meter.read()
    assert values["speed/model_tflops_per_device"] == pytest.approx(192 * 100 / 10 / 4 / 1e12)
    assert values["speed/mfu"] == pytest.approx(480 / 600)


def test_deepspeeds_published_speed_is_52_percent_of_a_v100(device: torch.device, monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    large = ModelShape(num_hidden_layers=24, hidden_size=1024, intermediate_size=4096, vocab_size=30_522)
    meter = SpeedMeter(large, 1, device, 125e12)
    meter.add(WorkCounts(272 * 128, 272 * 128**2, 272 * 20, 272), padding_tokens=0, waited_seconds=0.0)
    clock.now += 1.0
    assert meter.read()["speed/mfu"] == pytest.approx(0.524, abs=0.001)


def test_the_wait_is_the_longest_and_padding_the_sum_over_ranks(device: torch.device, monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    monkeypatch.setattr(metrics, "max_over_ranks", lambda value, _: max(value, 0.5))  # another rank waited for half
    monkeypatch.setattr(metrics, "sum_over_ranks", lambda values: values.add_(200))  # and has 200 tokens of padding
    meter = SpeedMeter(SHAPE, 2, device, None)
    meter.add(WorkCounts(tokens=700), padding_tokens=100, waited_seconds=0.1)
    clock.now += 1.0
    values = meter.read()
    assert values["speed/data_wait_share"] == 0.5
    assert values["speed/padding_share"] == 300 / 1000


def test_speed_without_time_is_a_number(device: torch.device, monkeypatch: pytest.MonkeyPatch):
    Clock(monkeypatch)
    values = SpeedMeter(SHAPE, 1, device, 1e12).read()
    assert values.pop("speed/step_seconds") < 1e-6
    assert set(values.values()) == {0.0}


def test_peak_memory_is_what_the_kernel_says(device: torch.device):
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak_kib = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    assert peak_memory_gib(device) == pytest.approx(peak_kib / 2**20, rel=0.01)


def test_every_value_is_in_the_docs(device: torch.device):
    docs = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    meter = LossMeter(device)
    meter.add(_sums(1.0, 1.0, 1, 1, 1, 1))
    names = [*meter.reduce("train"), *SpeedMeter(SHAPE, 1, device, 1e12).read()]
    assert [name for name in names if f"| `{name}` |" not in docs] == []
