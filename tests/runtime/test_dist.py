"""Who a process is among the others, and the process group (two real gloo processes)."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from runtime.dist import (
    World,
    add_local_rank_argument,
    barrier,
    max_over_ranks,
    process_group,
    sum_over_ranks,
    world_from_environment,
)

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        # Set first, so that what process_group sets is taken back too.
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)


def _local_rank(*argv: str) -> int | None:
    parser = argparse.ArgumentParser()
    add_local_rank_argument(parser)
    return parser.parse_args(argv).local_rank


def test_both_spellings_of_the_launchers_argument():
    assert _local_rank("--local_rank=3") == 3
    assert _local_rank("--local-rank=3") == 3
    assert _local_rank("--local_rank", "2") == 2
    assert _local_rank("--local-rank", "2") == 2
    assert _local_rank() is None


def test_the_argument_is_not_in_the_help():
    parser = argparse.ArgumentParser()
    add_local_rank_argument(parser)
    assert "local" not in parser.format_help()


def test_without_a_launcher_a_world_of_one():
    assert world_from_environment() == World(rank=0, local_rank=0, size=1)


def test_the_argument_counts_where_the_environment_is_silent():
    assert world_from_environment(3).local_rank == 3


def test_the_environment_is_preferred(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert world_from_environment(3) == World(rank=5, local_rank=1, size=8)
    monkeypatch.setenv("LOCAL_RANK", "0")  # 0 is a rank, not a missing one
    assert world_from_environment(3).local_rank == 0


def test_who_writes():
    assert World(0, 0, 4).is_rank_zero
    assert not World(2, 0, 4).is_rank_zero
    assert World(2, 0, 4).is_first_of_host
    assert not World(1, 1, 4).is_first_of_host


def _work_on_rank(rank: int, ports: tuple[int, int], out: str) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ports[0])
    )
    world = world_from_environment()
    with process_group(world) as device:
        values = torch.tensor([1.0, 10.0], device=device) * (rank + 1)
        total = sum_over_ranks(values)
        lines = [
            f"sum {total.tolist()} in place {total is values}",
            f"largest {max_over_ranks(5.0 - rank, device)}",
        ]
        barrier()
    lines.append(f"joined {dist.is_initialized()}")
    os.environ["MASTER_PORT"] = str(ports[1])
    try:
        with process_group(world):
            raise KeyError("work failed")
    except KeyError:
        lines.append(f"joined after an error {dist.is_initialized()}")
    Path(out, f"rank{rank}").write_text("\n".join(lines))


def _work_alone(_: int, out: str) -> None:
    with process_group(world_from_environment()) as device:  # no launcher, no address
        total = sum_over_ranks(torch.ones(1, device=device)).item()
        lines = [f"sum {total}", *(f"{name}={os.environ[name]}" for name in NAMES[:4])]
    Path(out, "alone").write_text("\n".join(lines))


def _join(context: torch.multiprocessing.ProcessContext) -> None:
    try:
        for _ in range(600):
            if context.join(timeout=0.1):
                return
        pytest.fail("a process is stuck in a collective")
    finally:
        for process in context.processes:
            process.kill()


@pytest.mark.distributed
@pytest.mark.timeout(90)
def test_process_group(tmp_path: Path):
    """Two ranks at once with one alone, which must not meet them."""
    from runtime.dist import free_port

    spawn = torch.multiprocessing.spawn
    pair = spawn(_work_on_rank, args=((free_port(), free_port()), str(tmp_path)), nprocs=2, join=False)
    alone = spawn(_work_alone, args=(str(tmp_path),), nprocs=1, join=False)
    _join(pair)
    _join(alone)
    for rank in range(2):
        assert (tmp_path / f"rank{rank}").read_text().splitlines() == [
            "sum [3.0, 30.0] in place True",
            "largest 5.0",
            "joined False",
            "joined after an error False",
        ]
    assert (tmp_path / "alone").read_text().splitlines() == [
        "sum 1.0",
        "RANK=0",
        "LOCAL_RANK=0",
        "WORLD_SIZE=1",
        "MASTER_ADDR=127.0.0.1",
    ]
