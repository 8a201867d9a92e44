"""The schedule of a DeepSpeed JSON: gaps and "auto" filled from their homes, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrain.engine.ds_optimizer import MUON_LRS
from pretrain.engine.ds_values import AUTO, require_object
from runtime.command import ConfigError, did_you_mean

DEEPSPEED_WARMUP_SCHEDULERS = frozenset({"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"})
WARMUP_SCHEDULERS = DEEPSPEED_WARMUP_SCHEDULERS | {"WarmupPolynomialLR"}
SCHEDULERS = WARMUP_SCHEDULERS | {"OneCycle", "LRRangeTest", "BudgetLR"}
TOTAL_STEPS_SCHEDULERS = frozenset({"WarmupDecayLR", "WarmupCosineLR", "WarmupPolynomialLR"})
HOME_OF_LR = {
    "WarmupLR": "warmup_max_lr",
    "WarmupDecayLR": "warmup_max_lr",
    "OneCycle": "cycle_max_lr",
    "LRRangeTest": "lr_range_test_min_lr",
}
"""DeepSpeed's schedules that ignore the optimizer's lr, and their parameter that is filled from it. The others multiply
each group's own lr."""


def resolve_scheduler(config: dict[str, Any], path: str | Path, total_steps: int, warmup_steps: int | None) -> None:
    """Fill in or refuse the schedule, in place; the arguments are those of `resolve_ds_config`."""
    scheduler = config.get("scheduler")
    if scheduler is None:
        if warmup_steps:
            raise ConfigError(
                f"{path}: no scheduler, but the recipe has training.warmup_steps = {warmup_steps}: "
                'add a scheduler with warmup_num_steps = "auto", or leave warmup_steps out'
            )
        return
    kind = str(scheduler.get("type"))
    if kind not in SCHEDULERS:
        hint = did_you_mean(kind, SCHEDULERS)
        raise ConfigError(f"{path}: scheduler.type = {kind!r}: must be one of {', '.join(sorted(SCHEDULERS))}{hint}")
    params = scheduler.setdefault("params", {})
    require_object(params, "scheduler.params", path)
    if warmup_steps and kind not in WARMUP_SCHEDULERS:
        raise ConfigError(
            f"{path}: scheduler.type = {kind!r} has no warmup in steps, but the recipe has training.warmup_steps = "
            f"{warmup_steps}: leave it out there"
        )
    _check_one_lr(config, kind, path)
    _fill_from_homes(params, _homes(config, kind, total_steps, warmup_steps), path)
    if kind in WARMUP_SCHEDULERS:
        if params.get("warmup_min_lr") == AUTO:
            params["warmup_min_lr"] = 0.0
        _check_warmup(params, path, least=1 if kind in DEEPSPEED_WARMUP_SCHEDULERS else 0)


def schedule_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name what differs in lr and schedule between two resolved JSONs, a line each; for a run that goes on.

    The recipe's own steps are not among it.
    """
    lines = []
    places = {"optimizer.params": {"lr", *MUON_LRS}, "scheduler": {"type"}, "scheduler.params": None}
    for place, keys in places.items():
        old, new = _at(before, place), _at(now, place)
        lines += [
            f"{place}.{key} was {old.get(key)}, is now {new.get(key)}"
            for key in sorted({*old, *new} if keys is None else keys)
            if old.get(key) != new.get(key) and key != "total_num_steps"
        ]
    return lines


def _at(config: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    for key in place.split("."):
        config = config.get(key) or {}
    return config


def _homes(
    config: Mapping[str, Any], kind: str, total_steps: int, warmup_steps: int | None
) -> dict[str, tuple[str, float | None]]:
    homes: dict[str, tuple[str, float | None]] = {}
    if kind in WARMUP_SCHEDULERS:
        homes["warmup_num_steps"] = ("training.warmup_steps of the recipe", warmup_steps)
    if kind in TOTAL_STEPS_SCHEDULERS:
        homes["total_num_steps"] = ("training.steps of the recipe", total_steps)
    if kind in HOME_OF_LR:
        homes[HOME_OF_LR[kind]] = ("optimizer.params.lr", config["optimizer"]["params"]["lr"])
    return homes


def _check_one_lr(config: Mapping[str, Any], kind: str, path: str | Path) -> None:
    """Refuse a schedule that gives all groups one lr where Muon's and Adam's differ."""
    params = config["optimizer"]["params"]
    for key in MUON_LRS:
        if kind in HOME_OF_LR and params.get(key, params["lr"]) != params["lr"]:
            raise ConfigError(
                f"{path}: optimizer.params.{key} = {params[key]!r} differs from lr = {params['lr']!r}, but "
                f"scheduler.type = {kind!r} sets one lr for all: write WarmupPolynomialLR, WarmupCosineLR or BudgetLR"
            )


def _fill_from_homes(params: dict[str, Any], homes: Mapping[str, tuple[str, float | None]], path: str | Path) -> None:
    """Fill a schedule's values from their homes; a value that stands in both and differs is named with all others."""
    mismatches = []
    for key, (home, value) in homes.items():
        written = params.get(key, AUTO)
        if written == AUTO and value is None:
            mismatches.append(f'{path}: scheduler.params.{key} is "auto" or missing, and so is what fills it: {home}')
        elif written == AUTO:
            params[key] = value
        elif value is not None and written != value:
            mismatches.append(f'{path}: scheduler.params.{key} = {written!r}, but {home} = {value}: write "auto" here')
    if mismatches:
        raise ConfigError("\n".join(mismatches))


def _check_warmup(params: dict[str, Any], path: str | Path, least: int) -> None:
    kind = params.get("warmup_type", "log")
    if kind not in ("log", "linear"):  # DeepSpeed would take "log"
        raise ConfigError(f"{path}: scheduler.params.warmup_type = {kind!r}: must be 'linear' or 'log'")
    warmup = params["warmup_num_steps"]
    total = params.get("total_num_steps")
    for key, value, bound in (("warmup_num_steps", warmup, least), ("total_num_steps", total, 1)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < bound):
            raise ConfigError(f"{path}: scheduler.params.{key} = {value!r}: must be an integer of at least {bound}")
    if total is not None and warmup > total:
        raise ConfigError(
            f"{path}: scheduler.params.warmup_num_steps = {warmup} is above total_num_steps = {total}: "
            "the lr would never reach its height"
        )
