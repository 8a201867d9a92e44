"""Go on from a checkpoint, where this start can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from deepspeed.runtime.engine import DeepSpeedEngine

from pretrain.engine.checkpoint.folder import CLIENT_STATE_KEY, Checkpoint
from pretrain.engine.checkpoint.pickles import CheckpointFiles, only_safe_pickles
from pretrain.engine.ds_config import precision, zero_stage
from runtime.command import ConfigError


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
    rates = [group["lr"] for group in engine.optimizer.param_groups]
    engine.checkpoint_engine = CheckpointFiles()
    with only_safe_pickles():
        path, client_state = engine.load_checkpoint(str(checkpoint.path.parent), tag=checkpoint.tag)
    if path is None or client_state.get(CLIENT_STATE_KEY) != asdict(checkpoint.state):
        raise RuntimeError(f"{checkpoint.path}: DeepSpeed could not load it")
    schedule = engine.lr_scheduler
    if schedule is not None:
        # The saved lr is the old schedule's for the next update; where the recipe has other steps now, so is the lr.
        schedule.step(schedule.last_batch_iteration)
    else:
        # A constant lr has its home in the JSON of this start.
        for group, rate in zip(engine.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
