from __future__ import annotations

import os
import sys
import time

from pretrain.engine.build_lock import PATIENCE_SECONDS, build_dir, named_build_locks


def test_a_lock_that_is_waited_for_is_named(tmp_path, monkeypatch, caplog):
    """Case O3: said within a minute, with the file."""
    assert PATIENCE_SECONDS < 60
    lock = tmp_path / "py311_cpu" / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (time.time() - 600, time.time() - 600))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    with named_build_locks(patience_seconds=0.05):
        time.sleep(0.5)
    assert f"{lock} (10 min old)" in caplog.text
    assert "remove that file" in caplog.text


def test_a_quick_start_says_nothing(tmp_path, monkeypatch, caplog):
    (tmp_path / "lock").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    with named_build_locks(patience_seconds=0.2):
        pass
    time.sleep(0.4)
    assert not caplog.text


def test_each_environment_has_its_own_builds(monkeypatch, tmp_path):
    """Two environments with one folder would build it anew at every start that follows one of the other."""
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    ours = build_dir()
    with named_build_locks():
        assert os.environ["TORCH_EXTENSIONS_DIR"] == str(ours)
    monkeypatch.setattr(sys, "prefix", "/another/.venv")
    assert build_dir() != ours
    assert build_dir().parent == ours.parent
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    with named_build_locks():
        assert os.environ["TORCH_EXTENSIONS_DIR"] == str(tmp_path)
