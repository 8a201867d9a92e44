"""What DeepSpeed's flat tensors hold of each parameter, by ZeRO stage: told to our LAMB once the engine is built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch.distributed as dist
from deepspeed.runtime.engine import DeepSpeedEngine
from torch import Tensor, nn

from pretrain.engine.lamb import Lamb, Layout, Piece, cut, whole


def describe_partitions(engine: DeepSpeedEngine, lamb: Lamb) -> None:
    """Tell a LAMB what the tensors that it is given by an engine hold.

    Args:
        engine: built around `lamb`.
        lamb: the client optimizer.
    """
    for tensor, layout in _layouts(engine, lamb):
        lamb.describe(tensor, layout)


def _layouts(engine: DeepSpeedEngine, lamb: Lamb) -> Iterator[tuple[Tensor, Layout]]:
    optimizer, names = engine.optimizer, engine.param_names
    process_group = engine.seq_data_parallel_group
    rank = dist.get_rank(process_group)
    if optimizer is lamb:
        for group in lamb.param_groups:
            yield from ((parameter, whole(names[parameter], parameter)) for parameter in group["params"])
    elif hasattr(optimizer, "fp32_partitioned_groups_flat"):  # stage 3
        for tensor, parameters in zip(optimizer.fp32_partitioned_groups_flat, optimizer.fp16_groups, strict=True):
            yield tensor, Layout([names[p] for p in parameters], list(_stage_3_pieces(parameters, rank)), process_group)
    elif hasattr(optimizer, "single_partition_of_fp32_groups"):  # stages 1 and 2
        flats, groups = optimizer.single_partition_of_fp32_groups, optimizer.round_robin_bit16_groups
        yield from _slices(flats, groups, engine, rank)
    elif hasattr(optimizer, "fp32_groups_flat_partition"):  # stage 1 in bf16 with sums in fp32
        yield from _slices(optimizer.fp32_groups_flat_partition, optimizer.bf16_groups, engine, rank)
    else:  # bf16 without ZeRO: whole masters
        for masters, parameters in zip(optimizer.fp32_groups, optimizer.fp16_groups, strict=True):
            yield from ((master, whole(names[p], master)) for master, p in zip(masters, parameters, strict=True))


def _slices(
    flats: Sequence[Tensor], groups: Sequence[Sequence[nn.Parameter]], engine: DeepSpeedEngine, rank: int
) -> Iterator[tuple[Tensor, Layout]]:
    """Yield the layouts of slices of one length each: rank r has the r-th of its group's parameters end to end."""
    for flat, parameters in zip(flats, groups, strict=True):
        pieces = cut([parameter.numel() for parameter in parameters], rank * flat.numel(), flat.numel())
        yield flat, Layout([engine.param_names[p] for p in parameters], pieces, engine.seq_data_parallel_group)


def _stage_3_pieces(parameters: Iterable[Any], rank: int) -> Iterator[Piece]:
    """Yield the pieces of stage 3, which gives every rank the same share of each parameter, padded at the end."""
    start = 0
    for number, parameter in enumerate(parameters):
        share = parameter.partition_numel()
        length = min(max(parameter.ds_numel - rank * share, 0), share)
        if length:
            yield Piece(number, start, length)
        start += share
