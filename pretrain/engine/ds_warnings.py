"""What in a resolved DeepSpeed JSON runs, but costs memory for nothing or does not do what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pretrain.engine.ds_buckets import DEFAULT_BUCKET_ELEMENTS, bucket_sizes, element_bytes, sends_in_one_piece
from pretrain.engine.ds_rules import ZERO, offload_device

STAGE_3_KEYS = ("sub_group_size", "memory_efficient_linear", "pipeline_loading_checkpoint", "leaf_module")
"""Keys for ZeRO 3 alone, beside those whose names begin with stage3_."""
BUCKET_KEYS = ("overlap_comm", "contiguous_gradients", "round_robin_gradients", "reduce_scatter")
"""What says how buckets are filled and sent."""
MONITORS = {"wandb": "tracking.wandb", "tensorboard": "tracking.tensorboard", "csv_monitor": "", "comet": ""}
"""DeepSpeed's own monitors, and the recipe's setting that does the same."""


def warnings_of(config: Mapping[str, Any], *, on_cuda: bool, num_parameters: int | None = None) -> list[str]:
    """Return what is worth a second look, a line each: path in the JSON, value, what to write.

    Args:
        config: as `resolve_ds_config` returns it.
        on_cuda: whether the engine will run on CUDA.
        num_parameters: elements of the whole model; None: not known, buckets are not compared with it.
    """
    zero = config.get(ZERO, {})
    return [
        *_without_effect(config, zero),
        *_buckets(config, zero, num_parameters, on_cuda),
        *_schedule(config),
        *_communication(config),
        *_monitors(config),
    ]


def _without_effect(config: Mapping[str, Any], zero: Mapping[str, Any]) -> Iterator[str]:
    stage = zero.get("stage", 0)
    for key, value in zero.items():
        if stage < 3 and (key.startswith("stage3_") or key in STAGE_3_KEYS):
            yield f"{ZERO}.{key} = {value!r}: has no effect at stage {stage}, it is for stage 3; leave it out"
    if zero.get("round_robin_gradients") and stage in (0, 3):
        yield f"{ZERO}.round_robin_gradients = true: has no effect at stage {stage}; leave it out"
    if sends_in_one_piece(config):
        for key in BUCKET_KEYS:
            if zero.get(key):
                yield (
                    f"{ZERO}.{key} = true: has no effect at stage 1 in bf16 with sums in fp32, where all gradients are "
                    f"sent at once; leave it out, or write {ZERO}.stage = 2"
                )
    elif offload_device(config) != "none" and not zero.get("contiguous_gradients", True) and stage in (1, 2):
        yield f"{ZERO}.contiguous_gradients = false: with offload_optimizer DeepSpeed takes true; leave it out"
    if "aio" in config and "nvme" not in (offload_device(config), offload_device(config, "offload_param")):
        yield "aio: has no effect without an offload to NVMe; leave it out"
    if config.get("compile"):
        yield "compile: has no effect, model.compile of the recipe says what is compiled; leave it out"


def _buckets(
    config: Mapping[str, Any], zero: Mapping[str, Any], num_parameters: int | None, on_cuda: bool
) -> Iterator[str]:
    stage = zero.get("stage", 0)
    if stage == 0 or sends_in_one_piece(config) or not zero.get("contiguous_gradients", True):
        return
    size, width = int(zero.get("reduce_bucket_size", DEFAULT_BUCKET_ELEMENTS)), element_bytes(config)
    # Stage 3 has one bucket a type whether it overlaps or not.
    is_double = bool(zero.get("overlap_comm", False)) and stage < 3
    fitting = bucket_sizes(num_parameters, stage=stage, on_cuda=on_cuda)["reduce_bucket_size"]
    if num_parameters is not None and size > num_parameters + 1:
        wasted = (size - num_parameters) * width * (2 if is_double else 1)
        yield (
            f"{ZERO}.reduce_bucket_size = {size:,}: the model has {num_parameters:,} parameters, {_size(wasted)} would "
            f"never be used; write {fitting}"
        )
    if not is_double:
        return
    if not on_cuda:
        yield (
            f"{ZERO}.overlap_comm = true: takes a second bucket of {_size(size * width)}, and on a CPU nothing runs "
            "beside the backward pass; write false"
        )
    elif size > fitting:
        yield (
            f"{ZERO}.overlap_comm = true: doubles the bucket, {_size(size * width)} more; "
            f"write {ZERO}.reduce_bucket_size = {fitting}"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB ({count:,} bytes)" if count >= 2**28 else f"{count / 2**20:.1f} MiB"


def _schedule(config: Mapping[str, Any]) -> Iterator[str]:
    schedule = config.get("scheduler", {})
    rules = {"OneCycle": ("cycle_min_lr", "cycle_max_lr"), "LRRangeTest": ("lr_range_test_min_lr",)}
    kind, params, lr = schedule.get("type"), schedule.get("params", {}), config["optimizer"]["params"]["lr"]
    if kind not in rules:
        return
    written = " to ".join(f"{key} = {params.get(key, 1e-3)}" for key in rules[kind])
    yield (
        f"optimizer.params.lr = {lr}: {kind} passes over it, scheduler.params rules: {written}; "
        "write the lr that you want there"
    )


def _communication(config: Mapping[str, Any]) -> Iterator[str]:
    if config.get("communication_data_type") == "fp16" and not config.get("fp16", {}).get("enabled"):
        yield (
            "communication_data_type = 'fp16' without fp16: gradients are sent without a loss scale, those below 6e-8 "
            "vanish and those above 65504 overflow; write bf16 or fp32"
        )


def _monitors(config: Mapping[str, Any]) -> Iterator[str]:
    for key, ours in MONITORS.items():
        if config.get(key, {}).get("enabled"):
            instead = f"write {ours} in the recipe" if ours else "metrics.jsonl has the numbers"
            yield f"{key}.enabled = true: DeepSpeed writes a record of its own beside the run's; {instead}"
