"""Checkpoints: DeepSpeed's own files, a list of them that is written last, and the way back to fp32 weights.

A checkpoint is `checkpoints/step_00012000/`: what `engine.save_checkpoint` writes, and `checkpoint.json`, written when
all else is there, with the size and the sha256 of each file. `checkpoints/latest` names the newest; it is replaced
atomically after that. So a checkpoint is either whole, or nothing points to it.
"""

from pretrain.engine.checkpoint.folder import (
    CHECKPOINTS_DIR,
    Checkpoint,
    DamagedError,
    TrainingState,
    candidates,
    damage,
    find_checkpoint,
    read_checkpoint,
)
from pretrain.engine.checkpoint.loading import check_resumable, load_checkpoint
from pretrain.engine.checkpoint.saving import PendingSave, Retention, SaveError, begin_save
from pretrain.engine.checkpoint.settling import newest_readable, settle_on_newest, verify_together
from pretrain.engine.checkpoint.universal import convert
from pretrain.engine.checkpoint.weights import load_fp32_weights

__all__ = [
    "CHECKPOINTS_DIR",
    "Checkpoint",
    "DamagedError",
    "PendingSave",
    "Retention",
    "SaveError",
    "TrainingState",
    "begin_save",
    "candidates",
    "check_resumable",
    "convert",
    "damage",
    "find_checkpoint",
    "load_checkpoint",
    "load_fp32_weights",
    "newest_readable",
    "read_checkpoint",
    "settle_on_newest",
    "verify_together",
]
