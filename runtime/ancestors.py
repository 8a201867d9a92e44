"""A process that ends when those that started it are gone.

`deepspeed` starts a launcher on each host, which starts the ranks. Where one of the two is killed, the other hears
nothing of it, and the ranks would train on with nobody to stop them, beside the run that is started anew.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

GENERATIONS = 2
"""The host's launcher, and what started it: `deepspeed`, or ssh on another host."""
POLL_SECONDS = 1.0


def parent_of(pid: int) -> int:
    """Return the id of a process's parent.

    Raises:
        OSError: there is no such process, or no /proc.
    """
    # The second field is the program's name in brackets, and may hold anything.
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])


def ancestors(generations: int = GENERATIONS) -> list[int]:
    """Return the ids of this process's parent, its parent, and so on; fewer where the first process comes before.

    Args:
        generations: how many at most.
    """
    found: list[int] = []
    pid = os.getpid()
    for _ in range(generations):
        try:
            pid = parent_of(pid)
        except OSError:
            break
        if pid <= 1:
            break
        found.append(pid)
    return found


def watch_ancestors(
    *, on_loss: Callable[[], None] | None = None, generations: int = GENERATIONS, poll_seconds: float = POLL_SECONDS
) -> threading.Thread:
    """Watch, in a thread of its own, whether those that started this process live.

    Args:
        on_loss: called once when one of them is gone; default: this process gets SIGTERM, as from a user.
        generations: how many are watched.
        poll_seconds: how often.

    Returns:
        The thread; it ends with the process.
    """
    first = ancestors(generations)
    act = on_loss or (lambda: os.kill(os.getpid(), signal.SIGTERM))

    def watch() -> None:
        while ancestors(generations) == first:
            time.sleep(poll_seconds)
        act()

    thread = threading.Thread(target=watch, name="watch-ancestors", daemon=True)
    thread.start()
    return thread
