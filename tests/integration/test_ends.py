"""How a run ends before its last step: exit codes, what is left, and that it goes on from there."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.integration.launching import losses, metrics, wait_for
from tests.integration.test_chaos import of_run

pytestmark = [pytest.mark.slow, pytest.mark.distributed, pytest.mark.timeout(400)]

LARGE = ("model.hidden_size=256", "model.num_hidden_layers=4", "model.intermediate_size=1024")
SETTINGS = [
    part
    for setting in (*LARGE, "training.steps=40", "checkpoint.interval_steps=15", "evaluation.interval_steps=0")
    for part in ("--set", setting)
]


def wait_for_step(run_dir, step: int) -> None:
    wait_for(lambda: (run_dir / "metrics.jsonl").is_file() and len(metrics(run_dir)) >= step)


def test_a_signal_to_one_rank_and_the_end_of_the_time_save_and_exit_75(launcher, ds_config_path, tmp_path):
    """All go on bit for bit: 40 steps in four starts equal 40 in one."""
    ds_config, whole, run = ds_config_path(1, "fp32"), tmp_path / "whole", tmp_path / "run"
    assert launcher.run(2, ds_config, whole, *SETTINGS).code == 0

    with launcher.started(2, ds_config, run, *SETTINGS) as (process, output):
        wait_for_step(run, 3)
        os.kill(max(of_run(run)["rank"]), signal.SIGUSR1)
        assert process.wait(timeout=60) == 75, output.read_text(encoding="utf-8")
    text = output.read_text(encoding="utf-8")
    assert "stopped by SIGUSR1 after step" in text
    first = int((run / "checkpoints" / "latest").read_text()[5:])
    assert 3 <= first < 15

    began = time.monotonic()
    # Ctrl-C reaches the launcher as well, which passes a signal of its own on: no second wish.
    with launcher.started(2, ds_config, run, *SETTINGS) as (process, output):
        wait_for_step(run, first + 3)
        os.killpg(process.pid, signal.SIGINT)
        wait_for(lambda: not any(of_run(run).values()))
    assert "stopped by SIG" in output.read_text(encoding="utf-8")
    second = int((run / "checkpoints" / "latest").read_text()[5:])
    assert first + 3 <= second < 40

    ended = launcher.run(2, ds_config, run, *SETTINGS, "--max-seconds", "12")
    assert ended.code == 75, ended.output
    assert time.monotonic() - began < 60
    assert "stopped by --max-seconds after step" in ended.output
    assert second < int((run / "checkpoints" / "latest").read_text()[5:]) < 40

    ended = launcher.run(2, ds_config, run, *SETTINGS)
    assert ended.code == 0, ended.output
    assert losses(run) == losses(whole)


def test_a_rank_that_hangs_is_named_and_one_that_dies_ends_the_run(launcher, ds_config_path, tmp_path):
    """Case R3: the launcher's exit code is not 0, and nothing is left running."""
    ds_config, run = ds_config_path(2, "fp32"), tmp_path / "run"
    with launcher.started(2, ds_config, run, *SETTINGS, "--set", "training.hang_seconds=5") as (process, output):
        wait_for_step(run, 3)
        second = max(of_run(run)["rank"])
        os.kill(second, signal.SIGSTOP)
        wait_for(lambda: "no step for" in output.read_text(encoding="utf-8"), seconds=40)
        os.kill(second, signal.SIGCONT)
        assert process.wait(timeout=60) not in (0, 75)
    text = output.read_text(encoding="utf-8")
    assert "furthest behind first: rank " in text
    assert not any(of_run(run).values())

    # Rank 0 keeps the list of all; and this one is not set going again.
    with launcher.started(2, ds_config, run, *SETTINGS, "--set", "training.hang_seconds=5") as (process, output):
        wait_for(lambda: "starting from scratch" in output.read_text(encoding="utf-8"))
        time.sleep(2)
        os.kill(min(of_run(run)["rank"]), signal.SIGSTOP)
        assert process.wait(timeout=90) not in (0, 75)
    assert "rank 0" in output.read_text(encoding="utf-8")
    assert "no step for" in output.read_text(encoding="utf-8")
    assert not any(of_run(run).values())

    with launcher.started(2, ds_config, run, *SETTINGS) as (process, output):
        wait_for(lambda: len(of_run(run)["rank"]) == 2)
        wait_for(lambda: "starting from scratch" in output.read_text(encoding="utf-8"))
        os.kill(max(of_run(run)["rank"]), signal.SIGKILL)
        assert process.wait(timeout=90) not in (0, 75)
    assert not any(of_run(run).values())


def test_the_newest_whole_checkpoint_is_found_and_the_broken_kept(launcher, ds_config_path, tmp_path):
    """Truncated, missing, a bit flipped: each time the next older one, and at the end the undisturbed run's losses."""
    ds_config, whole, run = ds_config_path(2, "fp32"), tmp_path / "whole", tmp_path / "run"
    more = ["--set", "checkpoint.interval_steps=5", "--set", "checkpoint.keep_last=9"]
    assert launcher.run(2, ds_config, whole, *SETTINGS, *more).code == 0
    assert launcher.run(2, ds_config, run, *SETTINGS, *more, "--set", "training.steps=40").code == 0
    folder = run / "checkpoints"
    truncated, missing, flipped = (folder / f"step_{step:08d}" for step in (40, 35, 30))
    model = "mp_rank_00_model_states.pt"
    (truncated / model).write_bytes((truncated / model).read_bytes()[:-100])
    next(missing.glob("zero_pp_rank_1_*")).unlink()
    data = bytearray((flipped / model).read_bytes())
    data[len(data) // 2] ^= 1
    (flipped / model).write_bytes(data)

    ended = launcher.run(2, ds_config, run, *SETTINGS, *more)
    assert ended.code == 0, ended.output
    assert "step 25 of 40" in ended.output
    for step, reason in ((40, "bytes long"), (35, "missing"), (30, "its sha256 is not that of checkpoint.json")):
        assert (folder / f"broken_step_{step:08d}").is_dir()
        assert reason in ended.output
    assert losses(run) == losses(whole)
