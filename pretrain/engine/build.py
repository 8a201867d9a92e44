"""The one call of `deepspeed.initialize`, and what is done to an engine around it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from pretrain.engine.build_lock import named_build_locks
from pretrain.engine.ds_config import BATCH_KEYS, BatchSizes
from pretrain.engine.lamb import Lamb, Layout, Piece
from pretrain.engine.optim import make_optimizer, parameter_groups
from pretrain.engine.partitions import masters_of
from pretrain.engine.schedules import SCHEDULES, BudgetLR
from pretrain.engine.shared_memory import init_deepspeed_distributed

# DeepSpeed calls collectives by names that torch has renamed; nothing that a user can change.
warnings.filterwarnings("ignore", message=r".*torch\.distributed\..* is deprecated", category=FutureWarning)


def build_engine(model: nn.Module, config: Mapping[str, Any]) -> DeepSpeedEngine:
    """Wrap a model in DeepSpeed; every rank must call, inside a process group.

    Args:
        model: in fp32 on the CPU, the same on every rank. Not built under `zero.Init`, which fails on a new BERT.
        config: a resolved DeepSpeed JSON.

    Returns:
        The engine, its schedule at step 0: the first update uses lr(0), the second lr(1).
    """
    optimizer, config = _take_optimizer(model, config)
    schedule, config = _take_schedule(config)
    with named_build_locks(), _no_step_while_building():
        init_deepspeed_distributed()
        engine, _, _, scheduler = deepspeed.initialize(
            model=model,
            model_parameters=None if optimizer else parameter_groups(model),
            optimizer=optimizer,
            lr_scheduler=schedule,
            config=dict(config),
        )
    if isinstance(optimizer, Lamb):
        _describe_partitions(engine, optimizer)
    if schedule is None and hasattr(scheduler, "warmup_num_steps"):
        # DeepSpeed makes two steps of a warmup of one, without a word.
        scheduler.warmup_num_steps = config["scheduler"]["params"]["warmup_num_steps"]
        # DeepSpeed's warmup schedules begin at iteration -1 and use lr 0 for the first two updates; the formula has
        # lr(0) for the first alone.
        scheduler.step()
    return engine


def _describe_partitions(engine: DeepSpeedEngine, lamb: Lamb) -> None:
    """Tell a LAMB what the tensors that an engine gives it hold of each parameter."""
    process_group = engine.seq_data_parallel_group if engine.zero_optimization_stage() else None
    for masters in masters_of(engine):
        numbers = {name: number for number, name in enumerate(masters.names)}
        pieces = [Piece(numbers[at.name], at.start, at.length) for at in masters.fragments]
        lamb.describe(masters.tensor, Layout(masters.names, pieces, process_group))


def _no_step_while_building() -> Any:
    """Keep DeepSpeed's optimizer of bf16 without ZeRO from a step on gradients of 0, made to have the moments.

    It would move the weights by their decay, and count as a step in the bias correction. Moments come with the first
    real step as well.
    """
    return mock.patch.object(FP16_UnfusedOptimizer, "initialize_optimizer_states", return_value=None)


def _take_optimizer(
    model: nn.Module, config: Mapping[str, Any]
) -> tuple[torch.optim.Optimizer | None, Mapping[str, Any]]:
    """Return the optimizer, where this project makes it, and the JSON without it."""
    settings = config["optimizer"]
    optimizer = make_optimizer(model, settings["type"], settings["params"])
    if optimizer is None:
        return None, config
    rest = {key: value for key, value in config.items() if key != "optimizer"}
    rest |= {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    return optimizer, rest


def _take_schedule(config: Mapping[str, Any]) -> tuple[Callable[[Any], Any] | None, Mapping[str, Any]]:
    """Return the maker of the schedule, where it is one of this project's, and the JSON without it."""
    settings = config.get("scheduler", {"type": None})
    kind = SCHEDULES.get(settings["type"])
    if kind is None:
        return None, config
    extra: dict[str, Any] = {"clock": clock_of_rank_zero()} if kind is BudgetLR else {}
    rest = {key: value for key, value in config.items() if key != "scheduler"}
    return lambda optimizer: kind(optimizer, **settings["params"], **extra), rest


def clock_of_rank_zero() -> Callable[[], float]:
    """Return a clock whose every call gives all ranks rank 0's seconds; all must call it, inside a process group.

    Over gloo, so that nobody waits for a GPU: well below a millisecond a call.
    """
    if dist.get_world_size() == 1:
        return time.monotonic
    group = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")

    def seconds() -> float:
        cell = torch.tensor([time.monotonic()], dtype=torch.float64)
        dist.broadcast(cell, src=0, group=group)
        return float(cell)

    return seconds


def budget_is_over(engine: DeepSpeedEngine) -> bool:
    """Say whether the wall-clock budget of a BudgetLR is spent, as of the last update; the same on every rank."""
    return bool(getattr(engine.lr_scheduler, "is_over", False))


def batch_sizes_of(engine: DeepSpeedEngine) -> BatchSizes:
    """Read the batch sizes back from the engine, their only home once it exists."""
    return BatchSizes(*(int(getattr(engine, key)()) for key in BATCH_KEYS))


def describe_precision(engine: DeepSpeedEngine) -> str:
    """Say in which types the engine computes and adds up gradients."""
    model_dtype, accumulation_dtype = engine.get_data_types()
    names = [str(dtype).removeprefix("torch.") for dtype in (model_dtype, accumulation_dtype)]
    autocast = ""
    if engine.torch_autocast_enabled():
        autocast = f", operators by autocast in {str(engine.torch_autocast_dtype()).removeprefix('torch.')}"
    stage = engine.zero_optimization_stage()
    return f"parameters {names[0]}{autocast}, gradients added up in {names[1]}, ZeRO stage {stage}"


def take_step(engine: DeepSpeedEngine) -> Tensor | float | None:
    """Call `engine.step()` after a micro-step's backward; every rank must call.

    Returns:
        At the end of a step the gradient's L2 norm over all ranks, before clipping; None between.
    """
    at_boundary = engine.is_gradient_accumulation_boundary()
    # fp32 without ZeRO: DeepSpeed does not keep the norm, and the gradients are gone after the step.
    is_plain = engine.optimizer is engine.basic_optimizer
    norm = None
    if at_boundary and is_plain:
        norm = get_total_norm([p.grad for p in engine.module.parameters() if p.grad is not None])
    engine.step()
    if not at_boundary:
        return None
    return norm if is_plain else engine.get_global_grad_norm()
