"""How a process that trains on CPUs takes memory from the system."""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Of <malloc.h>."""
_NEVER = -1


def keep_freed_memory() -> bool:
    """Let malloc keep what is freed for the next step, instead of giving it back to the system; see mallopt(3).

    A step on a CPU takes and frees hundreds of megabytes: activations, gradients, the flat copies of ZeRO. glibc maps
    each large piece anew and unmaps it when it is freed, so every step pays for the same page faults; see
    docs/performance.md for how much. The process stays as large as it once was.

    Returns:
        Whether it could be done: False where the C library is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))
