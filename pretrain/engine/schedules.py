"""Learning-rate schedules of this project's own, beside DeepSpeed's: pure functions, and the objects that apply them.

The lr of update k, counted from 0, is lr(k): an object stands at 0 when it is made, and each `step()` moves it by one.
DeepSpeed calls that after every update that was not skipped, saves `state_dict()` and loads it.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer


def warmup_polynomial_lr(
    step: int, *, peak: float, warmup_num_steps: int, total_num_steps: int, power: float = 1.0, end_lr: float = 0.0
) -> float:
    """Return the lr of an update: linear from 0 up to the peak, then a polynomial down to the end.

    step < warmup: peak · step / warmup; then
    end_lr + (peak − end_lr) · ((total − step) / (total − warmup))^power; from step total on: end_lr.

    Args:
        step: of the update, from 0.
        peak: lr at step warmup_num_steps.
        warmup_num_steps: 0 to total_num_steps.
        total_num_steps: at least 1.
        power: above 0; 1 is BERT's, 0.5 that of LAMB's authors for BERT in NVIDIA's recipe.
        end_lr: at least 0.
    """
    if step < warmup_num_steps:
        return peak * step / warmup_num_steps
    if step >= total_num_steps:
        return end_lr
    return _decayed(peak, end_lr, (total_num_steps - step) / (total_num_steps - warmup_num_steps), power)


def budget_lr(
    share: float, *, peak: float, warmup_share: float = 0.0, power: float = 1.0, end_lr: float = 0.0
) -> float:
    """Return the lr at a share of a wall-clock budget (Izsak et al. 2021, "How to Train BERT with an Academic Budget").

    share < warmup_share: peak · share / warmup_share; then
    end_lr + (peak − end_lr) · ((1 − share) / (1 − warmup_share))^power; from share 1 on: end_lr.

    Args:
        share: elapsed seconds / budget seconds, at least 0.
        peak: lr at warmup_share.
        warmup_share: 0 to below 1.
        power: above 0.
        end_lr: at least 0.
    """
    if share < warmup_share:
        return peak * share / warmup_share
    if share >= 1:
        return end_lr
    return _decayed(peak, end_lr, (1 - share) / (1 - warmup_share), power)


def _decayed(peak: float, end_lr: float, left: float, power: float) -> float:
    return float(end_lr + (peak - end_lr) * left**power)


class Schedule(ABC):
    """Sets every group's lr from its own peak, the lr that the group has when the schedule is made.

    Args:
        optimizer: whose groups' lr it sets.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        """Stand at step 0, and set its lr."""
        self.optimizer = optimizer
        self.peaks = [float(group["lr"]) for group in optimizer.param_groups]
        self.last_batch_iteration = 0
        """Step of the next update; DeepSpeed's name for it."""
        self._set()

    @abstractmethod
    def lr_of(self, peak: float) -> float:
        """Return the lr of the next update for a group of this peak."""

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Move on by one update, or to a step, where given."""
        if last_batch_iteration is None:
            last_batch_iteration = self.last_batch_iteration + 1
        self.last_batch_iteration = last_batch_iteration
        self._set()

    def get_lr(self) -> list[float]:
        """Return the lr of each group for the next update."""
        return [self.lr_of(peak) for peak in self.peaks]

    def get_last_lr(self) -> list[float]:
        """Return what was set last, by group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return where the schedule stands; what it looks like has its home in the JSON."""
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Stand where a saved one stood; the lr follows with `step(last_batch_iteration)`."""
        self.last_batch_iteration = int(state["last_batch_iteration"])

    def _set(self) -> None:
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = lr


