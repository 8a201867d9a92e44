"""Where an engine keeps the fp32 masters of its parameters, and how they get back to what it computes with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
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
    groups, rank = engine.basic_optimizer.param_groups, dist.get_rank(engine.seq_data_parallel_group)
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):  # stage 3
        for number, parameters in enumerate(optimizer.fp16_groups):
            tensor, group = optimizer.fp32_partitioned_groups_flat[number], optimizer.sub_group_to_group_id[number]
            shared = [(names[p], p.ds_numel, p.partition_numel()) for p in parameters]
            yield Masters(tensor, groups[group], [name for name, _, _ in shared], list(shares(shared, rank)))
    elif hasattr(optimizer, "single_partition_of_fp32_groups"):  # stages 1 and 2
        ordered = optimizer.round_robin_bit16_groups
        for number, tensor in enumerate(optimizer.single_partition_of_fp32_groups):
            paddings = optimizer.round_robin_bit16_padding[number]
            placed = list(end_to_end([(names[p], p.numel()) for p in ordered[number]], paddings))
            yield Masters(tensor, groups[number], [n for n, _, _ in placed], list(slices(placed, rank, tensor.numel())))
    elif hasattr(optimizer, "fp32_groups_flat_partition"):  # stage 1 in bf16 with sums in fp32
        for tensor, parameters, group in zip(
            optimizer.fp32_groups_flat_partition, optimizer.bf16_groups, groups, strict=True
        ):
            placed = list(end_to_end([(names[p], p.numel()) for p in parameters], repeat(0)))
            yield Masters(tensor, group, [n for n, _, _ in placed], list(slices(placed, rank, tensor.numel())))
    else:
        yield from _masters_without_zero(engine)


def _masters_without_zero(engine: DeepSpeedEngine) -> Iterator[Masters]:
    optimizer, names, groups = engine.optimizer, engine.param_names, engine.basic_optimizer.param_groups
    if hasattr(optimizer, "fp32_groups_flat"):  # half precision with DeepSpeed's own fused Adam
        for tensor, parameters, group in zip(optimizer.fp32_groups_flat, optimizer.fp16_groups, groups, strict=True):
            placed = list(end_to_end([(names[p], p.numel()) for p in parameters], repeat(0)))
            yield Masters(tensor, group, [n for n, _, _ in placed], list(slices(placed, 0, tensor.numel())))
        return
    # Half precision has whole masters beside the parameters; in fp32 the parameters are the masters.
    masters = getattr(optimizer, "fp32_groups", [group["params"] for group in groups])
    models = getattr(optimizer, "fp16_groups", masters)
    for tensors, parameters, group in zip(masters, models, groups, strict=True):
        for tensor, parameter in zip(tensors, parameters, strict=True):
            name = names[parameter]
            yield Masters(tensor, group, [name], [Fragment(name, 0, 0, tensor.numel())])


def shares(parameters: Iterable[tuple[str, int, int]], rank: int) -> Iterator[Fragment]:
    """Yield what a rank has on stage 3: the same share of each parameter as the others, the last ones padded behind.

    Args:
        parameters: of a group in order: name, elements, elements of a share.
        rank: which.
    """
    start = 0
    for name, numel, share in parameters:
        length = min(max(numel - rank * share, 0), share)
        if length:
            yield Fragment(name, start, rank * share, length)
        start += share


def slices(parameters: Iterable[tuple[str, int, int]], rank: int, size: int) -> Iterator[Fragment]:
    """Yield what a rank has on stages 1 and 2: the rank-th slice of a group's parameters end to end.

    DeepSpeed's own maps (`_hp_mapping`, `param_slice_mappings`) are those of another order with round_robin_gradients.

    Args:
        parameters: of a group: name, first element in the group, elements.
        rank: which.
        size: elements of a slice.
    """
    for name, first, numel in parameters:
        begin, end = max(first, rank * size), min(first + numel, (rank + 1) * size)
        if begin < end:
            yield Fragment(name, begin - rank * size, begin - first, end - begin)


def end_to_end(parameters: Iterable[tuple[str, int]], paddings: Iterable[int]) -> Iterator[tuple[str, int, int]]:
    """Yield name, first element and elements of parameters that stand end to end.

    Args:
        parameters: name and elements.
        paddings: elements behind each.
    """
    first = 0
    for (name, numel), padding in zip(parameters, paddings, strict=False):
        yield name, first, numel
        first += numel + padding


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
