"""Go on from a checkpoint of another world size, ZeRO stage or precision: by way of a universal checkpoint beside it.

The ranks write it together, each a share of the parameters, and then each reads its own stretch of every parameter.
Masters and moments are the saved numbers, bit for bit; hyperparameters are those of this start's JSON.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.engine import DeepSpeedEngine
from torch import Tensor

from pretrain.engine.checkpoint.folder import CLIENT_STATE_KEY, Checkpoint
from pretrain.engine.checkpoint.pickles import load_pickle
from pretrain.engine.checkpoint.states import (
    LOSS_SCALE_KEYS,
    MASTER,
    MODEL_STATES,
    read_states,
    states_folder,
    why_not_by_name,
)
from pretrain.engine.checkpoint.universal import (
    begin,
    check_room,
    describe_cost,
    finish,
    is_of,
    partial_of,
    remove_temporary,
    universal_beside,
    write_parameters,
)
from pretrain.engine.ds_config import precision, zero_stage
from pretrain.engine.lamb import Lamb
from pretrain.engine.partitions import Masters, bring_masters_to_model, masters_of
from runtime.command import ConfigError

logger = logging.getLogger(__name__)


def _zero(key: str, default: object) -> Callable[[Mapping[str, Any]], object]:
    return lambda config: config.get("zero_optimization", {}).get(key, default)


def _device(key: str) -> Callable[[Mapping[str, Any]], object]:
    return lambda config: config.get("zero_optimization", {}).get(key, {}).get("device", "none")


WORLD_SIZE = "world size"
LAYOUT: dict[str, Callable[[Mapping[str, Any]], object]] = {
    "stage": zero_stage,
    "precision": precision,
    "data_types.grad_accum_dtype": lambda config: config.get("data_types", {}).get("grad_accum_dtype", "as precision"),
    "offload_optimizer": _device("offload_optimizer"),
    "offload_param": _device("offload_param"),
    "sub_group_size": _zero("sub_group_size", "default"),
    "round_robin_gradients": _zero("round_robin_gradients", False),
    "torch_adam": lambda config: config.get("optimizer", {}).get("params", {}).get("torch_adam", False),
}
"""What decides which files DeepSpeed writes and what lies where in them, beside the number of ranks."""


def layout_changes(
    checkpoint: Checkpoint, ds_config: Mapping[str, Any], world_size: int
) -> dict[str, tuple[object, object]]:
    """Return what differs between a checkpoint and a start that decides what lies where in DeepSpeed's files.

    Args:
        checkpoint: to go on from.
        ds_config: resolved, of this start.
        world_size: ranks of this start.

    Returns:
        By name: before and now.
    """
    before_and_now = {WORLD_SIZE: (checkpoint.world_size, world_size)}
    before_and_now |= {name: (read(checkpoint.ds_config), read(ds_config)) for name, read in LAYOUT.items()}  # type: ignore[misc]
    return {name: pair for name, pair in before_and_now.items() if pair[0] != pair[1]}


def needs_conversion(changes: Mapping[str, object], ds_config: Mapping[str, Any]) -> bool:
    """Say whether DeepSpeed cannot load its files itself; without ZeRO they are the same for any number of ranks."""
    return bool(set(changes) - ({WORLD_SIZE} if zero_stage(ds_config) == 0 else set()))


def describe_changes(changes: Mapping[str, tuple[object, object]]) -> str:
    """Return the changes in one line."""
    return ", ".join(f"{name} {before} → {now}" for name, (before, now) in changes.items())


def check_convertible(checkpoint: Checkpoint, ds_config: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Refuse a change that no conversion can follow.

    Raises:
        ConfigError: names it, and what to do.
    """
    for config, side in ((checkpoint.ds_config, "saved with"), (ds_config, "this start has")):
        reason = why_not_by_name(config)
        if reason is not None:
            raise ConfigError(
                f"{checkpoint.path}: {describe_changes(changes)}: {side} {reason}: resume with the same, "
                "or start a new run with training.init_from (weights alone)"
            )


def load_resized(engine: DeepSpeedEngine, checkpoint: Checkpoint) -> None:
    """Load a checkpoint of other settings: weights, optimizer, counters and schedule; every rank must call.

    Args:
        engine: just built; its JSON's hyperparameters stay.
        checkpoint: to go on from.

    Raises:
        ConfigError: too little room on the disk, a file that is damaged; on every rank.
        RuntimeError: what went wrong on another rank.
    """
    folder = _convert_together(checkpoint)
    optimizer = engine.optimizer
    if hasattr(optimizer, "checkpoint_event_prologue"):
        optimizer.checkpoint_event_prologue()
    _together(lambda: _fill(engine, folder))
    bring_masters_to_model(engine)
    _together(lambda: _restore_counters(engine, checkpoint, folder))
    dist.barrier()
    if dist.get_rank() == 0:
        remove_temporary(folder)


