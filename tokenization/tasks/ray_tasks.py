"""Tasks on a Ray cluster.

datatrove's own Ray executor starts an actor with a pool of processes for every task, waits for ever when a process of
the pool is killed, and drops what a task raises. Here each task is a plain Ray task, whose process serves the next one
too.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from datatrove.executor import RayPipelineExecutor
from datatrove.executor.base import PipelineExecutor
from datatrove.pipeline.base import PipelineStep

from runtime.command import ConfigError
from tokenization.tasks.local_workers import ONE_THREAD
from tokenization.tasks.task_queue import TaskError, TaskQueue, attempt, quiet_datatrove, save_summary

_CONNECT_SECONDS = 10.0


class RayTasks(RayPipelineExecutor):  # type: ignore[misc]  # datatrove has no types
    """datatrove's Ray executor with tasks whose errors come out and whose processes may die.

    Args:
        name: the stage, for messages.
        step: what a task does; its class can be imported by name on every machine of the cluster.
        tasks: number of tasks.
        workers: tasks at the same time, one CPU each.
        logging_dir: folder of logs and completion markers, shared by all machines of the cluster.
    """

    def __init__(self, name: str, step: PipelineStep, tasks: int, workers: int, logging_dir: Path) -> None:
        with quiet_datatrove():
            super().__init__(pipeline=[step], tasks=tasks, workers=workers, logging_dir=str(logging_dir))
        self.name = name

    save_executor_as_json = save_summary

    # RayPipelineExecutor's keeps logs in a folder of /tmp that all users of a machine would share.
    _run_for_rank = PipelineExecutor._run_for_rank

    def run(self, on_done: Callable[[int], None] = lambda rank: None) -> None:
        """Run the tasks that have no completion marker; Ray is connected.

        Args:
            on_done: called with the number of each task that has ended well.

        Raises:
            TaskError: the process of a task was lost three times, or a task raised an error that can't be pickled.
            Exception: what the lowest of the failed tasks raised; the others that were running have finished.
        """
        ranks = self.get_incomplete_ranks()
        if not ranks:
            return
        self.save_executor_as_json()
        ray = _import_ray()
        queue = TaskQueue(self.name, ranks)
        job = ray.put(self)
        task = ray.remote(attempt).options(num_cpus=1, max_retries=0, name=self.name)
        running: dict[Any, int] = {}
        try:
            while True:
                while len(running) < self.workers and (rank := queue.take()) is not None:
                    running[task.remote(job, rank)] = rank
                if not running:
                    break
                for reference in ray.wait(list(running))[0]:
                    rank = running.pop(reference)
                    if _settle(ray, reference, rank, queue):
                        on_done(rank)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)
        queue.finish()


def _settle(ray: ModuleType, reference: object, rank: int, queue: TaskQueue) -> bool:
    """Take the answer of a task, and return whether it ended well."""
    try:
        failure = ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # not raised by the task but around it: what it needs is not there
        queue.failed(rank, TaskError(f"task {rank} can't run on the cluster: {error}"))
        return False
    except ray.exceptions.RayError as error:
        queue.died(rank, f"was lost: {str(error).partition(chr(10))[0]}")
        return False
    if failure is not None:
        queue.failed(rank, *failure)
    return failure is None


@contextlib.contextmanager
def ray_cluster(workers: int, address: str | None) -> Iterator[None]:
    """Connect to a Ray cluster, and leave it at the end; a connection that is there already is used and left alone.

    Args:
        workers: CPUs of a cluster that is started.
        address: of a running cluster, or "auto"; None: start one on this machine, and end it at the end.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address.
    """
    ray = _import_ray()
    if ray.is_initialized():
        yield
        return
    if address is not None:
        _check_address(address)
    started = {"num_cpus": workers, "include_dashboard": False} if address is None else {}
    try:
        ray.init(
            address=address or "local",
            logging_level=logging.WARNING,
            runtime_env={"env_vars": ONE_THREAD},
            **started,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        if address is None:
            raise
        raise ConfigError(f"--ray-address {address}: no cluster can be reached there: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse an address where nothing listens: Ray itself would try for ever.

    Raises:
        ConfigError: it is not HOST:PORT, or nothing listens there within 10 s.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdecimal():
        raise ConfigError(f"--ray-address {address}: must be HOST:PORT, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--ray-address {address}: nothing listens there: {error}") from None


def _import_ray() -> ModuleType:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ConfigError("executor ray: Ray is not installed; pip install 'zerobert[ray]'") from None
