"""This project's own schedules against values worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pretrain.engine.build import clock_of_rank_zero
from pretrain.engine.schedules import BudgetLR, WarmupPolynomialLR, budget_lr, warmup_polynomial_lr


def _optimizer(*rates: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [torch.zeros(1)], "lr": rate} for rate in rates])


class Clock:
    """Seconds that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("step", "settings", "lr"),
    [
        # Case L1's line: 4 up, 16 down.
        *((k, {}, lr) for k, lr in enumerate([0, 2.5e-4, 5e-4, 7.5e-4, 1e-3, 9.375e-4, 8.75e-4])),
        (19, {}, 6.25e-5),
        (20, {}, 0.0),
        (21, {}, 0.0),
        # A quarter left: its root is a half, its square a sixteenth.
        (16, {"power": 0.5}, 5e-4),
        (16, {"power": 2.0}, 6.25e-5),
        (16, {"power": 0.5, "end_lr": 2e-4}, 6e-4),
        (3, {"power": 0.5, "end_lr": 2e-4}, 7.5e-4),
        (20, {"end_lr": 2e-4}, 2e-4),
        # No warmup, and nothing but warmup.
        (0, {"warmup_num_steps": 0}, 1e-3),
        (5, {"warmup_num_steps": 0}, 7.5e-4),
        (19, {"warmup_num_steps": 20}, 9.5e-4),
        (20, {"warmup_num_steps": 20, "end_lr": 1e-4}, 1e-4),
    ],
)
def test_warmup_and_a_polynomial(step: int, settings: dict[str, Any], lr: float):
    values = {"peak": 1e-3, "warmup_num_steps": 4, "total_num_steps": 20, **settings}
    assert warmup_polynomial_lr(step, **values) == pytest.approx(lr, abs=1e-15)


@pytest.mark.parametrize(
    ("share", "settings", "lr"),
    [
        (0.0, {}, 1e-3),
        (0.25, {}, 7.5e-4),
        (1.0, {}, 0.0),
        (1.5, {}, 0.0),
        # A fifth of warmup: half of it; its end; half of the rest.
        (0.0, {"warmup_share": 0.2}, 0.0),
        (0.1, {"warmup_share": 0.2}, 5e-4),
        (0.2, {"warmup_share": 0.2}, 1e-3),
        (0.6, {"warmup_share": 0.2}, 5e-4),
        (0.8, {"warmup_share": 0.2, "power": 0.5}, 5e-4),
        (0.6, {"warmup_share": 0.2, "end_lr": 2e-4}, 6e-4),
        (1.0, {"warmup_share": 0.2, "end_lr": 2e-4}, 2e-4),
    ],
)
def test_a_share_of_the_budget(share: float, settings: dict[str, Any], lr: float):
    assert budget_lr(share, peak=1e-3, **settings) == pytest.approx(lr, abs=1e-15)


def test_every_group_has_its_own_peak():
    optimizer = _optimizer(1e-2, 1e-3)
    schedule = WarmupPolynomialLR(optimizer, total_num_steps=20, warmup_num_steps=4)
    assert [group["lr"] for group in optimizer.param_groups] == [0, 0]
    schedule.step()
    assert schedule.get_last_lr() == schedule.get_lr() == pytest.approx([2.5e-3, 2.5e-4])
    assert [group["lr"] for group in optimizer.param_groups] == schedule.get_lr()


def test_a_loaded_schedule_stands_where_the_saved_one_stood_and_takes_its_own_peak():
    saved = WarmupPolynomialLR(_optimizer(1e-3), total_num_steps=20, warmup_num_steps=4)
    for _ in range(5):
        saved.step()
    loaded = WarmupPolynomialLR(_optimizer(2e-3), total_num_steps=36, warmup_num_steps=4)
    loaded.load_state_dict(saved.state_dict())
    loaded.step(loaded.last_batch_iteration)
    assert loaded.get_last_lr() == pytest.approx([2e-3 * 31 / 32])


def test_seconds_of_the_budget_go_on_after_a_resume():
    clock = Clock()
    first = BudgetLR(_optimizer(1e-3), budget_seconds=50, clock=clock)
    assert first.get_last_lr() == [1e-3]
    clock.now += 10
    assert first.get_last_lr() == [1e-3]  # time alone moves nothing: the clock is read behind an update
    first.step()
    assert first.get_last_lr() == pytest.approx([8e-4])
    assert first.state_dict() == {"last_batch_iteration": 1, "elapsed_seconds": 10}
    clock.now = 7000.0  # another start, on another host
    second = BudgetLR(_optimizer(1e-3), budget_seconds=50, clock=clock)
    second.load_state_dict(first.state_dict())
    clock.now += 3
    second.step(second.last_batch_iteration)
    assert second.get_last_lr() == pytest.approx([8e-4])
    clock.now += 12
    second.step()
    assert second.state_dict() == {"last_batch_iteration": 2, "elapsed_seconds": 25}
    assert second.get_last_lr() == pytest.approx([5e-4])
    assert not second.is_over
    clock.now += 25
    assert not second.is_over
    second.step()
    assert second.is_over
    assert second.get_last_lr() == [0.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WarmupPolynomialLR(_optimizer(1e-3), 3, 6), r"warmup_num_steps = 6: must be 0 to total_num_steps = 3"),
        (lambda: WarmupPolynomialLR(_optimizer(1e-3), 9, 1, power=0), r"power = 0: must be above 0"),
        (lambda: WarmupPolynomialLR(_optimizer(1e-3), 9, 1, end_lr=0.1), r"end_lr = 0\.1: must be 0 to .* 0\.001"),
        (lambda: WarmupPolynomialLR(_optimizer(1e-3), 9, 1, end_lr=-1), r"end_lr = -1: must be"),
        (lambda: BudgetLR(_optimizer(1e-3), 0), r"budget_seconds = 0: must be above 0"),
        (lambda: BudgetLR(_optimizer(1e-3), float("inf")), r"budget_seconds = inf: must be above 0"),
        (lambda: BudgetLR(_optimizer(1e-3), 9, warmup_share=1.0), r"warmup_share = 1\.0: must be 0 to below 1"),
        (lambda: BudgetLR(_optimizer(1e-3), 9, power=float("nan")), r"power = nan: must be above 0"),
    ],
)
def test_values_out_of_range(make: Any, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_every_rank_has_rank_zero_s_clock(monkeypatch: pytest.MonkeyPatch):
    """Over gloo: where ranks talk by NCCL, in a group of its own, so that nobody waits for a GPU."""
    made: list[str] = []
    sent: list[Any] = []

    def receive(cell: torch.Tensor, src: int, group: Any) -> None:
        assert cell.device.type == "cpu"
        sent.append((src, group))
        cell.fill_(123.456789)

    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.broadcast", receive)
    monkeypatch.setattr("torch.distributed.new_group", lambda backend: made.append(backend) or "extra")
    for backend, group in (("gloo", None), ("nccl", "extra")):
        monkeypatch.setattr("torch.distributed.get_backend", lambda backend=backend: backend)
        assert clock_of_rank_zero()() == 123.456789
        assert sent.pop() == (0, group)
    assert made == ["gloo"]
