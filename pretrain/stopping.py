"""When a run is to stop before its last step: a signal, or the end of its time; agreed by all ranks at a step's end."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""What schedulers send before they take a machine away, and Ctrl-C."""
_TIME_IS_UP = 1_000
"""Above every signal's number."""
_FIRST_SAVE_SECONDS = 60.0
_FIRST_SAVE_SHARE = 0.1
"""What is kept free for a save before one was measured: the smaller of a minute and this share of the time."""
_MARGIN = 1.5
_ECHO_SECONDS = 5.0
"""Launchers pass on what ranks got themselves, and ranks miss a launcher that died of it: no second wish."""


def seconds_since_start() -> float:
    """Return how long this process has lived, its imports included."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
    return uptime - ticks / os.sysconf("SC_CLK_TCK")


class Stopper:
    """Watches for signals and the time, and lets all ranks agree at the end of a step.

    Args:
        max_seconds: since the process was started; None: no limit.
    """

    def __init__(self, max_seconds: float | None = None) -> None:
        self._max_seconds = max_seconds
        self._signal = 0
        self._signalled = -math.inf
        self._longest_step = 0.0
        self._longest_save: float | None = None
        self._last = time.monotonic()
        # NCCL would wait for the device; this is about processes.
        self._group = dist.new_group(backend="gloo") if dist.get_backend() != "gloo" else None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take signals for a request to stop after the step; one some seconds later ends the process at once."""
        before = {number: signal.signal(number, self._note) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                # Once stopped, the launcher ends the other ranks with a signal: their exit code is to be their own.
                signal.signal(number, signal.SIG_IGN if self._signal else handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if not self._signal:
            self._signal, self._signalled = number, now
        elif now - self._signalled > _ECHO_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def saved(self, seconds: float) -> None:
        """Learn how long a save takes."""
        self._longest_save = max(self._longest_save or 0.0, seconds)
        self._last = time.monotonic()

    def reason(self) -> str | None:
        """Say why all ranks are to stop after this step; every rank must call, once a step.

        Returns:
            The same on every rank: "SIGTERM", "--max-seconds", or None.
        """
        now = time.monotonic()
        self._longest_step, self._last = max(self._longest_step, now - self._last), now
        mine = _TIME_IS_UP if self._is_time_up() else self._signal
        wish = torch.tensor(mine)
        dist.all_reduce(wish, op=dist.ReduceOp.MAX, group=self._group)
        agreed = int(wish)
        if agreed:
            self._signal = self._signal or agreed
        if agreed == _TIME_IS_UP:
            return "--max-seconds"
        return signal.Signals(agreed).name if agreed else None

    def _is_time_up(self) -> bool:
        if self._max_seconds is None:
            return False
        save = self._longest_save
        if save is None:
            save = min(_FIRST_SAVE_SECONDS, _FIRST_SAVE_SHARE * self._max_seconds)
        return seconds_since_start() + _MARGIN * (self._longest_step + save) >= self._max_seconds
