"""Two runs cannot have one folder."""

from __future__ import annotations

import errno
import fcntl
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime.command import ConfigError
from runtime.lock import only_one

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).parent.parent.parent
HOLD = """
import sys, time
from pathlib import Path
from runtime.lock import only_one
with only_one(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(50)
"""


def holder(folder: Path) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_run_is_refused_until_the_first_is_gone_however_it_ends(tmp_path, caplog):
    first = holder(tmp_path)
    try:
        with (
            caplog.at_level(logging.INFO),
            pytest.raises(ConfigError, match=r"another process trains in it still, after 0\.3 s"),
            only_one(tmp_path, 0.3),
        ):
            pass
        assert [record.message for record in caplog.records] == [
            f"{tmp_path}: another process trains in it; waiting for it to end"
        ]
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    began = time.monotonic()
    with only_one(tmp_path, 5):
        pass
    assert time.monotonic() - began < 4
    assert list(tmp_path.iterdir()) == []


def test_it_is_let_go_of_at_the_end(tmp_path):
    with only_one(tmp_path), pytest.raises(ConfigError), only_one(tmp_path, 0.0):
        pass
    with only_one(tmp_path, 0.0):
        pass


def test_without_locks_there_is_a_warning(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with only_one(tmp_path):
        pass
    assert "its file system has no locks" in caplog.text
