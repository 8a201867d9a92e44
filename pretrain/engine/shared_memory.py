"""DeepSpeed's shared-memory collective on CPUs, without the memory that it leaves behind.

When all ranks are processes of one host, DeepSpeed reduces over a buffer of 66 MiB a rank in POSIX shared memory, named
after user, address and port, and never takes the name away. What has a name outlives its processes: every start on
another port would take that much of the host's memory until it is booted again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import deepspeed
import torch.distributed as dist

SHARED_MEMORY_DIR = Path("/dev/shm")


def init_deepspeed_distributed() -> None:
    """Let DeepSpeed join the process group and map its shared memory, then take away this rank's name for it.

    The mappings stay, and go with the last process, however it ends. Every rank must call, inside a process group.
    """
    deepspeed.init_distributed()
    dist.barrier()  # a rank has left the call above once it has mapped the buffers of all
    with suppress(FileNotFoundError):  # ranks on several hosts, a GPU, or no compiler: none was made
        (SHARED_MEMORY_DIR / reduce_buffer_name(dist.get_rank())).unlink()


def reduce_buffer_name(rank: int) -> str:
    """Return DeepSpeed's name for the buffer of one rank of this job."""
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    return f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_{rank}"
