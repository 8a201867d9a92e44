"""The optimizer and the schedule of a DeepSpeed JSON: gaps and "auto" filled from their homes, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrain.engine.ds_values import AUTO, require_number, require_object
from runtime.command import ConfigError, did_you_mean

WARMUP_SCHEDULERS = frozenset({"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"})
SCHEDULERS = WARMUP_SCHEDULERS | {"OneCycle", "LRRangeTest"}
TOTAL_STEPS_SCHEDULERS = frozenset({"WarmupDecayLR", "WarmupCosineLR"})


def resolve_optimizer(config: dict[str, Any], path: str | Path) -> None:
    """Fill in or refuse the optimizer, in place."""
    optimizer = config.get("optimizer")
    if not optimizer or "type" not in optimizer:
        raise ConfigError(f'{path}: optimizer.type is missing; for instance {{"type": "AdamW", "params": {{...}}}}')
    kind = str(optimizer["type"])
    params = optimizer.setdefault("params", {})
    require_object(params, "optimizer.params", path)
    lr = params.get("lr")
    if lr is None or lr == AUTO:
        raise ConfigError(f"{path}: optimizer.params.lr is {lr!r}: its home is here; write a number")
    require_number(lr, "optimizer.params.lr", path)
    offload = config.get("zero_optimization", {}).get("offload_optimizer", {}).get("device", "none")
    if kind.lower() in ("adam", "adamw") and offload == "none" and "torch_adam" not in params:
        # Else DeepSpeed compiles its own Adam at the first start, minutes with no word said. torch's is as fast.
        params["torch_adam"] = True
        params.setdefault("fused", True)


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
    if kind not in WARMUP_SCHEDULERS:
        return
    params = scheduler.setdefault("params", {})
    require_object(params, "scheduler.params", path)
    homes: dict[str, tuple[str, float | None]] = {
        "warmup_num_steps": ("training.warmup_steps of the recipe", warmup_steps)
    }
    if kind in TOTAL_STEPS_SCHEDULERS:
        homes["total_num_steps"] = ("training.steps of the recipe", total_steps)
    if kind != "WarmupCosineLR":
        homes["warmup_max_lr"] = ("optimizer.params.lr", config["optimizer"]["params"]["lr"])
    _fill_from_homes(params, homes, path)
    if params.get("warmup_min_lr") == AUTO:
        params["warmup_min_lr"] = 0.0
    _check_warmup(params, path)


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


def _check_warmup(params: dict[str, Any], path: str | Path) -> None:
    kind = params.get("warmup_type", "log")
    if kind not in ("log", "linear"):  # DeepSpeed would take "log"
        raise ConfigError(f"{path}: scheduler.params.warmup_type = {kind!r}: must be 'linear' or 'log'")
    warmup = params["warmup_num_steps"]
    total = params.get("total_num_steps")
    for key, value in (("warmup_num_steps", warmup), ("total_num_steps", total)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigError(f"{path}: scheduler.params.{key} = {value!r}: must be an integer of at least 1")
    if total is not None and warmup > total:
        raise ConfigError(
            f"{path}: scheduler.params.warmup_num_steps = {warmup} is above total_num_steps = {total}: "
            "the lr would never reach its height"
        )
