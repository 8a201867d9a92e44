"""One process group for every test that needs one: DeepSpeed keeps its groups for the life of a process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from runtime.dist import World, process_group

LAUNCHER_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(scope="session")
def device() -> Iterator[torch.device]:
    """Device of a gloo group of this process alone.

    The environment is as before inside: a process that a test starts must not take itself for a part of this group.
    """
    before = {name: os.environ.pop(name, None) for name in LAUNCHER_NAMES}
    with process_group(World(rank=0, local_rank=0, size=1)) as device:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        torch.set_num_threads(1)  # on tensors as small as a test's, threads wait for each other
        yield device
