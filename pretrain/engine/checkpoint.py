"""Checkpoints: DeepSpeed's own files, a list of them that is written last, and the way back to fp32 weights.

A checkpoint is `checkpoints/step_00012000/`: what `engine.save_checkpoint` writes, and `checkpoint.json`, written
when all else is there. `checkpoints/latest` names the newest; it is replaced atomically after that. So a checkpoint
is either whole, or nothing points to it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from torch import Tensor, nn

from pretrain.engine.ds_config import precision, zero_stage
from pretrain.engine.optim import named_groups
from runtime.command import ConfigError
from runtime.dist import barrier
from runtime.files import read_json, sha256_of, write_json, write_text

logger = logging.getLogger(__name__)

CHECKPOINTS_DIR = "checkpoints"
CHECKPOINT_FILE = "checkpoint.json"
LATEST_FILE = "latest"
BF16_FILE = "bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"
BF16_KEY = "single_partition_of_fp32_groups"
MODEL_STATES_FILE = "mp_rank_00_model_states.pt"
"""DeepSpeed's file of the weights, on stages 0 to 2."""
CLIENT_STATE_KEY = "zerobert"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class TrainingState:
    """Where a run stands: all that resuming needs besides the engine. Plain types alone."""

    step: int = 0
    """Optimizer updates done."""
    epoch: int = 0
    consumed: int = 0
    """Pairs consumed of this epoch, all ranks."""
    pairs_seen: int = 0
    tokens_seen: int = 0
    """Global, padding excluded."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    path: Path
    state: TrainingState
    world_size: int
    recipe: dict[str, Any]
    ds_config: dict[str, Any]
    fingerprints: dict[str, str] = field(default_factory=dict)
    """sha256 of the tokenizer and of the shards' manifest."""

    @property
    def tag(self) -> str:
        """DeepSpeed's word for the folder's name."""
        return self.path.name

    def fingerprint(self) -> str:
        """Return the sha256 of checkpoint.json, which stands for the whole."""
        return sha256_of(self.path / CHECKPOINT_FILE)


def tag_of(step: int) -> str:
    """Return the tag of a step, as in step_00012000."""
    return f"step_{step:08d}"


def save_checkpoint(
    engine: DeepSpeedEngine,
    run_dir: Path,
    state: TrainingState,
    *,
    world_size: int,
    recipe: Mapping[str, Any],
    ds_config: Mapping[str, Any],
    fingerprints: Mapping[str, str],
    keep_last: int,
) -> Path:
    """Save the engine and where the run stands; every rank must call.

    Args:
        engine: at the end of a step.
        run_dir: the run's folder, the same on every rank.
        state: after that step.
        world_size: ranks.
        recipe: resolved.
        ds_config: resolved.
        fingerprints: of what the run reads.
        keep_last: older checkpoints beyond so many are removed, once the new one is whole.

    Returns:
        The checkpoint's folder.
    """
    root = run_dir / CHECKPOINTS_DIR
    tag = tag_of(state.step)
    is_rank_zero = torch.distributed.get_rank() == 0
    if is_rank_zero and (root / tag).exists():
        shutil.rmtree(root / tag)  # left by a start that died while saving, or remade after a resume
    barrier()
    engine.save_checkpoint(str(root), tag=tag, client_state={CLIENT_STATE_KEY: asdict(state)}, save_latest=False)
    if is_rank_zero:
        content = {
            "format": "zerobert-checkpoint",
            "version": FORMAT_VERSION,
            "state": asdict(state),
            "world_size": world_size,
            "fingerprints": dict(fingerprints),
            "recipe": dict(recipe),
            "ds_config": dict(ds_config),
            "files": {file.name: file.stat().st_size for file in sorted((root / tag).iterdir())},
        }
        write_json(root / tag / CHECKPOINT_FILE, content)
        write_text(root / LATEST_FILE, tag)
        _remove_older(root, tag, keep_last)
    barrier()
    return root / tag


def _tags(root: Path) -> list[str]:
    """Return the tags of the whole checkpoints, oldest step first."""
    return sorted(path.parent.name for path in root.glob(f"step_{'[0-9]' * 8}/{CHECKPOINT_FILE}"))


def _remove_older(root: Path, saved: str, keep_last: int) -> None:
    up_to_now = [tag for tag in _tags(root) if tag <= saved]
    for path in (root / tag for tag in up_to_now[:-keep_last]):
        # The list goes first: a removal that is cut short leaves a folder that nobody takes for a checkpoint.
        (path / CHECKPOINT_FILE).unlink()
        shutil.rmtree(path)


