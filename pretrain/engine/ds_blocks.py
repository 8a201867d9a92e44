"""What stands inside the blocks of a DeepSpeed JSON, held against DeepSpeed's own definitions.

DeepSpeed refuses these too, but late: inside the process group, with a traceback on every rank.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pydantic
import torch
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

from pretrain.engine.lamb import Lamb
from pretrain.engine.lion import Lion
from pretrain.engine.optim import make_muon
from pretrain.engine.schedules import SCHEDULES
from runtime.command import ConfigError, did_you_mean

DEFINITIONS = {"zero_optimization": DeepSpeedZeroConfig, "fp16": DeepSpeedFP16Config, "bf16": DeepSpeedBF16Config}
ACTIVATION_KEYS = {
    "partition_activations": "it parts activations over model-parallel ranks, and here all ranks are data-parallel",
    "contiguous_memory_optimization": "it belongs to partition_activations",
    "number_checkpoints": "every layer is one checkpoint",
    "cpu_checkpointing": "a layer's input stays on its device",
    "synchronize_checkpoint_boundary": "there is nothing to wait for between layers",
    "profile": "wall_clock_breakdown and flops_profiler say where time goes",
}
"""Keys of activation_checkpointing, and why each has no effect on BERT's own layers, which recompute themselves."""
BLOCK_KEYS = {
    "activation_checkpointing": tuple(ACTIVATION_KEYS),
    "optimizer": ("type", "params", "legacy_fusion"),
    "scheduler": ("type", "params"),
    "data_types": ("grad_accum_dtype",),
    "checkpoint": (
        "tag_validation",
        "load_universal",
        "use_node_local_storage",
        "parallel_write",
        "writer",
        "checkpoint_serialization",
    ),
}
FLOAT_TYPES = ("fp32", "fp16", "bf16")


def check_blocks(config: Mapping[str, Any], path: str | Path) -> None:
    """Refuse an unknown key or a wrong type inside a block, and an optimizer or schedule parameter that is none.

    Args:
        config: resolved.
        path: its file, for messages.

    Raises:
        ConfigError: every fault, a line each.
    """
    faults = [*_block_faults(config), *_key_faults(config), *_type_faults(config)]
    faults += [*_activation_faults(config), *_optimizer_faults(config), *_schedule_faults(config)]
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


def _key_faults(config: Mapping[str, Any]) -> list[str]:
    """Name unknown keys of blocks that DeepSpeed reads key by key, ignoring all others."""
    return [
        f"{block}.{key}: DeepSpeed knows no such key and would ignore it{did_you_mean(key, known)}"
        for block, known in BLOCK_KEYS.items()
        for key in config.get(block, {})
        if key not in known
    ]


def _type_faults(config: Mapping[str, Any]) -> list[str]:
    places = {
        "communication_data_type": config.get("communication_data_type"),
        "data_types.grad_accum_dtype": config.get("data_types", {}).get("grad_accum_dtype"),
    }
    return [
        f"{place} = {value!r}: must be one of {', '.join(FLOAT_TYPES)}"
        for place, value in places.items()
        if value is not None and value not in FLOAT_TYPES
    ]


def _activation_faults(config: Mapping[str, Any]) -> list[str]:
    """Refuse what would change nothing; a value that switches a key off may stand."""
    return [
        f"activation_checkpointing.{key} = {value!r}: has no effect: {ACTIVATION_KEYS[key]}; leave it out"
        for key, value in config.get("activation_checkpointing", {}).items()
        if key in ACTIVATION_KEYS and value not in (False, None)
    ]


def _optimizer_faults(config: Mapping[str, Any]) -> list[str]:
    kind, params = str(config["optimizer"]["type"]), dict(config["optimizer"].get("params", {}))
    own: dict[str, Callable[..., object]] = {"lamb": Lamb, "lion": Lion}
    if kind.lower() in own:
        return _try("optimizer.params", lambda: own[kind.lower()]([torch.zeros(1, requires_grad=True)], **params))
    if kind.lower() == "muon":
        return _try("optimizer.params", lambda: make_muon(torch.nn.Linear(1, 1), {"lr": 0.0, **params}))
    known = set(DEEPSPEED_OPTIMIZERS)
    of_torch: Any = getattr(torch.optim, kind, None)
    is_of_torch = isinstance(of_torch, type) and issubclass(of_torch, torch.optim.Optimizer)
    if kind.lower() not in known and not is_of_torch:
        hint = did_you_mean(kind, ["AdamW", "Adam", "Lamb", "Lion", "Muon", "SGD", "Adagrad"])
        return [f"optimizer.type = {kind!r}: neither DeepSpeed nor torch.optim has it{hint}"]
    if kind.lower() in ("adam", "adamw"):
        if not params.pop("torch_adam", False):
            return []  # DeepSpeed's own, which would be compiled here
        params.pop("adam_w_mode", None)
        of_torch = torch.optim.AdamW
    elif kind.lower() in known:
        return []
    return _try("optimizer.params", lambda: of_torch([torch.zeros(1, requires_grad=True)], **params))


def _schedule_faults(config: Mapping[str, Any]) -> list[str]:
    if "scheduler" not in config:
        return []
    kind, params = config["scheduler"]["type"], config["scheduler"].get("params", {})
    if not isinstance(params, dict):
        return [f"scheduler.params = {params!r}: must be an object {{...}}"]
    parameters = inspect.signature(_schedule_class(kind)).parameters
    known = set(parameters) - {"optimizer", "last_batch_iteration", "clock"}
    faults = [
        f"scheduler.params.{key}: {kind} takes no such parameter{did_you_mean(key, known)}"
        for key in sorted(set(params) - known)
    ]
    faults += [
        f"scheduler.params.{key} is missing; {kind} has no default for it"
        for key in sorted(known - set(params))
        if parameters[key].default is inspect.Parameter.empty
    ]
    lr = config["optimizer"].get("params", {}).get("lr", 1e-3)
    return faults or _try("scheduler.params", lambda: _two_steps(kind, params, lr))


def _schedule_class(kind: str) -> Any:
    return SCHEDULES[kind] if kind in SCHEDULES else getattr(lr_schedules, kind)


def _two_steps(kind: str, params: Mapping[str, Any], lr: float) -> None:
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule = _schedule_class(kind)(optimizer, **params)
    schedule.step()
    schedule.step()


def _try(place: str, make: Callable[[], object]) -> list[str]:
    """Make the real thing on a tensor of one element; what it objects to is a fault of the JSON."""
    try:
        make()
    except Exception as error:  # noqa: BLE001 - whatever it raises here it would raise on every rank later
        return [f"{place}: {error}"]
    return []
