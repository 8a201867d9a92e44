"""One process group for every test that needs one: DeepSpeed keeps its groups for the life of a process."""

from __future__ import annotations

import os
import sys
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


@pytest.fixture(scope="module")
def one_rank(device: torch.device) -> Iterator[torch.device]:
    """What `build_engine` needs around it: the group, and a launcher's environment."""
    import deepspeed

    values = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with pytest.MonkeyPatch.context() as patch:
        # A shared-memory collective that DeepSpeed would compile for a minute; one process has no use for it.
        # (By name, as `deepspeed.comm.torch` is torch itself.)
        patch.setattr(sys.modules[f"{deepspeed.__name__}.comm.torch"], "build_shm_op", lambda: None)
        for name, value in values.items():
            patch.setenv(name, value)
        yield device
