"""The learning rate at the milestones of a run, from the schedule that the engine would be given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from deepspeed.runtime import lr_schedules

from pretrain.engine.schedules import SCHEDULES

MOST_STEPS = 2_000_000
"""Walked at the most: a schedule is stepped through, it has no formula that could be asked."""


def milestones(steps: int, warmup_steps: int | None) -> list[int]:
    """Return the steps that are worth a look: the first, the last of warmup, the quarters; ascending, each once."""
    wanted = {1, warmup_steps or 1, *(max(1, steps * part // 4) for part in (1, 2, 3, 4))}
    return sorted(step for step in wanted if step <= steps)


def lr_at(config: Mapping[str, Any], steps: list[int]) -> dict[int, float]:
    """Return the rate that each of some updates uses.

    Args:
        config: a resolved DeepSpeed JSON.
        steps: numbers of updates, 1 is the first.

    Returns:
        step -> lr; the optimizer's constant rate without a schedule.
    """
    optimizer, schedule = build_schedule(config)
    if schedule is None:
        return dict.fromkeys(steps, float(optimizer.param_groups[0]["lr"]))
    wanted, found = set(steps), {}
    for step in range(1, min(max(steps), MOST_STEPS) + 1):
        if step in wanted:
            found[step] = float(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def build_schedule(config: Mapping[str, Any]) -> tuple[torch.optim.Optimizer, Any]:
    """Return an optimizer of one element and the schedule of a JSON upon it, as `build_engine` leaves them.

    Args:
        config: a resolved DeepSpeed JSON.

    Returns:
        The optimizer, whose rate is the first update's, and the schedule, or None without one.
    """
    # SGD with momentum: OneCycle wants a momentum or betas to move.
    lr = float(config["optimizer"]["params"]["lr"])
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr, momentum=0.9)
    scheduler = config.get("scheduler")
    if scheduler is None:
        return optimizer, None
    kind = scheduler["type"]
    make: Any = SCHEDULES[kind] if kind in SCHEDULES else getattr(lr_schedules, kind)
    schedule = make(optimizer, **scheduler.get("params", {}))
    if hasattr(schedule, "warmup_num_steps"):
        schedule.warmup_num_steps = scheduler["params"]["warmup_num_steps"]
        schedule.step()  # see build_engine
    return optimizer, schedule
