"""Memory that is freed and taken again costs no page faults once it is kept."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pretrain.host_memory import keep_freed_memory

PIECE_BYTES = 64 << 20
ROUNDS = 8
WARM_UP = 40
"""Small pieces that are taken in between split large ones that were freed, until there are enough of them."""
PROGRAM = f"""
import resource, sys
import torch
from pretrain.host_memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use():
    torch.empty({PIECE_BYTES}, dtype=torch.uint8).fill_(1)

assert "keep" not in sys.argv or keep_freed_memory()
for _ in range({WARM_UP}):
    use()
before = faults()
for _ in range({ROUNDS}):
    use()
print(faults() - before)
"""


def faults(*arguments: str) -> int:
    """Return the page faults of `ROUNDS` uses of `PIECE_BYTES`, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted on Linux")
def test_what_was_freed_is_taken_again_without_page_faults():
    # one of 2 MiB at the most, so 32 for each use
    assert faults() >= ROUNDS * PIECE_BYTES >> 21
    assert faults("keep") < ROUNDS * PIECE_BYTES >> 23


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr("platform.libc_ver", lambda: ("musl", "1.2"))
    monkeypatch.setattr("ctypes.CDLL", lambda _: pytest.fail("was asked"))
    assert keep_freed_memory() is False
