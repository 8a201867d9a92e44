"""Locks of C++ builds: a build that was killed leaves one behind, and every later start waits for it for ever.

DeepSpeed compiles its operators at the first start (on a CPU the shared-memory collective, about a minute) and loads
them under a lock file at every start after.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.utils.cpp_extension import get_default_build_root

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 40.0
"""How long a start may take before the locks are named: less than a minute, more than most builds."""


@contextmanager
def named_build_locks(patience_seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Name the build locks that are there, when what is done inside takes long.

    Args:
        patience_seconds: how long to wait before saying so.
    """
    timer = threading.Timer(patience_seconds, _warn)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _warn() -> None:
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    for lock in sorted(root.rglob("lock")):
        try:
            minutes = (time.time() - lock.stat().st_mtime) / 60
        except FileNotFoundError:
            continue  # its build has just ended
        logger.warning(
            "DeepSpeed compiles an operator at its first start, about a minute; others wait for %s (%.0f min old). "
            "If no compiler is at work any more, a build was killed: remove that file",
            lock,
            minutes,
        )
