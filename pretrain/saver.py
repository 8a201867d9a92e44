"""When and how a run's checkpoints are written, in the background where asked, and what a failure to write does."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.engine.checkpoint import PendingSave, Retention, SaveError, TrainingState, begin_save
from pretrain.recipe import Recipe

if TYPE_CHECKING:
    from deepspeed.runtime.engine import DeepSpeedEngine

logger = logging.getLogger(__name__)


@dataclass
class Saver:
    """Writes the checkpoints of a run; every method must be called by every rank."""

    engine: DeepSpeedEngine
    run_dir: Path
    recipe: Recipe
    ds_config: Mapping[str, Any]
    fingerprints: Mapping[str, str]
    world_size: int
    is_rank_zero: bool
    last: Path | None = None
    """The last whole checkpoint."""
    longest_seconds: float = 0.0
    """That a step waited for a save."""
    _pending: PendingSave | None = field(default=None, init=False)

    def describe_last(self) -> str:
        """Name the last good checkpoint, for messages."""
        return f"the last good checkpoint is {self.last}" if self.last else "there is no checkpoint yet"

    def save(self, state: TrainingState, *, wait: bool = False) -> None:
        """Save; with checkpoint.asynchronous the files are written while training goes on.

        Args:
            state: after a step.
            wait: until it is whole: at the end of a run, where there is no next one to try.

        Raises:
            SaveError: it could not be written, and checkpoint.on_error is "stop" or nothing comes after it.
        """
        began, settings = time.monotonic(), self.recipe.checkpoint
        self.finish()
        try:
            self._pending = begin_save(
                self.engine,
                self.run_dir,
                state,
                world_size=self.world_size,
                recipe=self.recipe.model_dump(mode="json"),
                ds_config=self.ds_config,
                fingerprints=self.fingerprints,
                retention=Retention(settings.keep_last, settings.milestone_interval_steps),
                in_background=settings.asynchronous and not wait,
            )
        except SaveError as error:
            self._failed(error, is_last=wait)
        if wait or not settings.asynchronous:
            self.finish(is_last=wait)
        self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)

    def poll(self) -> None:
        """Finish a save that was written in the background, once it is; called after every step."""
        if self._pending is not None and self._pending.is_done():
            self.finish()

    def finish(self, *, is_last: bool = False) -> None:
        """Finish the save that is on its way, if one is.

        Args:
            is_last: whether no other follows.

        Raises:
            SaveError: as `save`.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            self.last = pending.finish()
        except SaveError as error:
            self._failed(error, is_last=is_last)
        else:
            if self.is_rank_zero:
                logger.info("step %d  saved %s", pending.state.step, self.last)

    def _failed(self, error: SaveError, *, is_last: bool) -> None:
        message = f"{error}; {self.describe_last()}"
        if is_last or self.recipe.checkpoint.on_error == "stop":
            raise SaveError(message) from None
        if self.is_rank_zero:
            logger.warning("%s; training goes on (checkpoint.on_error)", message)
