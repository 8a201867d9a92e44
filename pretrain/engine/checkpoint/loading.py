"""Go on from a checkpoint, where this start can."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch.distributed as dist
from deepspeed.runtime.engine import DeepSpeedEngine

from pretrain.engine.checkpoint.folder import CLIENT_STATE_KEY, Checkpoint
from pretrain.engine.checkpoint.pickles import CheckpointFiles, only_safe_pickles
from pretrain.engine.checkpoint.resize import (
    check_convertible,
    describe_changes,
    layout_changes,
    load_resized,
    needs_conversion,
)
from runtime.command import ConfigError

logger = logging.getLogger(__name__)


def check_resumable(checkpoint: Checkpoint, ds_config: Mapping[str, Any], world_size: int) -> None:
    """Refuse to resume where it cannot be done right.

    Args:
        checkpoint: to go on from.
        ds_config: resolved, of this start.
        world_size: ranks of this start.

    Raises:
        ConfigError: another optimizer; another world size, ZeRO stage, precision or offload where the states cannot be
            converted (NVMe, Muon at stages 1 and 2).
    """
    before, now = (config["optimizer"]["type"] for config in (checkpoint.ds_config, ds_config))
    if str(before).lower() != str(now).lower():
        raise ConfigError(
            f"{checkpoint.path}: saved with optimizer.type = {before}, this start has {now}: resume with the same, "
            "or start a new run with training.init_from (weights alone)"
        )
    changes = layout_changes(checkpoint, ds_config, world_size)
    if needs_conversion(changes, ds_config):
        check_convertible(checkpoint, ds_config, changes)


def load_checkpoint(engine: DeepSpeedEngine, checkpoint: Checkpoint) -> None:
    """Load weights, optimizer and schedule into an engine; every rank must call.

    A checkpoint of another world size, ZeRO stage, precision or offload is converted, see `load_resized`.

    Raises:
        RuntimeError: DeepSpeed loaded nothing, or a file that belongs to another step.
        ConfigError: a conversion that cannot be done.
    """
    rates = [group["lr"] for group in engine.optimizer.param_groups]
    # The engine has no word of an optimizer that this project made.
    config = {"optimizer": checkpoint.ds_config["optimizer"], **engine.config}
    changes = layout_changes(checkpoint, config, dist.get_world_size())
    if needs_conversion(changes, config):
        load_resized(engine, checkpoint)
    else:
        engine.checkpoint_engine = CheckpointFiles()
        with only_safe_pickles():
            path, client_state = engine.load_checkpoint(str(checkpoint.path.parent), tag=checkpoint.tag)
        if path is None or client_state.get(CLIENT_STATE_KEY) != asdict(checkpoint.state):
            raise RuntimeError(f"{checkpoint.path}: DeepSpeed could not load it")
    if changes and dist.get_rank() == 0:
        logger.info("resumed with: %s", describe_changes(changes))
    schedule = engine.lr_scheduler
    if schedule is not None:
        # The saved lr is the old schedule's for the next update; where the recipe has other steps now, so is the lr.
        schedule.step(schedule.last_batch_iteration)
    else:
        # A constant lr has its home in the JSON of this start.
        for group, rate in zip(engine.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
