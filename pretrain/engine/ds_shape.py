"""What keys and types a DeepSpeed JSON has at every level, and which do not fit.

DeepSpeed checks some blocks late, inside the process group, with a traceback on every rank; it turns "true" into true;
and of the blocks that it reads key by key it ignores what it does not know.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig
from pydantic import BaseModel

from pretrain.engine.ds_refused import REFUSED
from pretrain.engine.ds_values import AUTO
from runtime.command import did_you_mean

_FloatType = Literal["fp32", "fp16", "bf16"]
_Count = int | Literal["auto"]

SHAPE: Mapping[str, Any] = {
    "train_batch_size": _Count,
    "train_micro_batch_size_per_gpu": _Count,
    "gradient_accumulation_steps": _Count,
    "optimizer": {"type": str, "params": dict, "legacy_fusion": bool},
    "scheduler": {"type": str, "params": dict},
    "fp16": DeepSpeedFP16Config,
    "bf16": DeepSpeedBF16Config,
    "torch_autocast": {
        "enabled": bool,
        "dtype": Literal["float16", "half", "fp16", "bfloat16", "bf16", "torch.float16", "torch.bfloat16"],
        "lower_precision_safe_modules": list[str],
    },
    "data_types": {
        "grad_accum_dtype": _FloatType,
        "param_dtype": _FloatType,
        "buffer_dtype": _FloatType,
        "keep_in_fp32_modules": list[str],
    },
    "gradient_clipping": float,
    "zero_optimization": DeepSpeedZeroConfig,
    "zero_allow_untested_optimizer": bool,
    "zero_force_ds_cpu_optimizer": bool,
    "communication_data_type": _FloatType,
    "prescale_gradients": bool,
    "gradient_predivide_factor": float,
    "gradient_allreduce_op": str,
    "steps_per_print": int,
    "wall_clock_breakdown": bool,
    "memory_breakdown": bool,
    "dump_state": bool,
    "log_level": Literal["debug", "info", "warning", "error", "critical"],
    "flops_profiler": {
        "enabled": bool,
        "recompute_fwd_factor": float,
        "profile_step": int,
        "module_depth": int,
        "top_modules": int,
        "detailed": bool,
        "output_file": str | None,
    },
    "comms_logger": CommsLoggerConfig,
    "disable_python_gc": bool,
    "timers": {"throughput": DeepSpeedThroughputTimerConfig},
    "aio": {
        "block_size": int,
        "queue_depth": int,
        "intra_op_parallelism": int,
        "single_submit": bool,
        "overlap_events": bool,
        "use_gds": bool,
    },
    "checkpoint": {
        "tag_validation": str,
        "load_universal": bool,
        "use_node_local_storage": bool,
        "parallel_write": {"pipeline_stage": bool},
        "writer": {
            "type": str,
            "io_buffer_size": int,
            "io_buffer_double": bool,
            "io_multiplier": int,
            "show_statistics": bool,
            "data_parallel": str,
            "decoupled": bool,
        },
        "checkpoint_serialization": bool,
    },
    "compile": CompileConfig,
    "activation_checkpointing": {
        "partition_activations": bool,
        "contiguous_memory_optimization": bool,
        "number_checkpoints": int | None,
        "cpu_checkpointing": bool,
        "synchronize_checkpoint_boundary": bool,
        "profile": bool,
    },
    "tensorboard": TensorBoardConfig,
    "wandb": WandbConfig,
    "csv_monitor": CSVConfig,
    "comet": CometConfig,
}
"""Key -> type, as DeepSpeed reads it; a mapping or one of DeepSpeed's own definitions is a block."""


def block_shapes() -> dict[str, type[BaseModel]]:
    """Return the blocks that DeepSpeed has definitions for."""
    return {key: kind for key, kind in SHAPE.items() if _is_definition(kind)}


def shape_faults(config: Mapping[str, Any]) -> list[str]:
    """Return a line for each unknown key and each wrong type, at every level.

    A value "auto" fits everywhere: whether something fills it is another question. A number without a fraction, such as
    5e8, is an integer, as DeepSpeed takes it.
    """
    return list(_object_faults(config, SHAPE, ""))


def _object_faults(values: Mapping[str, Any], shape: Any, place: str) -> Iterator[str]:
    known = _keys_of(shape)
    for key, value in values.items():
        inner = f"{place}.{key}" if place else key
        if inner in REFUSED:
            yield f"{inner}: refused: {REFUSED[inner]}"
        elif key not in known:
            what = "no such key" if place else "no such top-level key"
            # Where DeepSpeed has a definition it stops, late; elsewhere it goes on without a word.
            ignored = " and would ignore it" if isinstance(shape, Mapping) else ""
            yield f"{inner}: DeepSpeed knows {what}{ignored}{did_you_mean(key, known)}"
        elif not _is_auto(value):
            yield from _faults(value, known[key], inner)


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == AUTO


def _faults(value: Any, kind: Any, place: str) -> Iterator[str]:
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    if value is None and type(None) in kinds:
        return
    kind = next(one for one in kinds if one is not type(None))
    if not (isinstance(kind, Mapping) or _is_definition(kind)):
        if rule := _rule_broken(value, kind):
            yield f"{place} = {value!r}: must be {rule}"
    elif not isinstance(value, dict):
        yield f"{place} = {value!r}: must be an object {{...}}"
    else:
        yield from _object_faults(value, kind, place)


def _is_definition(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _keys_of(shape: Any) -> Mapping[str, Any]:
    """Return a block's keys and their types; a field with an alias goes by both names."""
    if isinstance(shape, Mapping):
        return shape
    keys: dict[str, Any] = {}
    for name, field in shape.model_fields.items():
        keys[field.alias or name] = keys[name] = field.annotation
    return keys


def _rule_broken(value: Any, kind: Any) -> str | None:
    """Return the rule that a plain value breaks, or None."""
    origin = typing.get_origin(kind)
    if origin is Literal:
        return None if value in typing.get_args(kind) else f"one of {', '.join(typing.get_args(kind))}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        choices = [str(one.value) for one in kind]
        is_one = not isinstance(value, bool | float) and any(value == one.value for one in kind)
        return None if is_one else f"{', '.join(choices[:-1])} or {choices[-1]}"
    for plain, (is_right, rule) in _PLAIN.items():
        if plain in (kind, origin):
            return None if is_right(value) else rule
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_PLAIN: Mapping[Any, tuple[Any, str]] = {
    bool: (lambda value: isinstance(value, bool), "true or false, without quotes"),
    int: (lambda value: _is_number(value) and float(value).is_integer(), "an integer, without quotes"),
    float: (_is_number, "a number, without quotes"),
    str: (lambda value: isinstance(value, str), "text in quotes"),
    Path: (lambda value: isinstance(value, str), "a path in quotes"),
    list: (lambda value: isinstance(value, list), "a list [...]"),
    dict: (lambda value: isinstance(value, dict), "an object {...}"),
}
