"""Ends a run that hangs, and names the rank that the others wait for.

Every rank writes how far it is into the process group's key-value store. Where a rank has done nothing for too long,
its watchdog reads how far all of them are, says who is behind, and ends the process; the launcher then ends the others.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
from types import TracebackType

import torch.distributed as dist

POLL_SECONDS = 1.0
REPORT_SECONDS = 10.0
"""Longest wait for the list of all ranks: the rank that keeps it may be the one that hangs."""
_NO_ANSWER = "rank 0, which keeps the list of all, does not answer"
_PREFIX = "watchdog"


class Watchdog:
    """A thread of each rank; a context manager inside a process group.

    Args:
        rank: of this process.
        world_size: ranks.
        hang_seconds: longest time between two beats.
    """

    def __init__(self, rank: int, world_size: int, hang_seconds: float) -> None:
        self._rank, self._world_size, self._hang_seconds = rank, world_size, hang_seconds
        # A connection of its own: the group's may be in use by the other thread.
        store = dist.distributed_c10d._get_default_store()
        self._store = dist.distributed_c10d.PrefixStore(_PREFIX, store.clone() if hasattr(store, "clone") else store)
        self._beat = {"step": 0, "phase": "starting", "time": time.time()}
        self._last = time.monotonic()
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"watchdog-{target.__name__}", daemon=True)
            for target in (self._publish, self._watch)
        ]

    def __enter__(self) -> Watchdog:
        """Begin to watch."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Watch no longer; where an exception comes by, say how far every rank was."""
        self._ended.set()
        if isinstance(error, RuntimeError) and any(word in str(error) for word in ("onnection", "gloo", "NCCL")):
            sys.stderr.write(f"[rank {self._rank}] another rank is gone; {self._report_in_time()}\n")

    def beat(self, step: int, phase: str) -> None:
        """Say that this rank is at work.

        Args:
            step: updates done.
            phase: what it does now: "train", "evaluate", "save".
        """
        self._beat = {"step": step, "phase": phase, "time": time.time()}
        self._last = time.monotonic()

    def report(self) -> str:
        """Say how far every rank is; those that are furthest behind first."""
        now, beats = time.time(), []
        for rank in range(self._world_size):
            key = str(rank)
            try:
                beat = json.loads(self._store.get(key)) if self._store.check([key]) else None
            except RuntimeError:
                return _NO_ANSWER
            beats.append((rank, beat or {"step": 0, "phase": "starting", "time": now}))
        behind = sorted(beats, key=lambda entry: (entry[1]["step"], entry[1]["time"]))
        parts = [
            f"rank {rank} after step {beat['step']} ({beat['phase']}), last heard of {now - beat['time']:.0f} s ago"
            for rank, beat in behind
        ]
        return "furthest behind first: " + "; ".join(parts[:8]) + ("; ..." if len(parts) > 8 else "")

    def _report_in_time(self) -> str:
        reports: list[str] = []
        reader = threading.Thread(target=lambda: reports.append(self.report()), daemon=True)
        reader.start()
        reader.join(REPORT_SECONDS)
        return reports[0] if reports else _NO_ANSWER

    def _publish(self) -> None:
        """Write this rank's beats; apart from `_watch`, as a store whose rank hangs may keep a writer waiting."""
        written = None
        while not self._ended.wait(min(POLL_SECONDS, self._hang_seconds / 4)):
            beat = self._beat
            if beat is not written:
                try:
                    self._store.set(str(self._rank), json.dumps(beat))
                except RuntimeError:
                    return  # rank zero is gone, and the group's own error ends this process
                written = beat

    def _watch(self) -> None:
        while not self._ended.wait(min(POLL_SECONDS, self._hang_seconds / 4)):
            waited = time.monotonic() - self._last
            if waited > self._hang_seconds:
                self._end(waited)

    def _end(self, waited: float) -> None:
        sys.stderr.write(
            f"[rank {self._rank}] no step for {waited:.0f} s (training.hang_seconds = {self._hang_seconds:g}); "
            f"{self._report_in_time()}\n"
        )
        faulthandler.dump_traceback()
        sys.stderr.flush()
        os._exit(1)
