"""Pairs of settings that do not go together, though each alone is right.

What DeepSpeed stops at, or passes over although the user relies on it, is a fault. What costs memory or does nothing is
a warning. Each line names the path in the JSON, the value and what to write instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deepspeed.accelerator import get_accelerator

TESTED_OPTIMIZERS = ("adam", "adamw", "adagrad", "lion", "muon", "lamb")
"""What DeepSpeed's ZeRO takes without being told; LAMB is ours."""
ZERO = "zero_optimization"
QUANTIZED = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")


def rule_faults(config: Mapping[str, Any], *, on_cuda: bool) -> list[str]:
    """Return a line for each pair of settings that cannot run, or would not do what it says.

    Args:
        config: a JSON whose keys and types are right; "auto" is filled or left.
        on_cuda: whether the engine will run on CUDA.
    """
    zero = config.get(ZERO, {})
    return [
        *_offload_faults(config, zero),
        *_scaling_faults(config, zero),
        *_zero_faults(config, zero, on_cuda),
        *_precision_faults(config, zero, on_cuda),
        *_optimizer_faults(config, zero),
    ]


def offload_device(config: Mapping[str, Any], key: str = "offload_optimizer") -> str:
    """Return where the optimizer's states, or with "offload_param" the parameters, are kept: none, cpu or nvme."""
    return str((config.get(ZERO, {}).get(key) or {}).get("device", "none"))


def _offload_faults(config: Mapping[str, Any], zero: Mapping[str, Any]) -> Iterator[str]:
    stage = zero.get("stage", 0)
    for key, least in (("offload_optimizer", 1), ("offload_param", 3)):
        place, device = f"{ZERO}.{key}", offload_device(config, key)
        if device == "none":
            continue
        if stage < least:
            yield (
                f"{place}.device = {device!r} at stage {stage}: DeepSpeed would leave all on the device; "
                f"write {ZERO}.stage = {least}, or leave {key} out"
            )
        elif device == "nvme":
            yield from _nvme_faults(zero[key], place, stage)
    if (zero.get("offload_optimizer") or {}).get("ratio", 1.0) < 1 and config["optimizer"]["params"].get("torch_adam"):
        yield f"{ZERO}.offload_optimizer.ratio below 1 needs DeepSpeed's own Adam: take optimizer.params.torch_adam out"


def _nvme_faults(offload: Mapping[str, Any], place: str, stage: int) -> Iterator[str]:
    if stage < 3:
        yield (
            f"{place}.device = 'nvme' at stage {stage}: DeepSpeed would use the host's memory; "
            f"write 'cpu', or {ZERO}.stage = 3"
        )
    folder = offload.get("nvme_path")
    if folder is None:
        yield f"{place}.nvme_path is missing: name a folder on the NVMe disk"
    elif not Path(folder).is_dir():
        yield f"{place}.nvme_path = {folder!r}: there is no such folder: make it, on the NVMe disk of every host"
    elif not os.access(folder, os.W_OK):
        yield f"{place}.nvme_path = {folder!r}: cannot be written to"
    if not has_async_io():
        yield (
            f"{place}.device = 'nvme': DeepSpeed's async_io cannot be compiled here, libaio is missing: "
            "install libaio-dev (Debian, Ubuntu) or libaio-devel (Fedora, RHEL), or write 'cpu'"
        )


def has_async_io() -> bool:
    """Say whether DeepSpeed's operator for NVMe can be compiled here: it links a small program with libaio."""
    builder = get_accelerator().create_op_builder("AsyncIOBuilder")
    return builder is not None and bool(builder.is_compatible(verbose=False))


def _scaling_faults(config: Mapping[str, Any], zero: Mapping[str, Any]) -> Iterator[str]:
    stage = zero.get("stage", 0)
    if stage < 2 or not zero.get("reduce_scatter", True):
        return
    for key, plain in (("prescale_gradients", False), ("gradient_predivide_factor", 1)):
        if config.get(key, plain) != plain:
            yield (
                f"{key} = {config[key]!r} at stage {stage}: DeepSpeed does not scale before a reduce-scatter; "
                f"leave it out, or write {ZERO}.stage = 1"
            )


