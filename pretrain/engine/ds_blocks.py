"""What stands inside the blocks of a DeepSpeed JSON, held against DeepSpeed's own definitions.

DeepSpeed refuses these too, but late: inside the process group, with a traceback on every rank.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic
import torch
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

from runtime.command import ConfigError, did_you_mean

DEFINITIONS = {"zero_optimization": DeepSpeedZeroConfig, "fp16": DeepSpeedFP16Config, "bf16": DeepSpeedBF16Config}
MORE_OPTIMIZERS = ("OneBitAdam", "OneBitLamb", "ZeroOneAdam")


def check_blocks(config: Mapping[str, Any], path: str | Path) -> None:
    """Refuse an unknown key or a wrong type inside a block, and an optimizer or schedule parameter that is none.

    Args:
        config: resolved.
        path: its file, for messages.

    Raises:
        ConfigError: every fault, a line each.
    """
    faults = [*_block_faults(config), *_optimizer_faults(config), *_schedule_faults(config)]
    if faults:
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))


def _block_faults(config: Mapping[str, Any]) -> list[str]:
    faults = []
    for block, definition in DEFINITIONS.items():
        try:
            definition(**config.get(block, {}))
        except pydantic.ValidationError as error:
            for fault in error.errors():
                place = ".".join(str(part) for part in (block, *fault["loc"]))
                if fault["type"] == "extra_forbidden":
                    hint = did_you_mean(str(fault["loc"][-1]), definition.model_fields)
                    faults.append(f"{place}: DeepSpeed knows no such key{hint}")
                else:
                    faults.append(f"{place} = {fault['input']!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}")
    return faults


def _optimizer_faults(config: Mapping[str, Any]) -> list[str]:
    kind = str(config["optimizer"]["type"])
    known = {*DEEPSPEED_OPTIMIZERS, *(name.lower() for name in MORE_OPTIMIZERS)}
    if kind.lower() in known or hasattr(torch.optim, kind):
        return []
    hint = did_you_mean(kind, ["AdamW", "Adam", "Lion", "Muon", "SGD", "Adagrad", *MORE_OPTIMIZERS])
    return [f"optimizer.type = {kind!r}: neither DeepSpeed nor torch.optim has it{hint}"]


def _schedule_faults(config: Mapping[str, Any]) -> list[str]:
    if "scheduler" not in config:
        return []
    kind = config["scheduler"]["type"]
    known = set(inspect.signature(getattr(lr_schedules, kind)).parameters) - {"optimizer", "last_batch_iteration"}
    unknown = sorted(set(config["scheduler"].get("params", {})) - known)
    return [f"scheduler.params.{key}: {kind} takes no such parameter{did_you_mean(key, known)}" for key in unknown]
