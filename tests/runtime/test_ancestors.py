"""A process learns that its launcher is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime.ancestors import ancestors, parent_of

pytestmark = pytest.mark.timeout(60)

CHAIN = """
import subprocess, sys, time
from pathlib import Path
level, out = int(sys.argv[2]), Path(sys.argv[3])
if level == 0:
    from runtime.ancestors import watch_ancestors
    watch_ancestors(poll_seconds=0.05)
    out.joinpath("ready").write_text("")
    time.sleep(50)
else:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[1], str(level - 1), str(out)])
    out.joinpath(str(level - 1)).write_text(str(child.pid))
    child.wait()
"""


def test_parents_by_number():
    assert parent_of(os.getpid()) == os.getppid()
    assert ancestors(2)[0] == os.getppid()
    assert len(ancestors(1)) == 1


def wait_until(condition, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("killed", [1, 2])
def test_a_rank_ends_when_a_launcher_is_killed(tmp_path, killed):
    """Level 2 starts 1, which starts 0: the rank. Neither launcher tells the other."""
    root = Path(__file__).parent.parent.parent
    top = subprocess.Popen([sys.executable, "-c", CHAIN, CHAIN, "2", str(tmp_path)], cwd=root, start_new_session=True)
    try:
        wait_until((tmp_path / "ready").exists)
        pids = {2: top.pid, **{level: int((tmp_path / str(level)).read_text()) for level in (0, 1)}}
        time.sleep(0.3)
        assert not is_gone(pids[0])
        os.kill(pids[killed], signal.SIGKILL)
        wait_until(lambda: is_gone(pids[0]), seconds=10)
    finally:
        os.killpg(top.pid, signal.SIGKILL)
        top.wait()
