"""Memory of a device by formula: what DeepSpeed 0.19.8 holds for each ZeRO stage, and what a micro-batch takes.

Model states are exact: they follow DeepSpeed's own flat buffers, paddings and partitions of every parameter, for the
rank that holds most, and `python -m benchmarks.memory` holds them against the live tensors of real ranks. With P
parameters, W ranks, Adam, just before `step()`, bytes a parameter:

    stage      bf16, sums in fp32              fp32
    0          2 + 2 + 12 (sums in bf16)       4 + 4 + 8
    1          2 + 4 + 12/W                    4 + 16/W
    2          2 + 16/W                        4 + 16/W
    3          18/W                            20/W

    stage 1 in bf16 with sums in fp32 keeps whole sums (BF16_Optimizer), and whole bf16 gradients beside them unless
    bf16.immediate_grad_update; fp32 from stage 1 on keeps a second copy of the parameters as masters; without sums in
    a type of their own, a rank keeps the whole gradient of every parameter that its slice touches; stage 3 keeps
    parameters below its threshold whole, and its reduce bucket for the whole run.

Activations and what a step takes for a moment are estimates, and called so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

from pretrain.engine.ds_config import precision, zero_stage
from pretrain.parameters import Parameter, groups_of
from pretrain.plan.moments import moments_of

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
_MASTER = 4
_ALIGNMENT = 2
"""Of DeepSpeed's flat buffers, elements a rank (nccl_start_alignment_factor)."""


@dataclass(frozen=True)
class ModelStates:
    """Bytes on the device of the rank that holds most, just before `step()`, gradients live."""

    parameters: int = 0
    gradients: int = 0
    masters: int = 0
    """fp32 copies of the parameters that the optimizer updates."""
    moments: int = 0
    buckets: int = 0
    """Buffers that stay for the whole run (stage 3)."""
    host: int = 0
    """Bytes of the host's memory a rank, by offload."""
    backward: int = 0
    """Estimate: most that gathering and reducing take beside, during forward and backward."""
    step: int = 0
    """Estimate: most that the update takes beside, when no activation is alive."""

    @property
    def total(self) -> int:
        """Bytes of what lives on the device all the time or until the update."""
        return self.parameters + self.gradients + self.masters + self.moments + self.buckets


@dataclass(frozen=True)
class _Setting:
    """What of a resolved JSON decides."""

    stage: int
    world: int
    size: int
    """Bytes of a parameter."""
    sums: int
    """Bytes of a gradient as it is added up."""
    moments: float
    """Elements of optimizer state a parameter."""
    scratch: bool
    """Whether the update is made in a tensor as large as what it updates (our LAMB)."""
    zero: DeepSpeedZeroConfig
    immediate: bool
    accumulation: int
    offloads_optimizer: bool
    offloads_parameters: bool

    @property
    def has_own_sums(self) -> bool:
        return self.size != self.sums

    @property
    def is_bf16_optimizer(self) -> bool:
        """Whether DeepSpeed takes BF16_Optimizer, which keeps whole sums."""
        return self.stage == 1 and self.has_own_sums and not self.offloads_optimizer


def model_states(
    parameters: Sequence[Parameter], config: Mapping[str, Any], world_size: int, stage: int | None = None
) -> ModelStates:
    """Return the memory of model states.

    Args:
        parameters: of the model, in its order.
        config: a resolved DeepSpeed JSON.
        world_size: data-parallel ranks.
        stage: another ZeRO stage than the JSON's, with all else as it is.
    """
    setting = _setting(config, world_size, zero_stage(config) if stage is None else stage)
    states = (_whole, _partitioned, _partitioned, _stage_3)[setting.stage](groups_of(parameters), setting)
    return _offload(states, setting, max(p.numel for p in parameters))


def _setting(config: Mapping[str, Any], world_size: int, stage: int) -> _Setting:
    kind = precision(config)
    sums = config.get("data_types", {}).get("grad_accum_dtype") or ("fp32" if kind == "bf16" and stage else kind)
    if stage == 0:
        sums = kind
    block = {**config.get("zero_optimization", {}), "stage": stage}
    zero = DeepSpeedZeroConfig(**block)
    optimizer = config["optimizer"]
    return _Setting(
        stage=stage,
        world=world_size,
        size=BYTES[kind],
        sums=BYTES[sums],
        moments=moments_of(optimizer),
        scratch=str(optimizer["type"]).lower() == "lamb",
        zero=zero,
        immediate=bool(config.get("bf16", {}).get("immediate_grad_update", False)),
        accumulation=int(config.get("gradient_accumulation_steps", 1)),
        offloads_optimizer=stage > 0 and _is_offloaded(block.get("offload_optimizer")),
        offloads_parameters=stage == 3 and _is_offloaded(block.get("offload_param")),
    )


