"""What stands inside the blocks of a DeepSpeed JSON, held against DeepSpeed's own definitions.

DeepSpeed refuses these too, but late: inside the process group, with a traceback on every rank.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic
import torch
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS

from pretrain.engine.ds_shape import block_shapes, shape_faults
from pretrain.engine.lamb import Lamb
from pretrain.engine.lion import Lion
from pretrain.engine.optim import make_muon
from pretrain.engine.schedules import SCHEDULES
from runtime.command import ConfigError, did_you_mean

ACTIVATION_KEYS = {
    "partition_activations": "it parts activations over model-parallel ranks, and here all ranks are data-parallel",
    "contiguous_memory_optimization": "it belongs to partition_activations",
    "number_checkpoints": "every layer is one checkpoint",
    "cpu_checkpointing": "a layer's input stays on its device",
    "synchronize_checkpoint_boundary": "there is nothing to wait for between layers",
    "profile": "wall_clock_breakdown and flops_profiler say where time goes",
}
"""Keys of activation_checkpointing, and why each has no effect on BERT's own layers, which recompute themselves."""
KNOWN_OPTIMIZERS = ("AdamW", "Adam", "Lamb", "Lion", "Muon", "SGD", "Adagrad")


def check_blocks(config: Mapping[str, Any], path: str | Path) -> None:
    """Refuse an unknown key or a wrong type at any level, and an optimizer or schedule parameter that is none.

    Args:
        config: resolved.
        path: its file, for messages.

    Raises:
        ConfigError: every fault, a line each.
    """
    faults = block_faults(config)
    if faults:
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))


def block_faults(config: Mapping[str, Any]) -> list[str]:
    """Return a line for each fault inside the blocks of a JSON that has an optimizer with a type.

    A block with a wrong type in it is not tried out, so that no fault is named twice.
    """
    faults = shape_faults(config)
    broken = {place_of(fault).split(".", maxsplit=1)[0] for fault in faults}
    faults += [fault for block, fault in _definition_faults(config) if block not in broken]
    faults += [] if "activation_checkpointing" in broken else _activation_faults(config)
    faults += [] if "optimizer" in broken else _optimizer_faults(config)
    faults += [] if "scheduler" in broken else _schedule_faults(config)
    return faults


def place_of(fault: str) -> str:
    """Return the path in the JSON that a fault begins with."""
    return fault.split(" ", maxsplit=1)[0].rstrip(":")


def _definition_faults(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Try the blocks that DeepSpeed has definitions for: block, and what is out of range or does not go together."""
    for block, definition in block_shapes().items():
        try:
            definition(**config.get(block, {}))
        except pydantic.ValidationError as error:
            for fault in error.errors():
                place = ".".join(str(part) for part in (block, *fault["loc"]))
                message = f"{fault['msg'][0].lower()}{fault['msg'][1:]}"
                yield block, f"{place} = {fault['input']!r}: {message}" if fault["loc"] else f"{place}: {message}"


def _activation_faults(config: Mapping[str, Any]) -> list[str]:
    """Refuse what would change nothing; a value that switches a key off may stand."""
    return [
        f"activation_checkpointing.{key} = {value!r}: has no effect: {ACTIVATION_KEYS[key]}; leave it out"
        for key, value in config.get("activation_checkpointing", {}).items()
        if key in ACTIVATION_KEYS and value not in (False, None)
    ]


def _optimizer_faults(config: Mapping[str, Any]) -> list[str]:
    kind, params = str(config["optimizer"]["type"]), dict(config["optimizer"].get("params", {}))
    if "max_grad_norm" in params:
        return ["optimizer.params.max_grad_norm: its home is gradient_clipping, at the top level"]
    of_torch: Any = getattr(torch.optim, kind, None)
    is_of_torch = isinstance(of_torch, type) and issubclass(of_torch, torch.optim.Optimizer)
    if kind.lower() not in DEEPSPEED_OPTIMIZERS and not is_of_torch:
        hint = did_you_mean(kind, KNOWN_OPTIMIZERS)
        return [f"optimizer.type = {kind!r}: neither DeepSpeed nor torch.optim has it{hint}"]
    return _parameter_faults(kind, params, of_torch)


def _parameter_faults(kind: str, params: dict[str, Any], of_torch: Any) -> list[str]:
    """Make the optimizer where that compiles nothing."""
    own: dict[str, Callable[..., object]] = {"lamb": Lamb, "lion": Lion}
    if kind.lower() in own:
        return _try("optimizer.params", lambda: own[kind.lower()]([torch.zeros(1, requires_grad=True)], **params))
    if kind.lower() == "muon":
        return _try("optimizer.params", lambda: make_muon(torch.nn.Linear(1, 1), {"lr": 0.0, **params}))
    if kind.lower() in ("adam", "adamw"):
        if not params.pop("torch_adam", False):
            return []  # DeepSpeed's own, which would be compiled here
        params.pop("adam_w_mode", None)
        of_torch = torch.optim.AdamW
    elif kind.lower() in DEEPSPEED_OPTIMIZERS:
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
