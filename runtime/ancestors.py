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


_FIRST = ancestors()
"""As this process began: read when the module is imported, which is long before it is asked to watch."""


def is_orphan() -> bool:
    """Say whether DeepSpeed's launcher of this host had lost what started it before this process could look.

    The first process of the machine is then its parent; in a container that may be `deepspeed` itself.
    """
    if len(_FIRST) != 1 or b"deepspeed.launcher.launch" not in _command_of(_FIRST[0]):
        return False
    return b"deepspeed" not in _command_of(1)


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


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
    act = on_loss or (lambda: os.kill(os.getpid(), signal.SIGTERM))

    def watch() -> None:
        while ancestors(generations) == _FIRST[:generations] and not is_orphan():
            time.sleep(poll_seconds)
        act()

    thread = threading.Thread(target=watch, name="watch-ancestors", daemon=True)
    thread.start()
    return thread
