"""The DeepSpeed JSON: read, checked and resolved before the engine sees it.

DeepSpeed ignores what it does not know and fills gaps with values that surprise (a misspelt "zero_optimization" leaves
ZeRO off; a missing warmup_max_lr is 1e-3 whatever the optimizer's lr). Here a JSON is complete and right, or refused
with the path in the JSON, the value and the rule.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrain.engine.ds_blocks import block_faults, place_of
from pretrain.engine.ds_buckets import bucket_sizes
from pretrain.engine.ds_optimizer import check_quantized, lr_factor, resolve_optimizer, scale_lr
from pretrain.engine.ds_rules import rule_faults
from pretrain.engine.ds_schedule import resolve_scheduler
from pretrain.engine.ds_shape import SHAPE, shape_faults
from pretrain.engine.ds_values import AUTO, require_number, require_object
from runtime.command import ConfigError
from runtime.files import read_json

TOP_LEVEL_KEYS = frozenset(SHAPE)
"""What this project passes on to DeepSpeed. Parallelism other than data parallelism is not among it."""

BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
NEVER_PRINT = 10**9
"""DeepSpeed's own progress lines are switched off unless asked for; ours carry the same numbers."""


@dataclass(frozen=True)
class BatchSizes:
    """DeepSpeed's three batch sizes, in pairs."""

    train_batch_size: int
    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int


def load_ds_config(path: str | Path) -> dict[str, Any]:
    """Read a DeepSpeed JSON and refuse what DeepSpeed would ignore.

    Args:
        path: plain JSON.

    Raises:
        ConfigError: no such file, not JSON, not an object; an unknown key or a wrong type at any level, a line each.
    """
    config = read_json(path)
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: a DeepSpeed JSON is one object {{...}}, not a {type(config).__name__}")
    _refuse(shape_faults(config), path)
    return config


def resolve_batch_sizes(config: Mapping[str, Any], world_size: int, path: str | Path) -> BatchSizes:
    """Work out DeepSpeed's three batch sizes from those that are given.

    train_batch_size = train_micro_batch_size_per_gpu · gradient_accumulation_steps · world size.

    Args:
        config: the JSON; a size may be missing or "auto".
        world_size: data-parallel ranks of the launch.
        path: the JSON's file, for messages.

    Raises:
        ConfigError: not an integer of at least 1, too few given, or a product that does not hold.
    """
    given: dict[str, int] = {}
    for key in BATCH_KEYS:
        value = config.get(key, AUTO)
        if value == AUTO:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{path}: {key} = {value!r}: must be an integer of at least 1")
        given[key] = value
    train, micro, accumulation = (given.get(key) for key in BATCH_KEYS)
    if train is None and micro is None:
        raise ConfigError(
            f"{path}: give train_batch_size or train_micro_batch_size_per_gpu "
            "(gradient_accumulation_steps alone does not say how many pairs a step takes)"
        )
    if train is None:
        assert micro is not None
        accumulation = accumulation or 1
        return BatchSizes(micro * accumulation * world_size, micro, accumulation)
    if micro is None:
        accumulation = accumulation or 1
        micro = train // (accumulation * world_size)
    elif accumulation is None:
        accumulation = train // (micro * world_size)
    if micro < 1 or accumulation < 1 or train != micro * accumulation * world_size:
        raise ConfigError(
            f"{path}: train_batch_size = {train} ≠ {given.get(BATCH_KEYS[1], '?')} · {given.get(BATCH_KEYS[2], '?')} · "
            f"{world_size} (train_micro_batch_size_per_gpu · gradient_accumulation_steps · world size); "
            "change one of them, or leave one out and it is worked out"
        )
    return BatchSizes(train, micro, accumulation)


