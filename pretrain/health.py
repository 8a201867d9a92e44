"""What must not go on: numbers that are none, a loss scale at its floor, a loss that leaps."""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from pretrain.engine.ds_config import precision, zero_stage
from runtime.command import ConfigError

if TYPE_CHECKING:
    from pretrain.recipe import HealthSettings

logger = logging.getLogger(__name__)

REMEMBERED_LINES = 20
FEWEST_LINES = 5
"""Log lines before a leap can be told from a start."""
_AT_MINIMUM = "loss scale already at minimum"


class DivergedError(RuntimeError):
    """Training must not go on; no checkpoint was made of what went wrong."""


def check_health(settings: HealthSettings, ds_config: Mapping[str, Any], source: str) -> None:
    """Refuse to skip updates where DeepSpeed has no way to drop one.

    Args:
        settings: of the recipe.
        ds_config: resolved.
        source: the recipe's file, for messages.

    Raises:
        ConfigError: names both.
    """
    if settings.on_nan == "skip" and zero_stage(ds_config) == 0 and precision(ds_config) == "fp32":
        raise ConfigError(
            f'{source}: health.on_nan = "skip" in fp32 without ZeRO: DeepSpeed applies every update there; write '
            'zero_optimization.stage = 1 in the DeepSpeed JSON, or health.on_nan = "stop"'
        )


class Health:
    """Looks at every update, and at the losses of log lines.

    Args:
        settings: of the recipe.
        is_fp16: overflows are a part of finding the loss scale there.
    """

    def __init__(self, settings: HealthSettings, *, is_fp16: bool) -> None:
        self._settings, self._is_fp16 = settings, is_fp16
        self._losses: deque[float] = deque(maxlen=REMEMBERED_LINES)
        self._skipped_in_a_row = 0
        self.skipped_steps = 0
        """Updates skipped since the start of this process."""

    @contextmanager
    def step(self, step: int, saved: str) -> Iterator[None]:
        """Name what DeepSpeed raises when the loss scale can go no lower.

        Args:
            step: updates done.
            saved: the last good checkpoint.

        Raises:
            DivergedError: at the floor.
        """
        try:
            yield
        except Exception as error:
            if _AT_MINIMUM not in str(error):
                raise
            raise DivergedError(
                f"after step {step}: the gradients overflow at the smallest loss scale; {saved}: lower the lr, "
                "or train in bf16 from there"
            ) from None

    def look(
        self, step: int, norm: float | None, *, applied: bool, local_loss: Callable[[], float], saved: str
    ) -> None:
        """Look at an update; every rank must call with the same norm.

        Args:
            step: updates done, this one included where it was applied.
            norm: of the gradient, all ranks; None: not known.
            applied: whether the update was.
            local_loss: gives the sum of this rank's losses since the last log line.
            saved: the last good checkpoint.

        Raises:
            DivergedError: by policy.
        """
        is_finite = norm is None or math.isfinite(norm)
        if applied and is_finite:
            self._skipped_in_a_row = 0
            return
        if applied or (not self._is_fp16 and self._settings.on_nan == "stop"):
            where = f"in step {step}" if applied else f"after step {step}"
            raise DivergedError(f"{where}: the gradient norm is {norm}{_where_from(local_loss)}; {saved}")
        self.skipped_steps += 1
        self._skipped_in_a_row += 1
        logger.warning("after step %d: gradient overflow, update skipped", step)
        if self._skipped_in_a_row >= self._settings.max_skipped_steps:
            raise DivergedError(
                f"after step {step}: {self._skipped_in_a_row} updates in a row were skipped "
                f"(health.max_skipped_steps){_where_from(local_loss)}; {saved}"
            )

    def look_at_loss(self, step: int, loss: float, saved: str) -> None:
        """Hold a log line's loss against the median of the lines before; every rank must call with the same loss.

        Raises:
            DivergedError: it is NaN, or a leap and the policy is to stop.
        """
        if not math.isfinite(loss):
            raise DivergedError(f"step {step}: the loss is {loss}; {saved}")
        settings = self._settings
        usual = statistics.median(self._losses) if len(self._losses) >= FEWEST_LINES else math.inf
        self._losses.append(loss)
        if settings.on_spike == "off" or loss <= settings.spike_factor * usual:
            return
        message = f"step {step}: the loss is {loss:.4f}, {loss / usual:.2f} times the usual {usual:.4f}"
        if settings.on_spike == "stop":
            raise DivergedError(f"{message} (health.on_spike); {saved}")
        logger.warning(message)


def _where_from(local_loss: Callable[[], float]) -> str:
    """Say which ranks' losses are none; every rank must call."""
    losses: list[float] = [0.0] * dist.get_world_size()
    dist.all_gather_object(losses, local_loss())
    ranks = [str(rank) for rank, loss in enumerate(losses) if not math.isfinite(loss)]
    if not ranks:
        return ", the losses are finite on every rank"
    return f", and so are the losses of rank {', '.join(ranks)}"
