"""Where an engine keeps the fp32 masters of its parameters, and how they get back to what it computes with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.engine import DeepSpeedEngine
from torch import Tensor


@dataclass(frozen=True)
class Fragment:
    """A stretch of a parameter in a tensor of masters."""

    name: str
    start: int
    """In the tensor of masters, elements."""
    offset: int
    """In the parameter laid flat."""
    length: int


@dataclass(frozen=True)
class Masters:
    """A tensor that the optimizer updates, and what it holds on this rank."""

    tensor: Tensor
    group: dict[str, Any]
    """Of the optimizer: its hyperparameters."""
    names: Sequence[str]
    """All parameters of the tensor over all ranks; this one may have none of them."""
    fragments: Sequence[Fragment]


def masters_of(engine: DeepSpeedEngine) -> Iterator[Masters]:
    """Yield every tensor of fp32 masters of this rank.

    Args:
        engine: of any ZeRO stage and precision; without NVMe.
    """
    optimizer, names = engine.optimizer, engine.param_names
    groups = engine.basic_optimizer.param_groups
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):  # stage 3
        rank = dist.get_rank(engine.seq_data_parallel_group)
        for number, parameters in enumerate(optimizer.fp16_groups):
            tensor, group = optimizer.fp32_partitioned_groups_flat[number], optimizer.sub_group_to_group_id[number]
            fragments = list(_shares(parameters, names, rank))
            yield Masters(tensor, groups[group], [names[p] for p in parameters], fragments)
    elif hasattr(optimizer, "single_partition_of_fp32_groups"):  # stages 1 and 2
        yield from _slices(optimizer.single_partition_of_fp32_groups, optimizer.bit16_groups, groups, names)
    elif hasattr(optimizer, "fp32_groups_flat_partition"):  # stage 1 in bf16 with sums in fp32
        yield from _slices(optimizer.fp32_groups_flat_partition, optimizer.bf16_groups, groups, names)
    elif hasattr(optimizer, "fp32_groups_flat"):  # half precision without ZeRO, with DeepSpeed's own fused Adam
        for tensor, parameters, group in zip(optimizer.fp32_groups_flat, optimizer.fp16_groups, groups, strict=True):
            yield Masters(tensor, group, [names[p] for p in parameters], list(_end_to_end(parameters, names)))
    else:
        # Half precision without ZeRO has whole masters beside the parameters; in fp32 the parameters are the masters.
        masters = getattr(optimizer, "fp32_groups", [group["params"] for group in groups])
        models = getattr(optimizer, "fp16_groups", masters)
        for tensors, parameters, group in zip(masters, models, groups, strict=True):
            for tensor, parameter in zip(tensors, parameters, strict=True):
                name = names[parameter]
                yield Masters(tensor, group, [name], [Fragment(name, 0, 0, tensor.numel())])


def _shares(parameters: Iterable[Any], names: Any, rank: int) -> Iterator[Fragment]:
    start = 0
    for parameter in parameters:
        share = parameter.partition_numel()
        length = min(max(parameter.ds_numel - rank * share, 0), share)
        if length:
            yield Fragment(names[parameter], start, rank * share, length)
        start += share


def _slices(flats: Any, parameter_groups: Any, groups: Any, names: Any) -> Iterator[Masters]:
    for tensor, parameters, group in zip(flats, parameter_groups, groups, strict=True):
        fragments = []
        for parameter in parameters:
            mapping = parameter._hp_mapping  # None where this rank has none of it
            if mapping is not None:
                master, model = mapping.hp_fragment_address, mapping.lp_fragment_address
                fragments.append(Fragment(names[parameter], master.start, model.start, master.numel))
        yield Masters(tensor, group, [names[p] for p in parameters], fragments)


def _end_to_end(parameters: Iterable[Any], names: Any) -> Iterator[Fragment]:
    start = 0
    for parameter in parameters:
        yield Fragment(names[parameter], start, 0, parameter.numel())
        start += parameter.numel()


@torch.no_grad()
def bring_masters_to_model(engine: DeepSpeedEngine) -> None:
    """Set the parameters that an engine computes with from their masters; every rank must call."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):  # stage 3
        for number, master in enumerate(optimizer.fp32_partitioned_groups_flat):
            flat, parts = optimizer.fp16_partitioned_groups_flat[number], optimizer.fp16_partitioned_groups[number]
            flat.data.copy_(master.data)
            for part, new in zip(parts, optimizer.unflatten(flat, parts), strict=True):
                part.data = new.data
        optimizer.checkpoint_event_epilogue()  # gathers the small parameters that stay whole
    elif hasattr(optimizer, "update_lp_params"):  # stages 1 and 2
        optimizer.update_lp_params()
    elif optimizer is not engine.basic_optimizer:  # half precision without ZeRO
        parameters = dict(engine.module.named_parameters())
        for masters in masters_of(engine):
            for fragment in masters.fragments:
                stretch = masters.tensor.view(-1).narrow(0, fragment.start, fragment.length)
                parameters[fragment.name].view(-1).narrow(0, fragment.offset, fragment.length).copy_(stretch)
