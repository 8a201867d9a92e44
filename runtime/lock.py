"""One run at a time in a folder: a lock that the kernel lets go of when its holder ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runtime.command import ConfigError

logger = logging.getLogger(__name__)

WAIT_SECONDS = 120.0
"""How long a start waits for an earlier one that is ending, which may be saving."""


@contextmanager
def only_one(folder: Path, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold a folder for this process; another that wants it waits, then is refused.

    The lock is on the folder itself (flock), so it leaves no file behind, and lets go when the process is killed.
    Where the file system has no locks, a warning is all.

    Args:
        folder: is there already.
        wait_seconds: how long to wait for another process.

    Raises:
        ConfigError: another process still has it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor, folder, wait_seconds)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, wait_seconds: float) -> None:
    end, told = time.monotonic() + wait_seconds, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise ConfigError(
                    f"{folder}: another process trains in it still, after {wait_seconds:g} s: wait for it, end it, or "
                    "give another --run-dir"
                ) from None
            if not told:
                logger.info("%s: another process trains in it; waiting for it to end", folder)
                told = True
            time.sleep(0.2)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.EINVAL):
                raise
            logger.warning("%s: its file system has no locks: see to it that no other run uses this folder", folder)
            return
        else:
            return
