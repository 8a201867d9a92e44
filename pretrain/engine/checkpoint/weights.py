"""The fp32 master weights of a checkpoint, whatever ZeRO stage and precision wrote it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from torch import Tensor, nn

from pretrain.engine.checkpoint.folder import Checkpoint
from pretrain.engine.checkpoint.pickles import load_pickle, only_safe_pickles
from pretrain.engine.ds_config import precision, zero_stage
from pretrain.engine.optim import named_groups

BF16_FILE = "bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"
BF16_KEY = "single_partition_of_fp32_groups"
MODEL_STATES_FILE = "mp_rank_00_model_states.pt"
"""DeepSpeed's file of the weights, on stages 0 to 2."""


def load_fp32_weights(checkpoint: Checkpoint, model: nn.Module) -> dict[str, Tensor]:
    """Gather the fp32 master weights of a checkpoint of any ZeRO stage, on one process, without a GPU.

    Args:
        checkpoint: of a run of this project.
        model: of the same shape; names the parameters where the files do not.

    Returns:
        float32 tensors by the model's state dict names; tied ones are the same tensor.
    """
    config, path = checkpoint.ds_config, checkpoint.path
    if _is_bf16_optimizer(path):
        return _with_tied_names(_bf16_optimizer_masters(path), model)
    if zero_stage(config) > 0:
        # Without the lines of its progress.
        with only_safe_pickles(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            state = get_fp32_state_dict_from_zero_checkpoint(str(path.parent), tag=checkpoint.tag)
        return {name: tensor.float() for name, tensor in state.items()}
    saved = _load(path / MODEL_STATES_FILE)
    if precision(config) == "fp32":
        return dict(saved["module"])
    return _with_tied_names(_half_precision_masters(saved["optimizer"], model), model)


def _load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = load_pickle(path, mmap=True)
    return loaded


def _bf16_optimizer_masters(path: Path) -> dict[str, Tensor]:
    """Gather the masters of DeepSpeed's BF16_Optimizer (stage 1, fp32 accumulation), whose files zero_to_fp32 refuses.

    Each rank's file holds its slice of each group's flat tensor: the group's parameters end to end, padded behind.
    """
    num_ranks = len(list(path.glob("bf16_zero_pp_rank_*_optim_states.pt")))
    slices = [_load(path / BF16_FILE.format(rank))["optimizer_state_dict"][BF16_KEY] for rank in range(num_ranks)]
    masters: dict[str, Tensor] = {}
    for group, shapes in enumerate(_load(path / MODEL_STATES_FILE)["param_shapes"]):
        masters |= _cut(torch.cat([rank[group].detach() for rank in slices]), list(shapes.items()))
    return masters


def _is_bf16_optimizer(path: Path) -> bool:
    first = path / BF16_FILE.format(0)
    return first.is_file() and "zero_stage" not in _load(first)["optimizer_state_dict"]


def _half_precision_masters(saved: Mapping[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Name the masters of DeepSpeed's half-precision optimizers without ZeRO, which list them by group alone."""
    masters: dict[str, Tensor] = {}
    for number, group in enumerate(named_groups(model)):
        shapes = [(name, parameter.shape) for name, parameter in group]
        if "fp32_groups_flat" in saved:  # with DeepSpeed's own fused Adam
            masters |= _cut(saved["fp32_groups_flat"][number].detach(), shapes)
        else:
            names = [name for name, _ in shapes]
            masters |= {name: master.detach() for name, master in zip(names, saved["fp32_groups"][number], strict=True)}
    return masters


def _cut(flat: Tensor, shapes: Sequence[tuple[str, torch.Size]]) -> dict[str, Tensor]:
    """Cut parameters that stand end to end out of a flat tensor; it may be padded behind."""
    parameters, start = {}, 0
    for name, shape in shapes:
        parameters[name] = flat[start : start + shape.numel()].view(shape)
        start += shape.numel()
    return parameters


def _with_tied_names(masters: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Add the other names of tied parameters, which optimizers know by the first name alone."""
    first_name = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        name: masters[first_name[id(tensor)]]
        for name, tensor in model.state_dict(keep_vars=True).items()
        if id(tensor) in first_name
    }
