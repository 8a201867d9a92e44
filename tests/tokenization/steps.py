"""A datatrove step for the tests of executors: a module of its own, so that processes can import it by name.

python -m tests.tokenization.steps WORK_DIR WORKERS FAULT...     runs one stage of it, as a command would
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from datatrove.pipeline.base import PipelineStep

from runtime.command import ConfigError, run_command
from tokenization.tasks.executors import Stage, run_local

NUM_TASKS = 6

logger = logging.getLogger(__name__)


class TinyStep(PipelineStep):
    """Writes `out/<rank>.txt`; appends a line to `runs/<rank>` each time a task begins.

    Args:
        work_dir: holds both folders.
        faults: by rank, what else a task does: "pause" (0.5 s), "nap" (3 s), "sleep" (30 s the first time),
            "kill-once", "kill", "exit", "refuse" (ConfigError), "refuse-once", "unpicklable", "break" (KeyError).
        text: what it writes.
    """

    name = "tiny"
    type = "test"

    def __init__(self, work_dir: Path, faults: Mapping[int, str] | None = None, text: str = "text") -> None:
        super().__init__()
        self.work_dir = work_dir
        self.faults = dict(faults or {})
        self.text = text
        self.memory: list[int] = []

    def run(self, data=None, rank: int = 0, world_size: int = 1) -> None:
        self.memory.append(rank)
        for folder in ("runs", "out"):
            (self.work_dir / folder).mkdir(exist_ok=True)
        attempt = len(runs_of(self.work_dir, rank)) + 1
        with open(self.work_dir / "runs" / str(rank), "a", encoding="utf-8") as stream:
            stream.write(f"{os.getpid()} {os.environ.get('OMP_NUM_THREADS')} {self.memory}\n")
        _ACTIONS[self.faults.get(rank, "none")](attempt, rank)
        (self.work_dir / "out" / f"{rank}.txt").write_text(f"{self.text} {rank} of {world_size}", encoding="utf-8")


class UnpicklableError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def _sleep(attempt: int, rank: int) -> None:
    if attempt == 1:
        time.sleep(30)


def _kill(attempt: int, rank: int, times: float) -> None:
    if attempt <= times:
        os.kill(os.getpid(), signal.SIGKILL)


def _refuse(attempt: int, rank: int, times: float) -> None:
    if attempt <= times:
        raise ConfigError(f"corpus.txt: task {rank} is refused")


def _break(attempt: int, rank: int) -> None:
    raise KeyError(f"task {rank} is broken")


def _unpicklable(attempt: int, rank: int) -> None:
    raise UnpicklableError(1, 2)


_ALWAYS = float("inf")
_ACTIONS: dict[str, Callable[[int, int], None]] = {
    "none": lambda attempt, rank: None,
    "pause": lambda attempt, rank: time.sleep(0.5),
    "nap": lambda attempt, rank: time.sleep(3),
    "sleep": _sleep,
    "kill-once": partial(_kill, times=1),
    "kill": partial(_kill, times=_ALWAYS),
    "exit": lambda attempt, rank: os._exit(3),
    "refuse": partial(_refuse, times=_ALWAYS),
    "refuse-once": partial(_refuse, times=1),
    "break": _break,
    "unpicklable": _unpicklable,
}


def runs_of(work_dir: Path, rank: int) -> list[str]:
    """One line for each time a task began: process, OMP_NUM_THREADS, the tasks that its step remembers."""
    path = work_dir / "runs" / str(rank)
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def run_counts(work_dir: Path, num_tasks: int = NUM_TASKS) -> list[int]:
    return [len(runs_of(work_dir, rank)) for rank in range(num_tasks)]


def outputs(work_dir: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted((work_dir / "out").glob("*"))}


def make_stage(work_dir: Path, faults: Mapping[int, str] | None = None, num_tasks: int = NUM_TASKS, **changes) -> Stage:
    work_dir.mkdir(exist_ok=True)
    name = changes.pop("name", "tiny")
    return Stage(
        name=name,
        step=TinyStep(work_dir, faults, **changes),
        identities=tuple(f"identity {rank}" for rank in range(num_tasks)),
        weights=tuple(1000 + rank for rank in range(num_tasks)),
    )


def expected(num_tasks: int = NUM_TASKS) -> dict[str, str]:
    return {f"{rank}.txt": f"text {rank} of {num_tasks}" for rank in range(num_tasks)}


EXPECTED = expected()


def main(argv=None) -> int:
    work_dir, workers, *faults = argv or sys.argv[1:]
    pairs = [text.split("=") for text in faults]
    stage = make_stage(Path(work_dir), {int(rank): fault for rank, fault in pairs})
    run_local([stage], Path(work_dir), int(workers))
    return 0


if __name__ == "__main__":
    run_command(main, "tiny")
