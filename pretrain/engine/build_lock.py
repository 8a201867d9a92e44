"""C++ builds of DeepSpeed's operators: where they are kept, and the locks of builds that were killed.

DeepSpeed compiles its operators at the first start (on a CPU the shared-memory collective, about a minute) and loads
them under a lock file at every start after. A build that was killed leaves its lock behind, and every later start waits
for it for ever. A build belongs to one installation of torch: two virtual environments that share the default folder
build it anew at every start that follows one of the other.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
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
    """Build in this environment's folder, and name the locks there when what is done inside takes long.

    Args:
        patience_seconds: how long to wait before saying so.
    """
    # Read by torch when it builds or loads; a folder that the user has set stays.
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(build_dir()))
    timer = threading.Timer(patience_seconds, _warn)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def build_dir() -> Path:
    """Return the folder of this environment's builds, beside torch's own: one for each environment."""
    environment = hashlib.sha256(sys.prefix.encode()).hexdigest()[:12]
    return Path(get_default_build_root()) / f"zerobert-{environment}"


def _warn() -> None:
    root = Path(os.environ["TORCH_EXTENSIONS_DIR"])
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
