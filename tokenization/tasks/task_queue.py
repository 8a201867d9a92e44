"""Which tasks of a stage are still to be done, and what became of those that went wrong.

Shared by the executors that hand out tasks themselves. A task that raises ends the stage: no more are handed out, those
that run are waited for, and the error of the lowest task is the stage's. A task whose process was killed is tried
again.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import pickle
import signal
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from datatrove.executor.base import PipelineExecutor
from loguru import logger as datatrove_logger

logger = logging.getLogger(__name__)

MOST_ATTEMPTS = 3


class TaskError(RuntimeError):
    """A task has no result, for a reason other than bad input; the message names stage and task."""


class RemoteTracebackError(Exception):
    """The cause of an error that was raised in another process: its traceback as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class TaskQueue:
    """The tasks of one stage.

    Args:
        stage: name of the stage, for messages.
        ranks: tasks to be done, lowest first.
    """

    def __init__(self, stage: str, ranks: Iterable[int]) -> None:
        self._stage = stage
        self._waiting = deque(ranks)
        self._attempts: Counter[int] = Counter()
        self._failures: dict[int, Exception] = {}

    def take(self) -> int | None:
        """Return the next task and count the attempt; None: none is left, or one failed."""
        if self._failures or not self._waiting:
            return None
        rank = self._waiting.popleft()
        self._attempts[rank] += 1
        return rank

    def died(self, rank: int, how: str) -> None:
        """Note that the process of a task was lost; the task is tried again, at most 3 times in all.

        Args:
            rank: the task.
            how: what happened to the process, such as "was killed by signal 9: out of memory?".
        """
        if self._attempts[rank] < MOST_ATTEMPTS:
            logger.warning("%s: the worker of task %d %s; the task starts again", self._stage, rank, how)
            self._waiting.appendleft(rank)
        else:
            self.failed(
                rank,
                TaskError(f"{self._stage}: task {rank}: given up after {MOST_ATTEMPTS} attempts; its worker {how}"),
            )

    def failed(self, rank: int, error: Exception, trace: str = "") -> None:
        """Note what a task raised.

        Args:
            rank: the task.
            error: what it raised.
            trace: its traceback in the process of the task.
        """
        if trace:
            error.__cause__ = RemoteTracebackError(trace)
        self._failures[rank] = error

    def finish(self) -> None:
        """Raise what the lowest of the failed tasks raised, if one failed."""
        if self._failures:
            raise self._failures[min(self._failures)]


class Failure(NamedTuple):
    """What a task raised, as it can be sent to another process."""

    error: Exception
    trace: str
    """The traceback, which an error loses on its way."""


def save_summary(executor: PipelineExecutor, indent: int = 2) -> None:
    """Write what datatrove's own tools want to know of a stage, without the settings of its steps: they can be long.

    Args:
        executor: the stage's.
        indent: of the JSON.
    """
    summary = {"world_size": executor.world_size, "pipeline": [repr(step) for step in executor.pipeline]}
    with executor.logging_dir.open("executor.json", "w") as stream:
        json.dump(summary, stream, indent=indent)


def attempt(executor: PipelineExecutor, rank: int) -> Failure | None:
    """Run a task in this process and return what it raised.

    Args:
        executor: a copy of its own for this task; holds the steps, and the stage's `name`.
        rank: the task.
    """
    try:
        _run(executor, rank)
    except Exception as error:  # noqa: BLE001  # the parent raises it
        where = f"{executor.name}: task {rank}"
        return Failure(_portable(error, where), traceback.format_exc())
    return None


def run_fresh(executor: PipelineExecutor, rank: int) -> None:
    """Run a task in this process on a copy of the steps, so that no task sees what another left in them."""
    fresh = copy.copy(executor)
    fresh.pipeline = copy.deepcopy(executor.pipeline)
    _run(fresh, rank)


def _run(executor: PipelineExecutor, rank: int) -> None:
    with quiet_datatrove():
        executor._run_for_rank(rank, local_rank=1)


@contextlib.contextmanager
def quiet_datatrove() -> Iterator[None]:
    """Keep datatrove's reports of each task off the console; errors reach the command as exceptions."""
    datatrove_logger.disable("datatrove")
    try:
        yield
    finally:
        datatrove_logger.enable("datatrove")


def describe_exit(code: int | None) -> str:
    """Say how a process ended.

    Args:
        code: its exit code, negative for a signal; None where it is not known.
    """
    if code is None:
        return "was lost"
    if code >= 0:
        return f"ended by itself with exit code {code}"
    if code == -signal.SIGKILL:
        return f"was killed by signal {-code}: out of memory?"
    return f"was killed by signal {-code} ({signal.strsignal(-code)})"


def _portable(error: Exception, where: str) -> Exception:
    """Return an error itself, or a `TaskError` with its message where it does not survive pickling."""
    try:
        copied = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  # whatever an error's own reduction raises
        copied = None
    if type(copied) is type(error) and str(copied) == str(error):
        return error
    return TaskError(f"{where}: {type(error).__name__}: {error}")
