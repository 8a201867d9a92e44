"""A run that is killed again and again, at any moment and by any of its processes, is the run that nobody disturbed."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.ancestors import parent_of
from tests.integration.launching import ROOT, Launcher, kill_group, losses

pytestmark = [pytest.mark.slow, pytest.mark.distributed, pytest.mark.timeout(1200)]

STEPS, SAVE_EVERY, KILLS = 200, 10, 20
SETTINGS = {
    "training.steps": STEPS,
    "checkpoint.interval_steps": SAVE_EVERY,
    "evaluation.interval_steps": 0,
    # Large enough that a step outlasts the polls below.
    "model.hidden_size": 256,
    "model.num_hidden_layers": 4,
    "model.intermediate_size": 1024,
}


def settings(**changes: object) -> list[str]:
    """Return the arguments that make the recipe the chaos run's."""
    return [part for key, value in (SETTINGS | changes).items() for part in ("--set", f"{key}={value}")]


def processes() -> dict[int, str]:
    """Return every process of this machine with its command line."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found[int(path.parent.name)] = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def of_run(run_dir: Path) -> dict[str, list[int]]:
    """Return the processes of a run: `deepspeed` itself, its launcher on this host, the ranks."""
    found: dict[str, list[int]] = {"deepspeed": [], "launcher": [], "rank": []}
    for pid, command in processes().items():
        if str(run_dir) not in command:
            continue
        if "deepspeed.launcher.launch" in command:
            found["launcher"].append(pid)
        elif "--local_rank" in command:
            found["rank"].append(pid)
        elif "bin/deepspeed" in command:
            found["deepspeed"].append(pid)
    return found


@contextlib.contextmanager
def started(launcher: Launcher, log: Path, *arguments: object) -> Iterator[subprocess.Popen]:
    """Start a run; what it leaves running when it ends is its own to end, and killed only when the test is over."""
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            launcher.command(*arguments),
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=os.environ | {"WANDB_API_KEY": "", "NETRC": "/nonexistent"},
            start_new_session=True,
        )
        try:
            yield process
        except BaseException:
            kill_group(process)
            raise


def last_step(run_dir: Path) -> int:
    """Return the last step that metrics.jsonl has."""
    if not (run_dir / "metrics.jsonl").is_file():
        return 0
    steps = re.findall(r'"step": (\d+)', (run_dir / "metrics.jsonl").read_text(encoding="utf-8"))
    return int(steps[-1]) if steps else 0


def saved_step(run_dir: Path) -> int:
    """Return the step of the newest checkpoint."""
    latest = run_dir / "checkpoints" / "latest"
    return int(latest.read_text()[5:]) if latest.is_file() else 0


def files_of(run_dir: Path) -> set[str]:
    return {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file()}


def wait_until_ended(process: subprocess.Popen, run_dir: Path, seconds: float) -> None:
    """Wait until nothing of a run is left, without doing anything for it."""
    end = time.monotonic() + seconds
    while process.poll() is None or any(of_run(run_dir).values()):
        assert time.monotonic() < end, f"still there after {seconds} s: {of_run(run_dir)}"
        time.sleep(0.05)


def kill_one(random_: random.Random, run_dir: Path, process: subprocess.Popen, step: int) -> str | None:
    """Wait for a step, and a moment more, and kill one process of the run; None: it had ended before."""
    end = time.monotonic() + 120
    while len(of_run(run_dir)["rank"]) < 2 or last_step(run_dir) < step:
        assert time.monotonic() < end
        if process.poll() is not None:
            return None
        time.sleep(0.005)
    time.sleep(random_.uniform(0.0, 0.2))
    kind = random_.choice(["rank", "rank", "rank", "launcher", "deepspeed"])
    victims = of_run(run_dir)[kind]
    if not victims:
        return None
    os.kill(random_.choice(victims), signal.SIGKILL)
    return kind


def test_twenty_kills_change_nothing(launcher, ds_config_path, tmp_path):
    """Bit for bit the losses of the undisturbed run, no step lost beyond the last save, no file and no process left."""
    random_ = random.Random(20)
    ds_config, whole, broken = ds_config_path(1, "fp32"), tmp_path / "whole", tmp_path / "broken"
    assert launcher.run(2, ds_config, whole, *settings()).code == 0
    killed, resumed = [], []
    log = tmp_path / "broken.log"
    for kill in range(KILLS):
        saved = saved_step(broken)
        # Some are killed while starting, most between two saves or while saving; there must be steps left for all.
        targets = [step for step in range(saved + 1, saved + 12) if step <= (STEPS - 20) * (kill + 1) // KILLS]
        target = random_.choice(targets) if targets and random_.random() < 0.85 else 0
        with started(launcher, log, 2, ds_config, broken, *settings()) as process:
            if target == 0:
                time.sleep(random_.uniform(0.0, 3.0))
            killed.append(kill_one(random_, broken, process, target))
            wait_until_ended(process, broken, seconds=90)
        reached = last_step(broken)
        resumed.append(reached - saved_step(broken))
        assert killed[-1] is not None, log.read_text(encoding="utf-8")
        assert reached < STEPS
    ended = launcher.run(2, ds_config, broken, *settings())
    assert ended.code == 0, ended.output
    assert {"rank", "launcher", "deepspeed"} <= set(killed)
    assert max(resumed) <= SAVE_EVERY
    assert losses(broken) == losses(whole)
    assert [step for step, _, _ in losses(broken)] == list(range(1, STEPS + 1))
    assert files_of(broken) == files_of(whole)
    assert not any(of_run(broken).values())


def test_the_processes_of_a_run_are_told_apart():
    """The helpers above see this very process."""
    assert os.getpid() in processes()
    assert parent_of(os.getpid()) in processes()