def _zero_faults(config: Mapping[str, Any], zero: Mapping[str, Any], on_cuda: bool) -> Iterator[str]:
    stage = zero.get("stage", 0)
    wanted = [key for key in QUANTIZED if zero.get(key)]
    wanted += ["zero_hpz_partition_size"] if zero.get("zero_hpz_partition_size", 1) > 1 else []
    for key in wanted:
        if stage < 3:
            yield (
                f"{ZERO}.{key} = {zero[key]!r} at stage {stage}: DeepSpeed would pass over it; "
                f"write {ZERO}.stage = 3, or leave it out"
            )
        elif not on_cuda and key in QUANTIZED:
            yield f"{ZERO}.{key} = true: there is no such kernel for a CPU; leave it out"
    if zero.get("allgather_bucket_size", 2) % 2:
        yield f"{ZERO}.allgather_bucket_size = {zero['allgather_bucket_size']!r}: must be even"
    if not zero.get("compute_grad_norm", True):
        yield f"{ZERO}.compute_grad_norm = false: the norm is logged, and a run with NaN in it stopped; leave it out"
    if config.get("compile", {}).get("deepcompile"):
        yield "compile.deepcompile = true: model.compile of the recipe says what is compiled; leave it out"


def _precision_faults(config: Mapping[str, Any], zero: Mapping[str, Any], on_cuda: bool) -> Iterator[str]:
    enabled = [name for name in ("fp16", "bf16") if config.get(name, {}).get("enabled")]
    autocast = config.get("torch_autocast", {})
    if autocast.get("enabled"):
        for name in enabled:
            yield (
                f"torch_autocast.enabled and {name}.enabled are both true: autocast is for parameters in fp32; keep one"
            )
        if "dtype" not in autocast:
            yield "torch_autocast.dtype is missing: write bfloat16, or float16 on a GPU without bf16"
        elif "16" in autocast["dtype"] and "bf" not in autocast["dtype"] and not on_cuda:
            yield f"torch_autocast.dtype = {autocast['dtype']!r}: DeepSpeed has no fp16 on CPU; write bfloat16"
        if zero.get("zero_quantized_weights"):
            yield f"{ZERO}.zero_quantized_weights and torch_autocast.enabled are both true: keep one"
    written, is_in = config.get("data_types", {}).get("param_dtype"), (enabled or ["fp32"])[0]
    if written not in (None, is_in):
        yield f"data_types.param_dtype = {written!r}, but the parameters are in {is_in}: leave it out"
    yield from _master_faults(config, zero)


def _master_faults(config: Mapping[str, Any], zero: Mapping[str, Any]) -> Iterator[str]:
    for name in ("fp16", "bf16"):
        key = f"{name}_master_weights_and_grads"
        if not config.get(name, {}).get(key):
            continue
        is_on_device = config[name].get("bf16_optimizer_states", False)
        if zero.get("stage", 0) == 0 or (offload_device(config) == "none" and not is_on_device):
            yield (
                f"{name}.{key} = true: DeepSpeed has it under ZeRO with the optimizer on the host alone; "
                f'write {ZERO}.offload_optimizer: {{"device": "cpu"}}, or leave it out'
            )


def _optimizer_faults(config: Mapping[str, Any], zero: Mapping[str, Any]) -> Iterator[str]:
    kind, stage = str(config["optimizer"]["type"]), zero.get("stage", 0)
    if stage and kind.lower() not in TESTED_OPTIMIZERS and not config.get("zero_allow_untested_optimizer"):
        yield (
            f"optimizer.type = {kind!r} at stage {stage}: DeepSpeed has not tested it under ZeRO and stops; write "
            f"zero_allow_untested_optimizer = true (right for what works element by element), or {ZERO}.stage = 0"
        )
