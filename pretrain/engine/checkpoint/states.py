"""What DeepSpeed's files hold of each parameter, by its name, whatever ZeRO stage, precision and ranks wrote them.

Every layout is the same at heart: a tensor of fp32 masters, optimizer states of its length, and which elements of which
parameter stand where. Nothing is copied here: the files are mapped, and what is returned are views.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pretrain.engine.checkpoint.folder import Checkpoint
from pretrain.engine.checkpoint.pickles import load_pickle
from pretrain.engine.ds_config import zero_stage
from pretrain.engine.optim import named_groups, named_muon_groups
from pretrain.engine.partitions import end_to_end, shares, slices
from runtime.command import ConfigError

MASTER = "fp32"
"""DeepSpeed's name of a parameter's fp32 weights, beside its optimizer's names of the states."""
MODEL_STATES = "mp_rank_00_model_states.pt"
STAGE_3_MODEL_STATES = "zero_pp_rank_0_mp_rank_00_model_states.pt"
LOSS_SCALE_KEYS = ("loss_scaler", "dynamic_loss_scale", "overflow")

OF_WHOLE_MATRICES = ("row_var", "col_var")
"""Adafactor's states that are not element for element; without ZeRO alone."""


@dataclass
class ParameterStates:
    """All that a checkpoint holds of one parameter."""

    shape: torch.Size
    parts: dict[str, list[Tensor]] = field(default_factory=dict)
    """By state: its elements end to end, each part 1-D; `fp32` are the masters."""
    others: dict[str, Any] = field(default_factory=dict)
    """States that are not element for element, as `step`."""

    def tensor(self, key: str) -> Tensor:
        """Return a copy of a state in the parameter's shape, float32."""
        return torch.cat(self.parts[key]).float().view(self.shape)

    def num_bytes(self) -> int:
        """Return the bytes of all states in float32."""
        return 4 * self.shape.numel() * len(self.parts)


@dataclass(frozen=True)
class CheckpointStates:
    """All that a checkpoint holds."""

    parameters: dict[str, ParameterStates]
    """By name; a tied parameter once, under its first name."""
    model_states: dict[str, Any]
    """Counters, schedule and client state: DeepSpeed's file of the model without the model."""
    param_groups: list[dict[str, Any]]
    loss_scale: dict[str, Any]


def why_not_by_name(ds_config: Mapping[str, Any]) -> str | None:
    """Say why states cannot be taken from or brought to an engine by parameter; None where they can.

    Args:
        ds_config: resolved.
    """
    zero = ds_config.get("zero_optimization", {})
    for key in ("offload_optimizer", "offload_param"):
        if zero.get(key, {}).get("device") == "nvme":
            return f'zero_optimization.{key}.device = "nvme": the states stand in swap files of their own'
    if str(ds_config["optimizer"]["type"]).lower() == "muon" and zero_stage(ds_config) in (1, 2):
        return "Muon at ZeRO stage 1 or 2: its momentum stands in an order of its own"
    return None


def read_parameters(
    checkpoint: Checkpoint, *, only_masters: bool = False
) -> tuple[dict[str, ParameterStates], dict[str, Any], dict[str, Any]]:
    """Find the masters, and the optimizer's states unless only masters are wanted.

    Args:
        checkpoint: of a run of this project.
        only_masters: leave the optimizer's states out, which may stand in an order that is not known.

    Returns:
        By name; the optimizer's saved state of the first rank; the saved state of the model.

    Raises:
        ConfigError: a file is missing, damaged or not DeepSpeed's.
    """
    stage = zero_stage(checkpoint.ds_config)
    model_states: dict[str, Any] = load_pickle(
        checkpoint.path / (STAGE_3_MODEL_STATES if stage == 3 else MODEL_STATES), mmap=True
    )
    read = _stage_3 if stage == 3 else _stages_1_and_2 if stage else _without_zero
    parameters, optimizer = read(checkpoint, model_states, only_masters)
    for name, states in parameters.items():
        for key, parts in states.parts.items():
            found = sum(part.numel() for part in parts)
            if found != states.shape.numel():
                raise ConfigError(f"{checkpoint.path}: {key} of {name} has {found} of {states.shape.numel()} elements")
    return parameters, optimizer, model_states


def read_states(checkpoint: Checkpoint) -> CheckpointStates:
    """Find every parameter's states in a checkpoint's files.

    Args:
        checkpoint: of a run of this project.

    Raises:
        ConfigError: a file is missing, damaged or not DeepSpeed's; states that `why_not_by_name` names.
    """
    reason = why_not_by_name(checkpoint.ds_config)
    if reason is not None:
        raise ConfigError(f"{checkpoint.path}: {reason}, and cannot be converted; training.init_from takes the weights")
    parameters, optimizer, model_states = read_parameters(checkpoint)
    kept = {key: value for key, value in model_states.items() if key not in ("module", "optimizer", "param_shapes")}
    return CheckpointStates(
        parameters,
        kept,
        _inner_state(optimizer)["param_groups"],
        {key: optimizer[key] for key in LOSS_SCALE_KEYS if key in optimizer},
    )


