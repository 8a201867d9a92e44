"""Tasks on the processes of this machine.

datatrove's own local executor hands its tasks to a pool that waits for ever when one of its processes is killed. Here
each worker has a pipe to the parent, which knows at any time who does what:

    parent                                  worker (a fresh interpreter)
    take a task, send its number    ───▶    run it; datatrove writes its completion marker
    note that it is done            ◀───    answer None, or what it raised
    nothing left: send None         ───▶    end

    pipe at its end, no answer: the worker died; its task alone goes to a new one
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep

from tokenization.tasks.task_queue import TaskQueue, attempt, describe_exit, run_fresh, save_summary

ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Environment of a worker that has others beside it: without it each would start a thread for every core."""

_POLL_SECONDS = 1.0
_END_SECONDS = 10.0


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    rank: int
    """The task it works at."""


class LocalWorkers(LocalPipelineExecutor):  # type: ignore[misc]  # datatrove has no types
    """datatrove's local executor with workers that may die.

    Args:
        name: the stage, for messages.
        step: what a task does; its class can be imported by name.
        tasks: number of tasks.
        workers: processes; with 1, tasks run one after the other in this process.
        logging_dir: folder of logs and completion markers.
    """

    def __init__(self, name: str, step: PipelineStep, tasks: int, workers: int, logging_dir: Path) -> None:
        super().__init__(pipeline=[step], tasks=tasks, workers=workers, logging_dir=str(logging_dir))
        self.name = name

    save_executor_as_json = save_summary

    def run(self, on_done: Callable[[int], None] = lambda rank: None) -> None:
        """Run the tasks that have no completion marker.

        Args:
            on_done: called with the number of each task that has ended well.

        Raises:
            TaskError: the worker of a task died three times, or a task raised an error that can't be pickled.
            KeyboardInterrupt: no worker is left.
            Exception: what the lowest of the failed tasks raised; the others that were running have finished.
        """
        ranks = self.get_incomplete_ranks()
        if not ranks:
            return
        self.save_executor_as_json()
        if self.workers > 1:
            self._run_in_workers(TaskQueue(self.name, ranks), on_done)
            return
        for rank in ranks:
            run_fresh(self, rank)
            on_done(rank)

    def _run_in_workers(self, queue: TaskQueue, on_done: Callable[[int], None]) -> None:
        job = pickle.dumps(self)
        ensure_running()  # the first worker would do it, and let Ctrl-C through again
        crew: list[_Worker] = []
        try:
            while self._fill(crew, queue, job):
                # The pipe of a dead worker is readable, at its end, but for one that left children which hold it open.
                wait([worker.pipe for worker in crew], timeout=_POLL_SECONDS)
                for worker in crew:
                    if worker.pipe.poll() or worker.process.exitcode is not None:
                        _listen(worker, crew, queue, on_done)
        finally:
            _kill(crew)
        queue.finish()

    def _fill(self, crew: list[_Worker], queue: TaskQueue, job: bytes) -> list[_Worker]:
        """Start workers until there are enough of them or no task is left."""
        while len(crew) < self.workers and (rank := queue.take()) is not None:
            with _uninterrupted():
                crew.append(_start(job, rank))
        return crew


def _listen(worker: _Worker, crew: list[_Worker], queue: TaskQueue, on_done: Callable[[int], None]) -> None:
    """Take a worker's answer and give it the next task, or note that it died."""
    rank = worker.rank
    try:
        if not worker.pipe.poll():
            raise EOFError
        failure = worker.pipe.recv()
    except (EOFError, OSError):  # at its end, also in the middle of an answer
        crew.remove(worker)
        queue.died(rank, describe_exit(_end(worker)))
        return
    if failure is not None:
        queue.failed(rank, *failure)
    following = queue.take()
    if following is None:
        crew.remove(worker)
    else:
        worker.rank = following
    with contextlib.suppress(BrokenPipeError):  # it died since; the next look at it says so
        worker.pipe.send(following)
    if following is None:
        _end(worker)
    if failure is None:
        on_done(rank)


def _start(job: bytes, rank: int) -> _Worker:
    """Start a worker on a task."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(job, theirs), daemon=True)
    with _environment(ONE_THREAD):
        process.start()
    theirs.close()
    with contextlib.suppress(BrokenPipeError):
        ours.send(rank)
    return _Worker(process, ours, rank)


def _end(worker: _Worker) -> int | None:
    """Wait for a worker that has nothing to do any more, and return its exit code."""
    worker.process.join(_END_SECONDS)
    _kill([worker])
    return worker.process.exitcode


def _kill(crew: list[_Worker]) -> None:
    """End workers at once, and return when they are gone."""
    with _uninterrupted():
        for worker in crew:
            worker.process.kill()
        for worker in crew:
            worker.process.join()
            worker.pipe.close()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back for a moment.

    A process started meanwhile never hears of it: the terminal sends it to all of them, and it is the parent that ends
    its workers.
    """
    held: list[int] = []
    # The mask is what a child inherits. It does not protect the parent: a thread of some library may take the signal,
    # whose handler Python then runs in the main thread.
    handler = signal.getsignal(signal.SIGINT)
    is_handled_here = handler is not None and threading.current_thread() is threading.main_thread()
    if is_handled_here:
        signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if is_handled_here:
            signal.signal(signal.SIGINT, handler)
        if held:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _work(job: bytes, pipe: Connection) -> None:
    """Be a worker: run the tasks that come through the pipe until there are no more.

    Args:
        job: the pickled executor.
        pipe: gives the numbers of tasks, takes a `Failure` or None for each.
    """
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError):  # the parent is gone
        while (rank := pipe.recv()) is not None:
            pipe.send(attempt(pickle.loads(job), rank))


def _die_with_parent() -> None:
    """End this process when its parent does, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
