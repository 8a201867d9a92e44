"""Ranks: who this process is, the process group, and its end on every path."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from runtime.command import ConfigError

COLLECTIVE_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class World:
    """This process's place among the processes of the job."""

    rank: int
    local_rank: int
    """Which of this host's processes, from 0; the index of its device."""
    size: int
    """Processes of the job, all hosts."""
    local_size: int = 1
    """Processes of this host."""

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process writes what is written once a job."""
        return self.rank == 0

    @property
    def is_first_of_host(self) -> bool:
        """Whether this process writes what is written once a host."""
        return self.local_rank == 0


def add_local_rank_argument(parser: argparse.ArgumentParser) -> None:
    """Accept the argument that launchers append, in both spellings."""
    parser.add_argument("--local_rank", "--local-rank", type=int, default=None, help=argparse.SUPPRESS)


def world_from_environment(local_rank: int | None = None) -> World:
    """Read RANK, LOCAL_RANK and WORLD_SIZE as launchers set them; without them, a world of one.

    Args:
        local_rank: the launcher's argument, used where LOCAL_RANK is not set.
    """
    return World(
        rank=int(os.environ.get("RANK", "0")),
        local_rank=int(os.environ.get("LOCAL_RANK", local_rank or 0)),
        size=int(os.environ.get("WORLD_SIZE", "1")),
        # DeepSpeed's launcher says LOCAL_SIZE, torchrun LOCAL_WORLD_SIZE.
        local_size=int(os.environ.get("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))),
    )


@contextmanager
def process_group(world: World) -> Iterator[torch.device]:
    """Join the process group and leave it, whatever happens between: every rank must enter.

    NCCL on CUDA, gloo elsewhere. A process that ends without leaving may die with exit code -6 after its work is done.

    Args:
        world: this process's place.

    Yields:
        This process's device.
    """
    if world.size == 1:
        # Started without a launcher, or by one that sets no address.
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", str(free_port()))
        for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
            os.environ.setdefault(name, value)
    if torch.cuda.is_available():
        device = torch.device("cuda", world.local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=COLLECTIVE_TIMEOUT, device_id=device)
    else:
        device = torch.device("cpu")
        if "OMP_NUM_THREADS" not in os.environ:
            # Each process would take every core, and they would fight for them.
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // world.local_size))
        dist.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)
    try:
        yield device
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def barrier() -> None:
    """Wait for every rank; every rank must call."""
    dist.barrier()


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Add a tensor up over all ranks, in place; every rank must call.

    Args:
        values: any shape, the same on each rank.
    """
    dist.all_reduce(values)
    return values


def max_over_ranks(value: float, device: torch.device) -> float:
    """Return the largest of all ranks' values; every rank must call.

    Args:
        value: this rank's.
        device: of the process group.
    """
    largest = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return float(largest.item())


def on_rank_zero(act: Callable[[], object]) -> str | None:
    """Let rank zero act while the others wait; every rank must call.

    Args:
        act: what a user's input or the disk may refuse.

    Returns:
        On every rank: None, or why it was refused (a ConfigError's text, an OSError's file and reason).
    """
    refusal: list[object] = [None]
    if dist.get_rank() == 0:
        try:
            act()
        except ConfigError as error:
            refusal = [str(error)]
        except OSError as error:
            refusal = [f"{error.filename}: {error.strerror}"]
    dist.broadcast_object_list(refusal, src=0)
    return None if refusal[0] is None else str(refusal[0])


def free_port() -> int:
    """Return a port of this host that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
