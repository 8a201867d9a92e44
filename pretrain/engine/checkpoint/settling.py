"""Which checkpoint a run goes on from: the newest that is whole, found by all ranks together."""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path

import torch.distributed as dist

from pretrain.engine.checkpoint.folder import (
    BROKEN_PREFIX,
    CHECKPOINT_FILE,
    CHECKPOINTS_DIR,
    LATEST_FILE,
    UNFINISHED_FILE,
    Checkpoint,
    DamagedError,
    candidates,
    damage,
    read_checkpoint,
)
from runtime.command import ConfigError
from runtime.dist import barrier
from runtime.files import write_text

logger = logging.getLogger(__name__)

LONG_SECONDS = 5.0


def newest_readable(run_dir: Path) -> Checkpoint | None:
    """Return the newest checkpoint whose files are there in their sizes; changes nothing.

    Raises:
        ConfigError: there are checkpoints, and none is whole.
    """
    faults = []
    for tag in candidates(run_dir):
        try:
            return read_checkpoint(run_dir / CHECKPOINTS_DIR / tag)
        except DamagedError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError("\n".join([f"{run_dir}: no checkpoint of this run is whole:", *faults]))
    return None


def settle_on_newest(run_dir: Path) -> Checkpoint | None:
    """Find the newest whole checkpoint, every file read and its sha256 compared; every rank must call.

    The ranks share the files among them. A broken checkpoint is reported and renamed to `broken_step_...`; nothing is
    deleted. `latest` then names the one that was found.

    Args:
        run_dir: of the run, the same on every rank.

    Returns:
        The same on every rank; None where the run has no checkpoint.

    Raises:
        ConfigError: there are checkpoints, and none is whole; they stay as they are.
    """
    root, began = run_dir / CHECKPOINTS_DIR, time.monotonic()
    if dist.get_rank() == 0:
        _remove_unfinished(run_dir)
    broken: dict[str, list[str]] = {}
    for tag in _agreed(candidates(run_dir)):
        checkpoint, faults = _verified(root / tag)
        if checkpoint is None:
            broken[tag] = faults
            continue
        if dist.get_rank() == 0:
            for broken_tag, its_faults in broken.items():
                _put_aside(root, broken_tag, its_faults)
            if broken:
                write_text(root / LATEST_FILE, tag)
            if time.monotonic() - began > LONG_SECONDS:
                logger.info("%s: verified in %.0f s", checkpoint.path, time.monotonic() - began)
        barrier()
        return checkpoint
    if broken:
        reasons = [fault for faults in broken.values() for fault in faults]
        raise ConfigError("\n".join([f"{run_dir}: no checkpoint of this run is whole:", *reasons]))
    return None


def verify_together(checkpoint: Checkpoint) -> None:
    """Compare the sha256 of every file of one checkpoint; every rank must call.

    Raises:
        DamagedError: on every rank, with every file that is not as it was saved.
    """
    _, faults = _verified(checkpoint.path)
    if faults:
        raise DamagedError("\n".join(faults))


def _agreed(tags: list[str]) -> list[str]:
    """Return rank zero's list: on a network file system others may see it later."""
    agreed: list[object] = [tags]
    dist.broadcast_object_list(agreed, src=0)
    return list(agreed[0])  # type: ignore[call-overload,no-any-return]


def _verified(path: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return a checkpoint that all ranks found whole, or what is wrong with it."""
    faults, checkpoint = [], None
    try:
        checkpoint = read_checkpoint(path)
        faults = damage(checkpoint, dist.get_rank(), dist.get_world_size())
    except DamagedError as error:
        faults = [str(error)]
    gathered: list[list[str]] = [[]] * dist.get_world_size()
    dist.all_gather_object(gathered, faults)
    together = list(dict.fromkeys(fault for part in gathered for fault in part))
    return (None if together else checkpoint), together


def _remove_unfinished(run_dir: Path) -> None:
    """Remove what a save that was cut short has left; it was never a checkpoint."""
    root = run_dir / CHECKPOINTS_DIR
    for marker in root.glob(f"*/{UNFINISHED_FILE}"):
        if (marker.parent / CHECKPOINT_FILE).is_file():
            marker.unlink()
        else:
            logger.info("%s: a save that was cut short; removed", marker.parent)
            shutil.rmtree(marker.parent)
    for folder in (run_dir, root):
        for temporary in folder.glob(".*.tmp"):
            temporary.unlink()


def _put_aside(root: Path, tag: str, faults: list[str]) -> None:
    number, name = 1, f"{BROKEN_PREFIX}{tag}"
    while (root / name).exists():
        number += 1
        name = f"{BROKEN_PREFIX}{tag}-{number}"
    if (root / tag).is_dir():
        (root / tag).rename(root / name)
    logger.warning("%s is not whole and is kept as %s:\n  %s", root / tag, name, "\n  ".join(faults))
