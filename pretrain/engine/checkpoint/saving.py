"""Save a run: DeepSpeed's files, a list of them that is written last, and then the name of the newest."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.engine import DeepSpeedEngine

from pretrain.engine.checkpoint.folder import (
    CHECKPOINT_FILE,
    CHECKPOINTS_DIR,
    CLIENT_STATE_KEY,
    FORMAT_VERSION,
    LATEST_FILE,
    TrainingState,
    tag_of,
    whole_tags,
)
from runtime.dist import barrier
from runtime.files import write_json, write_text


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


def _remove_older(root: Path, saved: str, keep_last: int) -> None:
    up_to_now = [tag for tag in whole_tags(root) if tag <= saved]
    for path in (root / tag for tag in up_to_now[:-keep_last]):
        # The list goes first: a removal that is cut short leaves a folder that nobody takes for a checkpoint.
        (path / CHECKPOINT_FILE).unlink()
        shutil.rmtree(path)
