"""The optimizer of a DeepSpeed JSON: gaps filled, what cannot train here refused; and lr scaling rules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrain.engine.ds_values import AUTO, require_number, require_object
from runtime.command import ConfigError

_NO_ONE_BIT = (
    "DeepSpeed 0.19 has no 1-bit optimizers any more; write AdamW or Lamb, and to send less: "
    'communication_data_type = "bf16" or "fp16", or on CUDA zero_optimization.stage = 3 with '
    "zero_quantized_gradients = true (ZeRO++)"
)
_NO_MUP = "it needs a model with mup's base shapes, which BERT has not; write Adam, AdamW or SGD"
REFUSED = {
    **dict.fromkeys(("onebitadam", "onebitlamb", "zerooneadam"), _NO_ONE_BIT),
    **dict.fromkeys(("muadam", "muadamw", "musgd"), _NO_MUP),
    "lbfgs": "it computes the loss several times a step, which no engine does; write AdamW",
    "sparseadam": "BERT's gradients here are dense; write AdamW",
}
"""Optimizers that cannot train here, in lower case, and why."""
REFUSED_UNDER_ZERO = {
    "adafactor": "it needs whole matrices, and ZeRO hands it flat pieces",
    "adagrad": "DeepSpeed makes it anew there without its parameter groups, and the first step fails",
}
OWN_OR_TESTED = frozenset({"adam", "adamw", "lamb", "lion", "muon"})
"""Those that DeepSpeed's ZeRO knows, or that this project hands it."""
MUON_LRS = ("muon_lr", "adam_lr")
FILLED_FROM_LR = ("warmup_max_lr", "cycle_max_lr", "lr_range_test_min_lr")
"""scheduler.params whose home is optimizer.params.lr."""


def resolve_optimizer(config: dict[str, Any], path: str | Path) -> None:
    """Fill in or refuse the optimizer, in place."""
    optimizer = config.get("optimizer")
    if not optimizer or "type" not in optimizer:
        raise ConfigError(f'{path}: optimizer.type is missing; for instance {{"type": "AdamW", "params": {{...}}}}')
    kind = str(optimizer["type"]).lower()
    if kind in REFUSED:
        raise ConfigError(f"{path}: optimizer.type = {optimizer['type']!r}: {REFUSED[kind]}")
    params = optimizer.setdefault("params", {})
    require_object(params, "optimizer.params", path)
    lr = params.get("lr")
    if lr is None or lr == AUTO:
        raise ConfigError(f"{path}: optimizer.params.lr is {lr!r}: its home is here; write a number")
    for key in ("lr", *(key for key in MUON_LRS if kind == "muon" and key in params)):
        require_number(params[key], f"optimizer.params.{key}", path)
    zero = config.get("zero_optimization", {})
    offload = zero.get("offload_optimizer", {}).get("device", "none")
    if kind in ("adam", "adamw") and offload == "none" and "torch_adam" not in params:
        # Else DeepSpeed compiles its own Adam at the first start, minutes with no word said. torch's is as fast.
        params["torch_adam"] = True
        params.setdefault("fused", True)
    if kind == "muon":
        _resolve_muon(config, path)
    if kind in REFUSED_UNDER_ZERO and zero.get("stage", 0):
        raise ConfigError(
            f"{path}: optimizer.type = {optimizer['type']!r} with zero_optimization.stage = {zero['stage']}: "
            f"{REFUSED_UNDER_ZERO[kind]}; write AdamW, or zero_optimization.stage = 0"
        )
    if kind not in OWN_OR_TESTED and zero.get("stage", 0):
        # torch's others treat each element alone, so they are right on ZeRO's flat pieces.
        config.setdefault("zero_allow_untested_optimizer", True)


def _resolve_muon(config: dict[str, Any], path: str | Path) -> None:
    zero = config.get("zero_optimization", {})
    stage = zero.get("stage", 0)
    halves = [name for name in ("fp16", "bf16") if config.get(name, {}).get("enabled")]
    if halves and stage == 0:
        raise ConfigError(
            f"{path}: optimizer.type = 'Muon' with {halves[0]}.enabled = true: write zero_optimization.stage = 1 or "
            "above: without ZeRO a checkpoint's masters would stand in an order that export does not know"
        )
    if stage and config.setdefault("gradient_clipping", 0.0):
        raise ConfigError(
            f"{path}: gradient_clipping = {config['gradient_clipping']!r} with optimizer.type = 'Muon': under ZeRO "
            "DeepSpeed would clip Muon's update in place of the gradient, by another norm on each stage; write 0"
        )
    if stage != 3:
        return
    for key, needed in (("reduce_scatter", False), ("zero_quantized_gradients", False)):
        if zero.get(key, needed) != needed:
            raise ConfigError(
                f"{path}: zero_optimization.{key} = {zero[key]!r} with optimizer.type = 'Muon': "
                "Muon needs whole gradients on stage 3; leave it out"
            )
    zero["reduce_scatter"] = False  # DeepSpeed's default is true, which it refuses with Muon


def lr_factor(rule: str, train_batch_size: int, reference_batch: int | None) -> float:
    """Return what an lr rule multiplies the JSON's lr by.

    Args:
        rule: "none"; "linear" (Goyal et al. 2017); "sqrt" (You et al. 2019).
        train_batch_size: pairs.
        reference_batch: pairs for which the lr was written; None with "none" alone.
    """
    if rule == "none" or reference_batch is None:
        return 1.0
    ratio = train_batch_size / reference_batch
    return ratio if rule == "linear" else math.sqrt(ratio)


def scale_lr(config: dict[str, Any], factor: float) -> None:
    """Multiply the optimizer's lr, and what a schedule took from it, in place; once, after the schedule is resolved."""
    if factor == 1:
        return
    for params, keys in (
        (config["optimizer"]["params"], ("lr", *MUON_LRS)),
        (config.get("scheduler", {}).get("params", {}), FILLED_FROM_LR),
    ):
        for key in keys:
            if key in params:
                params[key] *= factor


def check_quantized(config: Mapping[str, Any], path: str | Path, world_size: int) -> None:
    """Refuse ZeRO++ where its parts do not fit the ranks or each other.

    Args:
        config: the JSON.
        path: its file, for messages.
        world_size: data-parallel ranks.

    Raises:
        ConfigError: a partition that does not divide the ranks, quantized gradients without reduce-scatter.
    """
    zero = config.get("zero_optimization", {})
    partition = zero.get("zero_hpz_partition_size", 1)
    if isinstance(partition, int) and partition > 1 and world_size % min(partition, world_size):
        raise ConfigError(
            f"{path}: zero_optimization.zero_hpz_partition_size = {partition}: must divide the {world_size} ranks; "
            "the ranks of one host is the usual choice"
        )
    if zero.get("zero_quantized_gradients") and not zero.get("reduce_scatter", True):
        raise ConfigError(
            f"{path}: zero_optimization.reduce_scatter = false with zero_quantized_gradients = true: "
            "quantized gradients are sent by reduce-scatter; leave it out"
        )