def resolve_ds_config(
    config: Mapping[str, Any],
    *,
    path: str | Path,
    world_size: int,
    total_steps: int,
    warmup_steps: int | None,
    on_cuda: bool,
    num_parameters: int | None = None,
    lr_scaling: str = "none",
    lr_reference_batch: int | None = None,
) -> dict[str, Any]:
    """Fill a DeepSpeed JSON's gaps and "auto" values, or refuse it.

    Args:
        config: as `load_ds_config` gives it; not changed.
        path: its file, for messages.
        world_size: data-parallel ranks.
        total_steps: training.steps of the recipe; fills total_num_steps.
        warmup_steps: training.warmup_steps of the recipe; fills warmup_num_steps.
        on_cuda: whether the engine will run on CUDA.
        num_parameters: elements of the whole model, which buckets are fitted to; None: not known.
        lr_scaling: training.lr_scaling of the recipe; how the lr follows train_batch_size.
        lr_reference_batch: training.lr_reference_batch of the recipe, pairs; the JSON's lr is for it.

    Returns:
        A new dict without "auto", for `deepspeed.initialize`.

    Raises:
        ConfigError: every fault, a line each: the JSON path, the value and the rule.
    """
    resolved = copy.deepcopy(dict(config))
    of_sizes = _faults_of(lambda: resolved.update(vars(resolve_batch_sizes(config, world_size, path))))
    faults = _faults_of(
        lambda: _check_zero(resolved, path),
        lambda: _check_precision(resolved, path, on_cuda),
    )
    # The optimizer asks where it is kept, the schedule what its lr is.
    if not faults:
        faults += _faults_of(lambda: resolve_optimizer(resolved, path))
        if not faults:
            faults += _faults_of(lambda: resolve_scheduler(resolved, path, total_steps, warmup_steps))
        if not faults and not of_sizes:
            scale_lr(resolved, lr_factor(lr_scaling, resolved["train_batch_size"], lr_reference_batch))
        faults += _faults_of(
            lambda: check_quantized(resolved, path, world_size),
            lambda: _resolve_data_types(resolved, path),
            lambda: require_number(resolved.setdefault("gradient_clipping", 1.0), "gradient_clipping", path),
            lambda: _check_reduction(resolved, path),
        )
        _fill_buckets(resolved, num_parameters, on_cuda)
        if not on_cuda:
            _fill_for_cpu(resolved)
        resolved.setdefault("steps_per_print", NEVER_PRINT)
        faults += [f"{path}: {fault}" for fault in _unfilled(resolved)]
    faults += [f"{path}: {fault}" for fault in _inner_faults(resolved, on_cuda, is_whole=not faults)]
    _raise_each_once(of_sizes + faults, path)
    return resolved


def _faults_of(*checks: Callable[[], object]) -> list[str]:
    """Run checks, and return the lines of those that refuse."""
    faults: list[str] = []
    for check in checks:
        try:
            check()
        except ConfigError as error:
            faults += str(error).splitlines()
    return faults


def _inner_faults(config: Mapping[str, Any], on_cuda: bool, *, is_whole: bool) -> list[str]:
    """Return what is wrong inside the blocks and between them; blocks are tried out where all before them is right."""
    faults = block_faults(config) if is_whole else shape_faults(config)
    return faults + (rule_faults(config, on_cuda=on_cuda) if is_whole and not faults else [])


def _raise_each_once(faults: list[str], path: str | Path) -> None:
    """Raise every fault, of those about one place the first."""
    prefix = f"{path}: "
    each = {place_of(fault.removeprefix(prefix)): fault for fault in reversed(faults)}
    if each:
        raise ConfigError("\n".join(reversed(each.values())))


def _refuse(faults: list[str], path: str | Path) -> None:
    if faults:
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))


def zero_stage(config: Mapping[str, Any]) -> int:
    """Return the ZeRO stage of a JSON, 0 to 3; 0 where it has no zero_optimization."""
    return int(config.get("zero_optimization", {}).get("stage", 0))


def precision(config: Mapping[str, Any]) -> str:
    """Return "fp16", "bf16" or "fp32": what the parameters are computed in."""
    for name in ("fp16", "bf16"):
        if config.get(name, {}).get("enabled", False):
            return name
    return "fp32"


