"""DeepSpeed's universal checkpoint: one folder a parameter, which an engine of any stage, precision and size can read.

zero/NAME/fp32.pt, exp_avg.pt, ... {"param": float32 of the parameter's shape}; step.pt: the number
zero/optimizer_state.pt            the hyperparameters
mp_rank_00_model_states.pt         counters, schedule and client state; once more under stage 3's name
universal.json                     ours: from which checkpoint it was made

On stages 1 to 3 DeepSpeed reads it with `"checkpoint": {"load_universal": true}` and
`load_checkpoint(parent, tag=name)`.
Its own converter knows neither stage 0 nor BF16_Optimizer's files nor optimizers without exp_avg_sq.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from deepspeed.checkpoint.constants import UNIVERSAL_CHECKPOINT_INFO, UNIVERSAL_CHECKPOINT_VERSION_KEY
from deepspeed.checkpoint.constants import UNIVERSAL_CHECKPOINT_VERSION_VALUE as VERSION

from pretrain.engine.checkpoint.folder import UNFINISHED_FILE, Checkpoint
from pretrain.engine.checkpoint.states import (
    MODEL_STATES,
    STAGE_3_MODEL_STATES,
    CheckpointStates,
    read_states,
    states_folder,
)
from pretrain.engine.ds_config import precision
from runtime.command import ConfigError
from runtime.files import read_json, write_json

UNIVERSAL_FILE = "universal.json"
UNIVERSAL_PREFIX = "universal_"
BYTES_OF_A_FILE = 8192
"""More than a file's header and the rest of its last block on the disk."""
BYTES_A_SECOND = 150e6
"""What one process wrote on a virtual disk, torch.save included; for the estimate alone."""


def convert(checkpoint: Checkpoint, to_dir: Path) -> Path:
    """Write a checkpoint as a universal one, by this process alone.

    Args:
        checkpoint: of any stage, precision and number of ranks.
        to_dir: is made; not there yet, or empty.

    Returns:
        `to_dir`.

    Raises:
        ConfigError: `to_dir` holds something, the disk has too little room, the checkpoint cannot be converted.
    """
    if to_dir.exists() and any(to_dir.iterdir()):
        raise ConfigError(f"{to_dir}: is there already; name a folder that is not")
    states = read_states(checkpoint)
    check_room(states, to_dir.parent)
    partial = begin(to_dir)
    write_parameters(states, partial)
    finish(states, checkpoint, to_dir, is_temporary=False)
    return to_dir


def bytes_needed(states: CheckpointStates) -> int:
    """Return the bytes of disk that a universal checkpoint takes, at most."""
    num_files = sum(len(of.parts) + len(of.others) for of in states.parameters.values())
    return sum(of.num_bytes() for of in states.parameters.values()) + BYTES_OF_A_FILE * (num_files + 4)


def describe_cost(states: CheckpointStates, root: Path, num_ranks: int = 1) -> str:
    """Say what a conversion takes of a disk and of time, before it begins.

    Args:
        states: to be written.
        root: folder that is there, on the disk in question.
        num_ranks: processes that write.
    """
    needed, free = bytes_needed(states), shutil.disk_usage(root).free
    return (
        f"needs about {needed / 2**30:.2f} GiB on {root}, free {free / 2**30:.2f} GiB, "
        f"about {needed / BYTES_A_SECOND:.0f} s at {BYTES_A_SECOND / 1e6:.0f} MB/s, {num_ranks} process(es) writing"
    )


def check_room(states: CheckpointStates, root: Path) -> None:
    """Refuse a conversion that the disk has no room for.

    Raises:
        ConfigError: names the folder and the bytes.
    """
    needed, free = bytes_needed(states), shutil.disk_usage(root).free
    if needed > free:
        raise ConfigError(
            f"{root}: the conversion needs {needed / 2**30:.2f} GiB there, free are {free / 2**30:.2f} GiB: make room, "
            "or resume with the settings and the number of processes of the checkpoint"
        )


def partial_of(folder: Path) -> Path:
    """Return where a folder stands until it is whole."""
    return folder.with_name(f"{folder.name}.part")


def begin(folder: Path) -> Path:
    """Make the empty folder that becomes `folder`; what an earlier try left goes."""
    partial = partial_of(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / UNFINISHED_FILE).touch()
    return partial


def write_parameters(states: CheckpointStates, folder: Path, part: int = 0, num_parts: int = 1) -> None:
    """Write the folders of a share of the parameters.

    Args:
        states: of the checkpoint.
        folder: from `begin`.
        part: which share, from 0.
        num_parts: how many there are.
    """
    for name, of in list(states.parameters.items())[part::num_parts]:
        path = states_folder(folder, name)
        path.mkdir(parents=True)
        for key in of.parts:
            _save({"param": of.tensor(key)}, path / f"{key}.pt")
        for key, value in of.others.items():
            _save(value, path / f"{key}.pt")


def finish(states: CheckpointStates, checkpoint: Checkpoint, folder: Path, *, is_temporary: bool) -> None:
    """Write what is not of one parameter, when all parameters are there, and give the folder its name.

    Args:
        states: of the checkpoint.
        checkpoint: they are from.
        folder: its name at the end.
        is_temporary: whether a resume made it for itself.
    """
    partial = partial_of(folder)
    of_first = next(iter(states.parameters.values())).others
    of_optimizer: dict[str, Any] = {
        "param_groups": states.param_groups,
        "ds_version": states.model_states["ds_version"],
        # Where stage 3 looks for the step.
        "optimizer_state_dict": {"state": {0: {"step": of_first.get("step", 0)}}, "param_groups": states.param_groups},
    }
    if precision(checkpoint.ds_config) == "fp16":
        of_optimizer |= states.loss_scale
    _save(of_optimizer, partial / "zero" / "optimizer_state.pt")
    info = {UNIVERSAL_CHECKPOINT_VERSION_KEY: VERSION}
    for name in (MODEL_STATES, STAGE_3_MODEL_STATES):
        _save({**states.model_states, "module": {}, UNIVERSAL_CHECKPOINT_INFO: info}, partial / name)
    content = {"from": str(checkpoint.path), "sha256": checkpoint.fingerprint(), "is_temporary": is_temporary}
    write_json(partial / UNIVERSAL_FILE, content)
    (partial / UNFINISHED_FILE).unlink()
    if folder.is_dir():
        shutil.rmtree(folder)
    partial.rename(folder)


def universal_beside(checkpoint: Checkpoint) -> Path:
    """Return the folder of a checkpoint's universal form beside it, there or not."""
    return checkpoint.path.with_name(UNIVERSAL_PREFIX + checkpoint.tag)


def is_of(folder: Path, checkpoint: Checkpoint) -> bool:
    """Say whether a folder is the whole universal form of a checkpoint as it is now."""
    listing = folder / UNIVERSAL_FILE
    return listing.is_file() and read_json(listing).get("sha256") == checkpoint.fingerprint()


def remove_temporary(folder: Path) -> None:
    """Remove a folder that a resume made for itself; one that was asked for stays."""
    if read_json(folder / UNIVERSAL_FILE).get("is_temporary"):
        (folder / UNIVERSAL_FILE).unlink()
        shutil.rmtree(folder)


def _save(value: Any, path: Path) -> None:
    try:
        torch.save(value, path)
    except RuntimeError as error:  # torch's writer; it says nothing of the file or the disk
        free = shutil.disk_usage(path.parent).free
        raise OSError(0, f"{str(error).splitlines()[0]} ({free} bytes free)", os.fspath(path)) from error