def _is_offloaded(block: Any) -> bool:
    return bool(block) and block.get("device", "none") != "none"


def _whole(groups: Sequence[Sequence[Parameter]], setting: _Setting) -> ModelStates:
    """Stage 0: every rank holds all."""
    count = sum(p.numel for group in groups for p in group)
    largest = max(p.numel for group in groups for p in group)
    is_half = setting.size < _MASTER
    return ModelStates(
        parameters=count * setting.size,
        gradients=count * setting.size,
        masters=count * _MASTER if is_half else 0,
        moments=int(count * _MASTER * setting.moments),
        backward=min(count, int(setting.zero.reduce_bucket_size)) * setting.size,
        step=(count * _MASTER if is_half else 0) + largest * _MASTER * setting.scratch,
    )


def _partitioned(groups: Sequence[Sequence[Parameter]], setting: _Setting) -> ModelStates:
    """Stages 1 and 2: flat groups, padded, of which each rank updates a slice."""
    counts = [sum(p.numel for p in group) for group in groups]
    unit = _ALIGNMENT * setting.world
    flats = [-(-count // unit) * unit for count in counts]
    flat, own = sum(flats), sum(size // setting.world for size in flats)
    largest = max(p.numel for group in groups for p in group)
    bucket = min(int(setting.zero.reduce_bucket_size), max(largest, sum(counts))) * setting.size
    backward = int(setting.zero.reduce_bucket_size) * setting.size * (2 if setting.zero.overlap_comm else 1)
    backward += largest * setting.size
    step = min(int(setting.zero.allgather_bucket_size), flat) * setting.size
    if setting.is_bf16_optimizer:
        gradients = flat * setting.sums + (0 if setting.immediate else sum(counts) * setting.size)
        backward = largest * setting.size if setting.immediate else bucket
    elif setting.has_own_sums and setting.stage == 2:
        gradients = own * setting.sums
    else:
        gradients = _most_touched(groups, flats, setting.world) * setting.size
        step += own * _MASTER
        if setting.stage == 1:
            backward += (sum(counts) if setting.accumulation > 1 else 0) * setting.sums
    return ModelStates(
        parameters=flat * setting.size,
        gradients=gradients,
        masters=own * _MASTER,
        moments=int(own * _MASTER * setting.moments),
        backward=backward,
        step=step + (own * _MASTER if setting.scratch else 0),
    )


def _most_touched(groups: Sequence[Sequence[Parameter]], flats: Sequence[int], world: int) -> int:
    """Return the elements of the parameters that a rank's slices touch, each whole, on the rank with most."""
    total = np.zeros(world, dtype=np.int64)
    for group, flat in zip(groups, flats, strict=True):
        ends = np.cumsum([p.numel for p in group])
        starts = np.concatenate([[0], ends[:-1]])
        slices = np.arange(world) * (flat // world)
        first = np.searchsorted(ends, slices, side="right")
        last = np.searchsorted(starts, slices + flat // world, side="left")  # behind the last
        is_real = first < last
        total[is_real] += ends[last[is_real] - 1] - starts[first[is_real]]
    return int(total.max())


def _stage_3(groups: Sequence[Sequence[Parameter]], setting: _Setting) -> ModelStates:
    """Stage 3: each rank has its share of every parameter."""
    sizes = [p.numel for group in groups for p in group]
    own = sum(-(-size // setting.world) for size in sizes)
    kept = 0
    if setting.world > 1:  # alone, the share is the parameter
        limit = int(setting.zero.param_persistence_threshold)
        kept = sum(size for size in sizes if size <= limit)
        kept = min(kept, int(setting.zero.model_persistence_threshold))
    gathered = min(sum(sizes), int(setting.zero.max_live_parameters)) if setting.world > 1 else 0
    return ModelStates(
        parameters=(own + kept) * setting.size,
        gradients=own * setting.sums,
        masters=own * _MASTER,
        moments=int(own * _MASTER * setting.moments),
        buckets=int(setting.zero.reduce_bucket_size) * setting.size if setting.zero.contiguous_gradients else 0,
        backward=(gathered + 2 * max(sizes)) * setting.size,
        step=own * _MASTER * (1 + setting.scratch),
    )


def _offload(states: ModelStates, setting: _Setting, largest: int) -> ModelStates:
    """Move to the host what the JSON says."""
    if setting.offloads_optimizer:
        # Gradients go to the host as they are reduced, into fp32; one of the largest parameter stays as a buffer.
        states = replace(
            states,
            gradients=0,
            masters=0,
            moments=0,
            buckets=states.buckets + largest * setting.size,
            step=0,
            host=states.host + states.masters * 2 + states.moments,
        )
    if setting.offloads_parameters:
        states = replace(states, parameters=0, host=states.host + states.parameters)
    return states