def find_checkpoint(run_dir: Path, step: int | None = None) -> Checkpoint | None:
    """Find the checkpoint of a run to go on from.

    Args:
        run_dir: a run's folder, or one checkpoint's.
        step: which; None takes `latest`.

    Returns:
        None where the run has none (no step asked for).

    Raises:
        ConfigError: the step is not there, or the checkpoint is not whole.
    """
    if (run_dir / CHECKPOINT_FILE).is_file():
        if step not in (None, int(run_dir.name[5:])):
            raise ConfigError(f"{run_dir} is the checkpoint of one step; name the run dir to choose step {step}")
        return read_checkpoint(run_dir)
    root = run_dir / CHECKPOINTS_DIR
    if step is not None:
        if tag_of(step) not in _tags(root):
            there = ", ".join(str(int(tag[5:])) for tag in _tags(root)) or "none"
            raise ConfigError(f"{run_dir}: no checkpoint of step {step}; there are: {there}")
        return read_checkpoint(root / tag_of(step))
    latest = root / LATEST_FILE
    if not latest.is_file():
        return None
    return read_checkpoint(root / latest.read_text(encoding="utf-8").strip())


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint's list and hold it against the files there.

    Raises:
        ConfigError: no list (the save was cut short), another format, a file missing or of another size.
    """
    listing = path / CHECKPOINT_FILE
    if not listing.is_file():
        raise ConfigError(f"{path}: not a whole checkpoint: {CHECKPOINT_FILE} is missing, its save was cut short")
    content = read_json(listing)
    if content.get("format") != "zerobert-checkpoint" or content.get("version") != FORMAT_VERSION:
        raise ConfigError(f"{listing}: not a checkpoint list of version {FORMAT_VERSION}")
    for name, size in content["files"].items():
        file = path / name
        actual = file.stat().st_size if file.is_file() else None
        if actual != size:
            found = "missing" if actual is None else f"{actual} bytes long"
            raise ConfigError(
                f"{file}: {found}, {CHECKPOINT_FILE} says {size} bytes: the checkpoint is damaged; "
                "name an older one: --resume PATH, or --step of export"
            )
    return Checkpoint(
        path=path,
        state=TrainingState(**content["state"]),
        world_size=content["world_size"],
        recipe=content["recipe"],
        ds_config=content["ds_config"],
        fingerprints=content["fingerprints"],
    )


def check_resumable(checkpoint: Checkpoint, ds_config: Mapping[str, Any], world_size: int) -> None:
    """Refuse to resume where DeepSpeed would fail late or quietly start anew.

    Args:
        checkpoint: to go on from.
        ds_config: resolved, of this start.
        world_size: ranks of this start.

    Raises:
        ConfigError: another ZeRO stage, precision, optimizer, accumulation type or offload, all of which decide what
            DeepSpeed's files hold; another world size, above stage 0.
    """
    readers: dict[str, Callable[[Mapping[str, Any]], object]] = {
        "zero_optimization.stage": zero_stage,
        "precision": precision,
        "optimizer.type": lambda config: config["optimizer"]["type"],
        "data_types": lambda config: config.get("data_types"),
        "offload_optimizer": lambda config: config.get("zero_optimization", {}).get("offload_optimizer"),
    }
    for name, read in readers.items():
        before, now = read(checkpoint.ds_config), read(ds_config)
        if before != now:
            raise ConfigError(
                f"{checkpoint.path}: saved with {name} = {before}, this start has {now}: resume with the same, "
                "or start a new run with training.init_from (weights alone)"
            )
    if zero_stage(ds_config) > 0 and checkpoint.world_size != world_size:
        raise ConfigError(
            f"{checkpoint.path}: saved by {checkpoint.world_size} processes, this start has {world_size}: "
            "ZeRO stages 1 to 3 resume on the same number (stage 0 on any)"
        )


def load_checkpoint(engine: DeepSpeedEngine, checkpoint: Checkpoint) -> None:
    """Load weights, optimizer and schedule into an engine; every rank must call.

    Raises:
        RuntimeError: DeepSpeed loaded nothing, or a file that belongs to another step.
    """
    path, client_state = engine.load_checkpoint(str(checkpoint.path.parent), tag=checkpoint.tag)
    if path is None or client_state.get(CLIENT_STATE_KEY) != asdict(checkpoint.state):
        raise RuntimeError(f"{checkpoint.path}: DeepSpeed could not load it")
    schedule = engine.lr_scheduler
    if schedule is not None:
        # The saved lr is the old schedule's for the next update; where the recipe has other steps now, so is the lr.
        schedule.step(schedule.last_batch_iteration)


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
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):  # its progress
            state = get_fp32_state_dict_from_zero_checkpoint(str(path.parent), tag=checkpoint.tag)
        return {name: tensor.float() for name, tensor in state.items()}
    saved = _load(path / MODEL_STATES_FILE)
    if precision(config) == "fp32":
        return dict(saved["module"])
    return _with_tied_names(_half_precision_masters(saved["optimizer"], model), model)


def _load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False, mmap=True)
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