class WarmupPolynomialLR(Schedule):
    """`warmup_polynomial_lr` over the steps.

    Args:
        optimizer: whose groups' lr it sets; they are the peaks.
        total_num_steps: updates.
        warmup_num_steps: updates.
        power: of the decay.
        end_lr: from total_num_steps on.

    Raises:
        ValueError: a value out of its range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_num_steps: int,
        warmup_num_steps: int,
        power: float = 1.0,
        end_lr: float = 0.0,
    ) -> None:
        """Stand at step 0."""
        if not 0 <= warmup_num_steps <= total_num_steps:
            raise ValueError(f"warmup_num_steps = {warmup_num_steps}: must be 0 to total_num_steps = {total_num_steps}")
        _check_decay(optimizer, power, end_lr)
        self.total_num_steps, self._warmup, self._power, self._end_lr = total_num_steps, warmup_num_steps, power, end_lr
        super().__init__(optimizer)

    def lr_of(self, peak: float) -> float:
        """Return the lr of the next update for a group of this peak."""
        return warmup_polynomial_lr(
            self.last_batch_iteration,
            peak=peak,
            warmup_num_steps=self._warmup,
            total_num_steps=self.total_num_steps,
            power=self._power,
            end_lr=self._end_lr,
        )


class BudgetLR(Schedule):
    """`budget_lr` over the seconds since the run began, those before a resume included.

    The clock is read once an update, behind it: the first update has share 0. Saved runs stand still: seconds between a
    checkpoint and the start that goes on from it do not count.

    Args:
        optimizer: whose groups' lr it sets; they are the peaks.
        budget_seconds: of the whole run.
        warmup_share: share of the budget.
        power: of the decay.
        end_lr: at the end of the budget.
        clock: seconds; must return the same on all ranks.

    Raises:
        ValueError: a value out of its range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        budget_seconds: float,
        warmup_share: float = 0.0,
        power: float = 1.0,
        end_lr: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock."""
        if not (budget_seconds > 0 and math.isfinite(budget_seconds)):
            raise ValueError(f"budget_seconds = {budget_seconds}: must be above 0")
        if not 0 <= warmup_share < 1:
            raise ValueError(f"warmup_share = {warmup_share}: must be 0 to below 1")
        _check_decay(optimizer, power, end_lr)
        self.budget_seconds = budget_seconds
        self._warmup, self._power, self._end_lr = warmup_share, power, end_lr
        self._clock = clock
        self._before = self.elapsed_seconds = 0.0
        self._began = clock()
        super().__init__(optimizer)

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent, as of the last update; the same on all ranks."""
        return self.elapsed_seconds >= self.budget_seconds

    def lr_of(self, peak: float) -> float:
        """Return the lr of the next update for a group of this peak."""
        return budget_lr(
            self.elapsed_seconds / self.budget_seconds,
            peak=peak,
            warmup_share=self._warmup,
            power=self._power,
            end_lr=self._end_lr,
        )

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Move on by one update and read the clock (all ranks must call), or to a step without reading it."""
        if last_batch_iteration is None:
            self.elapsed_seconds = self._before + self._clock() - self._began
        super().step(last_batch_iteration)

    def state_dict(self) -> dict[str, Any]:
        """Return where the schedule stands, the seconds spent included."""
        return {**super().state_dict(), "elapsed_seconds": self.elapsed_seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in a saved one's budget from now (all ranks must call)."""
        super().load_state_dict(state)
        self._before = self.elapsed_seconds = float(state["elapsed_seconds"])
        self._began = self._clock()


def _check_decay(optimizer: Optimizer, power: float, end_lr: float) -> None:
    if not (power > 0 and math.isfinite(power)):
        raise ValueError(f"power = {power}: must be above 0")
    lowest = min(float(group["lr"]) for group in optimizer.param_groups)
    if not 0 <= end_lr <= lowest:
        raise ValueError(f"end_lr = {end_lr}: must be 0 to the optimizer's lr, {lowest}")


SCHEDULES: dict[str, type[Schedule]] = {"WarmupPolynomialLR": WarmupPolynomialLR, "BudgetLR": BudgetLR}
"""By scheduler.type of the JSON."""
