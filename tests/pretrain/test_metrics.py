"""The means of a log line by hand: weighted by tokens and pairs, not means of means."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pretrain import metrics
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


def test_speed_by_hand(monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    meter = SpeedMeter()
    meter.add(tokens=3000, pairs=32)
    meter.add(tokens=1000, pairs=32)
    clock.now += 10.0
    meter.exclude(6.0)  # evaluated and saved meanwhile
    assert meter.read() == pytest.approx(
        {"speed/tokens_per_second": 1000.0, "speed/pairs_per_second": 16.0, "speed/step_seconds": 2.0}
    )
    meter.add(tokens=500, pairs=5)
    clock.now += 5.0
    assert meter.read() == pytest.approx(
        {"speed/tokens_per_second": 100.0, "speed/pairs_per_second": 1.0, "speed/step_seconds": 5.0}
    )


def test_speed_without_time_is_a_number(monkeypatch: pytest.MonkeyPatch):
    Clock(monkeypatch)
    values = SpeedMeter().read()
    assert set(values) == {"speed/tokens_per_second", "speed/pairs_per_second", "speed/step_seconds"}
    assert values["speed/tokens_per_second"] == 0.0
    assert 0.0 <= values["speed/step_seconds"] < 1e-6


def test_peak_memory_is_what_the_kernel_says(device: torch.device):
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak_kib = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    assert peak_memory_gib(device) == pytest.approx(peak_kib / 2**20, rel=0.01)