def checkpoints_activations(config: Mapping[str, Any]) -> bool:
    """Say whether a JSON asks for activation checkpointing: DeepSpeed's block has no switch but to be there."""
    return "activation_checkpointing" in config


def _check_precision(config: dict[str, Any], path: str | Path, on_cuda: bool) -> None:
    for name in ("fp16", "bf16"):
        enabled = config.get(name, {}).get("enabled", False)
        if not isinstance(enabled, bool):
            raise ConfigError(f"{path}: {name}.enabled = {enabled!r}: must be true or false, without quotes")
    if config.get("fp16", {}).get("enabled") and config.get("bf16", {}).get("enabled"):
        raise ConfigError(f"{path}: fp16.enabled and bf16.enabled are both true: keep one")
    if precision(config) == "fp16" and not on_cuda:
        raise ConfigError(f"{path}: fp16.enabled = true: DeepSpeed has no fp16 on CPU; write bf16 or neither")
    if precision(config) == "fp16" and zero_stage(config) == 0:
        # Seen with 0.19.8: engine.backward leaves the loss unscaled, and step() divides the gradients by the scale.
        raise ConfigError(
            f"{path}: fp16.enabled = true without ZeRO: DeepSpeed does not scale the loss there, and gradients vanish; "
            "write zero_optimization.stage = 1"
        )


def _check_zero(config: dict[str, Any], path: str | Path) -> None:
    stage = config.get("zero_optimization", {}).get("stage", 0)
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        raise ConfigError(f"{path}: zero_optimization.stage = {stage!r}: must be 0, 1, 2 or 3")
    for key in ("offload_optimizer", "offload_param"):
        require_object(config.get("zero_optimization", {}).get(key, {}), f"zero_optimization.{key}", path)


def _resolve_data_types(config: dict[str, Any], path: str | Path) -> None:
    wanted = config.get("data_types", {}).get("grad_accum_dtype")
    if zero_stage(config) == 0 and wanted not in (None, precision(config)):
        raise ConfigError(
            f"{path}: data_types.grad_accum_dtype = {wanted!r} without ZeRO: DeepSpeed adds up gradients in "
            f"{precision(config)} there; leave it out, or write zero_optimization.stage = 1"
        )
    # bf16 has 8 bits: a sum over many micro-steps loses the small ones. DeepSpeed can add up in fp32 from stage 1 on.
    if precision(config) == "bf16" and zero_stage(config) >= 1:
        config.setdefault("data_types", {}).setdefault("grad_accum_dtype", "fp32")


def _check_reduction(config: Mapping[str, Any], path: str | Path) -> None:
    if config.get("gradient_allreduce_op", "mean") != "mean":
        raise ConfigError(
            f"{path}: gradient_allreduce_op = {config['gradient_allreduce_op']!r}: must be 'mean'; "
            "the loss is scaled for an average over ranks"
        )


def _fill_buckets(config: dict[str, Any], num_parameters: int | None, on_cuda: bool) -> None:
    for key, size in bucket_sizes(num_parameters, stage=zero_stage(config), on_cuda=on_cuda).items():
        config["zero_optimization"].setdefault(key, size)


def _fill_for_cpu(config: dict[str, Any]) -> None:
    """Fill in what costs the fewest passes over memory, where nothing is written."""
    if zero_stage(config) == 1 and precision(config) == "bf16" and config["data_types"]["grad_accum_dtype"] == "fp32":
        # Sums in fp32 would be rounded to bf16 to be sent, and bf16 gradients kept until the end of the backward.
        config.setdefault("communication_data_type", "fp32")
        config["bf16"].setdefault("immediate_grad_update", True)


def _unfilled(value: Any, place: str = "") -> list[str]:
    """Return a line for each "auto" that is left."""
    if isinstance(value, dict):
        inner = [_unfilled(item, f"{place}.{key}" if place else key) for key, item in value.items()]
        return [fault for faults in inner for fault in faults]
    is_auto = isinstance(value, str) and value == AUTO
    return [f'{place} = "auto": nothing here fills it; write a value or leave it out'] if is_auto else []