def _convert_together(checkpoint: Checkpoint) -> Path:
    """Write the universal form of a checkpoint beside it, unless it is there; every rank must call."""
    folder, rank, world_size = universal_beside(checkpoint), dist.get_rank(), dist.get_world_size()
    is_there: list[bool] = [rank == 0 and is_of(folder, checkpoint)]
    dist.broadcast_object_list(is_there, src=0)
    if is_there[0]:
        return folder
    states = _together(lambda: read_states(checkpoint))
    began = time.monotonic()

    def prepare() -> None:
        if rank == 0:
            cost = describe_cost(states, folder.parent, world_size)
            logger.info("converting %s for other settings: %s", checkpoint.path, cost)
            check_room(states, folder.parent)
            begin(folder)

    _together(prepare)
    _together(lambda: write_parameters(states, partial_of(folder), rank, world_size))
    _together(lambda: finish(states, checkpoint, folder, is_temporary=True) if rank == 0 else None)
    if rank == 0:
        logger.info("converted in %.1f s: %s", time.monotonic() - began, folder)
    return folder


def _together(act: Callable[[], Any]) -> Any:
    """Act on every rank, and fail on all of them where one does: else the others would wait for it for ever."""
    result, own = None, None
    try:
        result = act()
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks must hear of it
        own = error
    faults: list[Any] = [None] * dist.get_world_size()
    fault = None if own is None else (isinstance(own, ConfigError), f"rank {dist.get_rank()}: {own}")
    dist.all_gather_object(faults, fault)
    if own is not None:
        raise own
    told = [fault for fault in faults if fault is not None]
    if told:
        is_of_user, text = told[0]
        raise ConfigError(text) if is_of_user else RuntimeError(text)
    return result


@torch.no_grad()
def _fill(engine: DeepSpeedEngine, folder: Path) -> None:
    """Set this rank's masters and optimizer states from a universal checkpoint."""
    inner = engine.basic_optimizer
    for masters in masters_of(engine):
        state = inner.state[masters.tensor]
        # A rank may have no parameter of a group, only padding; its steps must still be the others'.
        reference = states_folder(folder, masters.names[0])
        for file in sorted(reference.glob("*.pt")):
            saved = load_pickle(file, mmap=True)
            if not (isinstance(saved, dict) and "param" in saved):
                state[file.stem] = _like_its_own(file.stem, saved, masters, inner)
            elif file.stem == MASTER:
                _copy(masters.tensor, masters, folder, file.name)
            else:
                if not isinstance(state.get(file.stem), Tensor):
                    state[file.stem] = torch.zeros_like(masters.tensor, requires_grad=False)
                _copy(state[file.stem], masters, folder, file.name)


def _copy(tensor: Tensor, masters: Masters, folder: Path, file_name: str) -> None:
    for fragment in masters.fragments:
        whole = load_pickle(states_folder(folder, fragment.name) / file_name, mmap=True)["param"].view(-1)
        stretch = whole.narrow(0, fragment.offset, fragment.length)
        tensor.view(-1).narrow(0, fragment.start, fragment.length).copy_(stretch)


def _like_its_own(key: str, saved: Any, masters: Masters, inner: torch.optim.Optimizer) -> Any:
    """Return a state that is not element for element as this optimizer keeps it; saved by another kind, perhaps."""
    group, device = masters.group, masters.tensor.device
    if key == "step":
        if isinstance(inner, Lamb) or "foreach" in group:  # ours and torch's; DeepSpeed's own count in integers
            is_on_device = isinstance(inner, Lamb) or group.get("fused") or group.get("capturable")
            return torch.tensor(float(saved), device=device if is_on_device else "cpu")
        return int(saved)
    return saved.to(device) if isinstance(saved, Tensor) and saved.ndim else saved


def _restore_counters(engine: DeepSpeedEngine, checkpoint: Checkpoint, folder: Path) -> None:
    saved = load_pickle(folder / MODEL_STATES)
    if saved.get(CLIENT_STATE_KEY) != asdict(checkpoint.state):
        raise RuntimeError(f"{checkpoint.path}: its files belong to another step")
    engine.global_steps = saved["global_steps"]
    engine.global_samples = saved["global_samples"]
    engine.skipped_steps = saved["skipped_steps"]
    engine.loaded_checkpoint_dp_world_size = saved["dp_world_size"]
    engine.loaded_checkpoint_mp_world_size = saved["mp_world_size"]
    if engine.lr_scheduler is not None:
        if saved["lr_scheduler"] is None:
            engine.lr_scheduler.step(checkpoint.state.step)
        else:
            engine.lr_scheduler.load_state_dict(saved["lr_scheduler"])
    if engine.fp16_enabled() and precision(checkpoint.ds_config) == "fp16":
        # From another precision the scale begins as the JSON says.
        scale = load_pickle(folder / "zero" / "optimizer_state.pt")
        for key in LOSS_SCALE_KEYS:
            setattr(engine.optimizer, key, scale[key])
