"""Starting the real launcher, with a time limit of its own and everything ended at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DEEPSPEED = Path(sys.executable).with_name("deepspeed")


@dataclass(frozen=True)
class Ended:
    code: int
    output: str


class Launcher:
    """`deepspeed --num_gpus N --module pretrain.train …` as users start it."""

    def __init__(self, recipe: Path, log_dir: Path) -> None:
        self._recipe = recipe
        self._log_dir = log_dir

    def command(self, num_processes: int, ds_config: Path, run_dir: Path, *arguments: str) -> list[str]:
        return [
            *(str(DEEPSPEED), "--num_gpus", str(num_processes), "--master_port", str(free_port())),
            *("--module", "pretrain.train", "--recipe", str(self._recipe), "--deepspeed_config", str(ds_config)),
            *("--run-dir", str(run_dir), *arguments),
        ]

    def run(self, num_processes: int, ds_config: Path, run_dir: Path, *arguments: str, seconds: float = 200) -> Ended:
        with self.started(num_processes, ds_config, run_dir, *arguments) as (process, output):
            code = process.wait(timeout=seconds)
        return Ended(code, output.read_text(encoding="utf-8"))

    @contextlib.contextmanager
    def started(self, num_processes: int, ds_config: Path, run_dir: Path, *arguments: str):
        output = self._log_dir / f"{len(list(self._log_dir.iterdir()))}.log"
        command = self.command(num_processes, ds_config, run_dir, *arguments)
        port = command[command.index("--master_port") + 1]
        with output.open("w", encoding="utf-8") as stream:
            process = subprocess.Popen(
                command,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=os.environ | {"WANDB_API_KEY": "", "NETRC": "/nonexistent"},
                start_new_session=True,
            )
            try:
                yield process, output
            finally:
                kill_group(process)
        # DeepSpeed's buffers are 66 MiB a rank, and stay in memory for as long as they have a name.
        assert not list(Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"))


def kill_group(process: subprocess.Popen) -> None:
    """Send SIGKILL to the launcher and to all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


def metrics(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def losses(run_dir: Path) -> list[tuple[int, float, float]]:
    """Return step, MLM loss and NSP loss of every logged training step."""
    return [
        (entry["step"], entry["train/mlm_loss"], entry["train/nsp_loss"])
        for entry in metrics(run_dir)
        if "train/loss" in entry
    ]
