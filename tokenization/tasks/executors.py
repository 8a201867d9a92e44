"""Runs stages of tasks on datatrove's executors: processes of this machine, a Ray cluster, Slurm.

A stage is a step and a number of tasks. datatrove leaves a marker for each task that has ended well, so that a second
run does only what is missing, whichever executor it takes:

    <work_dir>/logs/<stage>/completions/00000      task 0 is done
    <work_dir>/logs/<stage>/identities.json        what the markers are worth: what each task's result depends on
    <work_dir>/logs/<stage>/logs, stats            datatrove's own
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from datatrove.pipeline.base import PipelineStep

from runtime.command import ConfigError
from runtime.files import read_json, write_json
from runtime.progress import Progress
from tokenization.tasks.local_workers import LocalWorkers
from tokenization.tasks.ray_tasks import RayTasks, ray_cluster
from tokenization.tasks.slurm_tasks import SlurmTasks, check_sbatch, check_slurm_options

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """Tasks that can run in any order and at the same time.

    Args:
        name: folder of its logs and completion markers.
        step: what a task does; its class can be imported by name.
        identities: one a task: what the task's result depends on.
        weights: one a task: bytes of text in it, for progress.
    """

    name: str
    step: PipelineStep
    identities: tuple[str, ...]
    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.identities) != len(self.weights):
            raise ValueError(f"{self.name}: {len(self.identities)} identities, {len(self.weights)} weights")

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.weights)

    def logging_dir(self, work_dir: Path) -> Path:
        """Return the folder of its logs and completion markers; absolute, for processes that start elsewhere."""
        return work_dir.absolute() / "logs" / self.name


class _HandsOutTasks(Protocol):
    def get_incomplete_ranks(self) -> list[int]: ...

    def run(self, on_done: Callable[[int], None]) -> None: ...


MakeProgress = Callable[..., Progress]


def forget_stale(stage: Stage, work_dir: Path, is_reusable: Callable[[int], bool] = lambda rank: True) -> None:
    """Remove the completion markers that are worth nothing any more, so that their tasks run again.

    Args:
        stage: the stage as it is now.
        work_dir: folder of all stages' work.
        is_reusable: whether what a finished task left is still there and whole.
    """
    folder = stage.logging_dir(work_dir)
    identities_path = folder / "identities.json"
    before = _read_identities(identities_path)
    markers = [path for path in (folder / "completions").glob("*") if path.name.isdecimal()]
    for marker in sorted(markers):
        rank = int(marker.name)
        is_current = rank < stage.num_tasks and before.get(rank) == stage.identities[rank]
        if not (is_current and is_reusable(rank)):
            marker.unlink()
    # After the markers: a crash in between leaves the old identities, which fit the markers that are left.
    folder.mkdir(parents=True, exist_ok=True)
    write_json(identities_path, stage.identities)


def run_local(stages: Sequence[Stage], work_dir: Path, workers: int, progress: MakeProgress = Progress) -> None:
    """Run stages one after the other on processes of this machine.

    Args:
        stages: in order; each may read what those before it wrote.
        work_dir: folder of all stages' work.
        workers: processes; with 1, all is done in this process.
        progress: makes what shows the progress of a stage.

    Raises:
        TaskError: the worker of a task died three times.
        Exception: what the lowest of the failed tasks of a stage raised.
    """
    for stage in stages:
        folder = stage.logging_dir(work_dir)
        _run(stage, LocalWorkers(stage.name, stage.step, stage.num_tasks, workers, folder), progress)


def run_ray(
    stages: Sequence[Stage],
    work_dir: Path,
    workers: int,
    address: str | None = None,
    progress: MakeProgress = Progress,
) -> None:
    """Run stages one after the other on a Ray cluster.

    Args:
        stages: in order; each may read what those before it wrote.
        work_dir: folder of all stages' work, on a file system that all machines of the cluster share.
        workers: tasks at the same time, one CPU each.
        address: of a running cluster, or "auto"; None: a cluster of this machine alone, for this run alone.
        progress: makes what shows the progress of a stage.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address.
        TaskError: the process of a task was lost three times.
        Exception: what the lowest of the failed tasks of a stage raised.
    """
    with ray_cluster(workers, address):
        for stage in stages:
            folder = stage.logging_dir(work_dir)
            _run(stage, RayTasks(stage.name, stage.step, stage.num_tasks, workers, folder), progress)


def submit_slurm(
    stages: Sequence[Stage],
    work_dir: Path,
    workers: int,
    options: Mapping[str, str],
    finish: Sequence[str] = (),
) -> list[str]:
    """Submit stages to Slurm, each as an array job that waits for the one before it, and return at once.

    A job that fails takes those that wait for it out of the queue; the same call again submits what is missing.

    Args:
        stages: in order; each may read what those before it wrote.
        work_dir: folder of all stages' work, on a file system that the nodes share.
        workers: tasks at the same time.
        options: see `slurm_tasks.check_slurm_options`.
        finish: program and arguments of a job behind all stages; nothing: no such job.

    Returns:
        Ids of the jobs; a stage without a missing task has none.

    Raises:
        ConfigError: an option is wrong, there is no sbatch here, or it refused a job.
    """
    settings = check_slurm_options(options)
    check_sbatch()
    jobs: list[str] = []
    for stage in stages:
        executor = SlurmTasks(
            stage.name, stage.step, stage.num_tasks, workers, stage.logging_dir(work_dir), settings, jobs[-1:]
        )
        jobs += executor.submit()
    if finish:
        jobs.append(executor.submit_command("finish", finish, jobs[-1:]))
    return jobs


def _run(stage: Stage, executor: _HandsOutTasks, progress: MakeProgress) -> None:
    missing = executor.get_incomplete_ranks()
    if not missing:
        return
    if len(missing) < stage.num_tasks:
        logger.info("%s: %d of %d tasks were done before", stage.name, stage.num_tasks - len(missing), stage.num_tasks)
    total = sum(stage.weights)
    done_before = total - sum(stage.weights[rank] for rank in missing)
    with progress(stage.name, total, start=done_before) as shown:
        executor.run(lambda rank: shown.advance(stage.weights[rank]))


def _read_identities(path: Path) -> dict[int, str]:
    """Return what the tasks of the run before depended on; a file that is not ours says nothing."""
    if not path.exists():
        return {}
    try:
        value = read_json(path)
    except ConfigError as error:
        logger.warning("%s; all tasks of this stage run again", error)
        return {}
    return dict(enumerate(value)) if isinstance(value, list) else {}