def _add(
    states: ParameterStates,
    master: Tensor,
    of_optimizer: Mapping[str, Any],
    start: int = 0,
    length: int | None = None,
    padding: int = 0,
) -> None:
    """Add a parameter's next elements: a stretch of a tensor of masters, and of the states that belong to it.

    Stages 1 and 2 save the masters without the padding behind them, and the states with it.
    """
    end = None if length is None else start + length
    for key, value in {MASTER: master, **of_optimizer}.items():
        if isinstance(value, Tensor) and value.ndim and key not in OF_WHOLE_MATRICES:
            if value.numel() not in (master.numel(), master.numel() + padding):
                raise ConfigError(f"the optimizer's {key} has {value.numel()} elements, its weights {master.numel()}")
            states.parts.setdefault(key, []).append(value.detach().view(-1)[start:end])
        elif value is not None:
            states.others[key] = value


def _inner_state(optimizer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return torch's state dict within DeepSpeed's; without a wrapper they are one."""
    for key in ("base_optimizer_state", "optimizer_state_dict"):
        if key in optimizer:
            inner: Mapping[str, Any] = optimizer[key]
            return inner
    return optimizer


def _shapes(model_states: Mapping[str, Any]) -> dict[str, ParameterStates]:
    return {name: ParameterStates(shape) for group in model_states["param_shapes"] for name, shape in group.items()}


def _optimizer_files(checkpoint: Checkpoint) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield every rank's state of the optimizer, rank 0 first."""
    for rank in range(checkpoint.world_size):
        found = list(checkpoint.path.glob(f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"))
        if len(found) != 1:
            raise ConfigError(f"{checkpoint.path}: {len(found)} files of the optimizer's states of rank {rank}")
        yield rank, load_pickle(found[0], mmap=True)["optimizer_state_dict"]


def _stages_1_and_2(
    checkpoint: Checkpoint, model_states: Mapping[str, Any], only_masters: bool
) -> tuple[dict[str, ParameterStates], dict[str, Any]]:
    """Read slices of groups, BF16_Optimizer's as well."""
    parameters = _shapes(model_states)
    first: dict[str, Any] = {}
    for rank, saved in _optimizer_files(checkpoint):
        first = first or saved
        of_groups = {} if only_masters else _inner_state(saved)["state"]
        for number, shapes in enumerate(model_states["param_shapes"]):
            paddings = saved.get("param_alignment_paddings", {number: repeat(0)})[number]
            placed = end_to_end([(name, shape.numel()) for name, shape in shapes.items()], paddings)
            size = first["single_partition_of_fp32_groups"][number].numel()  # only the last rank's is cut shorter
            master, padding = saved["single_partition_of_fp32_groups"][number], saved["group_paddings"][number]
            for at in slices(placed, rank, size):
                _add(parameters[at.name], master, of_groups.get(number, {}), at.start, at.length, padding)
    return parameters, first


def _stage_3(
    checkpoint: Checkpoint, model_states: Mapping[str, Any], only_masters: bool
) -> tuple[dict[str, ParameterStates], dict[str, Any]]:
    """Read shares of parameters."""
    parameters = _shapes(model_states)
    first: dict[str, Any] = {}
    for rank, saved in _optimizer_files(checkpoint):
        first = first or saved
        of_groups = {} if only_masters else _inner_state(saved)["state"]
        for number, shapes in enumerate(model_states["param_shapes"]):
            sizes = {name: shape.numel() for name, shape in shapes.items()}
            shared = [(name, numel, math.ceil(numel / checkpoint.world_size)) for name, numel in sizes.items()]
            master = saved["fp32_flat_groups"][number]
            for at in shares(shared, rank):
                _add(parameters[at.name], master, of_groups.get(number, {}), at.start, at.length)
    return parameters, first


class _SavedModel:
    """The parameters of a saved model, as `named_parameters` of the model gave them."""

    def __init__(self, module: Mapping[str, Tensor], buffers: Iterable[str]) -> None:
        self._module, self._buffers = module, set(buffers)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        seen = set()
        for name, tensor in self._module.items():
            if name not in self._buffers and tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                yield name, nn.Parameter(tensor, requires_grad=False)


def _without_zero(
    checkpoint: Checkpoint, model_states: Mapping[str, Any], only_masters: bool
) -> tuple[dict[str, ParameterStates], dict[str, Any]]:
    """Read whole parameters, which the optimizer's state numbers in the order of its groups."""
    optimizer = model_states["optimizer"]
    is_muon = str(checkpoint.ds_config["optimizer"]["type"]).lower() == "muon"
    saved_model = _SavedModel(model_states["module"], model_states["buffer_names"])
    groups = [group for group in (named_muon_groups if is_muon else named_groups)(saved_model) if group]
    if is_muon:  # it sorts its own
        groups[0].sort(key=lambda item: item[1].size(), reverse=True)
    parameters = {name: ParameterStates(tensor.shape) for group in groups for name, tensor in group}
    states, number = {} if only_masters else _inner_state(optimizer)["state"], 0
    for index, group in enumerate(groups):
        if "fp32_groups_flat" in optimizer:  # half precision with DeepSpeed's own fused Adam: one tensor a group
            master, start = optimizer["fp32_groups_flat"][index], 0
            for name, tensor in group:
                _add(parameters[name], master, states.get(index, {}), start, tensor.numel())
                start += tensor.numel()
            continue
        masters = optimizer["fp32_groups"][index] if "fp32_groups" in optimizer else [tensor for _, tensor in group]
        for (name, _), master in zip(group, masters, strict=True):
            _add(parameters[name], master, states.get(number, {}))
            number += 1
    return parameters, optimizer


def states_folder(folder: Path, name: str) -> Path:
    """Return a parameter's folder in a universal checkpoint."""
    return folder / "zero" / name
