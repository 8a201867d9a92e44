"""Tasks on Slurm: one array job a stage, whose script unpickles the executor and runs its share of the tasks.

Nothing waits for the jobs. What a task raises stands in its job's log and in `<logging_dir>/errors/<task>.json`, which
the next call reports.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from datatrove.executor import SlurmPipelineExecutor
from datatrove.executor.slurm import launch_slurm_job
from datatrove.pipeline.base import PipelineStep

from runtime.command import ConfigError
from runtime.files import read_json, write_json
from tokenization.tasks.local_workers import ONE_THREAD
from tokenization.tasks.task_queue import quiet_datatrove, save_summary

logger = logging.getLogger(__name__)

_LARGEST_ARRAY = 1000  # Slurm's own default allows 1001
_ROUNDS = 4
_TIME = re.compile(r"\d+(:\d\d){0,2}|\d+-\d\d?(:\d\d){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
_ENVIRONMENTS = ("venv_path", "env_command", "condaenv")
_OURS = ("array", "dependency", "export", "nodes", "ntasks", "job-name", "output", "error", "requeue", "wrap")
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")


@dataclass(frozen=True)
class SlurmSettings:
    """How jobs are submitted.

    Args:
        partition: Slurm partition.
        time: limit of a job, in Slurm's notation.
        cpus_per_task: CPUs of a task; more than one gives it more memory alone.
        mem_per_cpu_gb: memory for each of them, GB.
        qos: quality of service; None: that of the cluster.
        env_command: shell command that makes the environment.
        sbatch_args: anything else that sbatch takes.
    """

    partition: str
    time: str
    cpus_per_task: int
    mem_per_cpu_gb: int
    qos: str | None
    env_command: str
    sbatch_args: Mapping[str, str] = field(default_factory=dict)


def parse_slurm_options(items: Sequence[str]) -> dict[str, str]:
    """Return the options of `--slurm KEY=VALUE...`.

    Args:
        items: as they were written; an argument of sbatch without a value may be the key alone.

    Raises:
        ConfigError: a key is missing or stands there twice.
    """
    options: dict[str, str] = {}
    for item in items:
        key, _, value = item.partition("=")
        key = key.strip().replace("-", "_")
        if not key:
            raise ConfigError(f"--slurm {item}: write KEY=VALUE")
        if key in options:
            raise ConfigError(f"--slurm {item}: {key} is given twice; keep one")
        options[key] = value.strip()
    return options


def check_slurm_options(options: Mapping[str, str]) -> SlurmSettings:
    """Check the options of `--slurm KEY=VALUE`.

    Args:
        options: `partition` must be there; `time` (default: 24:00:00), `cpus_per_task` (1), `mem_per_cpu_gb` (2), `qos`
            (none); one of `venv_path` (folder of a virtual environment), `condaenv` (its name) and `env_command` (a
            shell command) for the environment of the jobs (default: that of this process). Any other key is an
            argument of sbatch without its dashes, such as `account`; a value may be empty. "-" and "_" are the same.

    Raises:
        ConfigError: `partition` is missing, a value is not of its kind, or a key is one that is set here.
    """
    left = {key.replace("-", "_"): value for key, value in options.items()}
    if not left.get("partition"):
        raise ConfigError("--slurm: partition is missing; add partition=NAME (sinfo lists them)")
    time = left.pop("time", "24:00:00")
    if not _TIME.fullmatch(time):
        raise ConfigError(f"--slurm time={time}: not a time of Slurm's; write hours:minutes:seconds or days-hours")
    settings = SlurmSettings(
        partition=left.pop("partition"),
        time=time,
        cpus_per_task=_pop_count(left, "cpus_per_task", 1),
        mem_per_cpu_gb=_pop_count(left, "mem_per_cpu_gb", 2),
        qos=left.pop("qos", None),
        env_command=_environment(left),
        sbatch_args={key.replace("_", "-"): value for key, value in left.items() if key not in _ENVIRONMENTS},
    )
    for key, value in settings.sbatch_args.items():
        _check_sbatch_argument(key, value)
    return settings


def check_sbatch() -> None:
    """Check that jobs can be submitted from this machine.

    Raises:
        ConfigError: there is no sbatch.
    """
    if shutil.which("sbatch") is None:
        raise ConfigError("executor slurm: there is no sbatch on PATH; run it on a login node of the cluster")


class SlurmTasks(SlurmPipelineExecutor):  # type: ignore[misc]  # datatrove has no types
    """datatrove's Slurm executor with an array job for each stage and with errors that are kept.

    Args:
        name: the stage; name of its jobs.
        step: what a task does; its class can be imported by name on the nodes.
        tasks: number of tasks.
        workers: tasks at the same time.
        logging_dir: folder of logs and completion markers, shared by the nodes.
        settings: how jobs are submitted.
        after: id of a job that must end well before, or nothing.
    """

    def __init__(
        self,
        name: str,
        step: PipelineStep,
        tasks: int,
        workers: int,
        logging_dir: Path,
        settings: SlurmSettings,
        after: Sequence[str],
    ) -> None:
        super().__init__(
            pipeline=[step],
            tasks=tasks,
            workers=workers,
            time=settings.time,
            partition=settings.partition,
            cpus_per_task=settings.cpus_per_task,
            mem_per_cpu_gb=settings.mem_per_cpu_gb,
            job_name=name,
            qos=settings.qos,
            env_command=settings.env_command,
            # Without it, jobs whose forerunner failed would stand in the queue for ever.
            sbatch_args={"kill-on-invalid-dep": "yes", **settings.sbatch_args},
            max_array_size=_LARGEST_ARRAY,
            depends_job_id=next(iter(after), None),
            job_id_retriever=_job_id,
            logging_dir=str(logging_dir),
        )
        self.errors_dir = logging_dir / "errors"

    def submit(self) -> list[str]:
        """Submit the tasks that have no completion marker.

        Returns:
            The job's id, or nothing where no task is missing.

        Raises:
            ConfigError: sbatch refused the job.
        """
        missing = self.get_incomplete_ranks()
        if not missing:
            return []
        _report_errors(self.job_name, self.errors_dir, missing)
        # A job starts Python once for all its tasks; a few jobs for each worker keep the workers evenly busy. One array
        # is large enough for all: a second one would start after a failure in the first.
        self.tasks_per_job = -(-len(missing) // min(_LARGEST_ARRAY, _ROUNDS * self.workers))
        with quiet_datatrove(), _refusals(self.job_name):
            self.launch_job()
        return [self.job_id]

    def submit_command(self, name: str, command: Sequence[str], after: Sequence[str]) -> str:
        """Submit a command with the same settings, which runs in the folder where this one was called.

        Args:
            name: the job's name.
            command: program and arguments.
            after: id of a job that must end well before, or nothing.

        Returns:
            The job's id.

        Raises:
            ConfigError: sbatch refused the job.
        """
        log = str(Path(self.slurm_logs_folder) / "%j.out")
        arguments = self.get_sbatch_args() | {"job-name": name, "output": log, "error": log}
        del arguments["array"]
        script = self.get_launch_file_contents(arguments, f"cd {shlex.quote(os.getcwd())} && {shlex.join(command)}")
        with _refusals(name):
            return str(launch_slurm_job(script, _job_id, *(f"--dependency=afterok:{job}" for job in after)))

    save_executor_as_json = save_summary

    def launch_merge_stats(self) -> None:
        """Submit nothing more: the counts of a task are in what it wrote, datatrove's own need no job."""

    def _run_for_rank(self, rank: int, local_rank: int = 0, node_rank: int = -1) -> object:
        """Run a task on a node, and keep what it raises."""
        path = _error_path(self.errors_dir, rank)
        path.unlink(missing_ok=True)
        try:
            return super()._run_for_rank(rank, local_rank, node_rank)
        except Exception as error:
            self.errors_dir.mkdir(exist_ok=True)
            message = f"{type(error).__name__}: {error}"
            write_json(path, {"message": message, "traceback": traceback.format_exc()})
            raise


@contextlib.contextmanager
def _refusals(job: str) -> Iterator[None]:
    try:
        yield
    except subprocess.CalledProcessError as error:
        raise ConfigError(
            f"--slurm: sbatch refused {job} (exit code {error.returncode}); its message stands above"
        ) from None


def _report_errors(stage: str, errors_dir: Path, ranks: Sequence[int]) -> None:
    """Tell what tasks raised last time."""
    for path in (_error_path(errors_dir, rank) for rank in ranks):
        if path.exists():
            message = read_json(path)["message"]
            logger.warning("%s: task %d failed before: %s (%s)", stage, int(path.stem), message, path)


def _error_path(errors_dir: Path, rank: int) -> Path:
    return errors_dir / f"{rank:05d}.json"


def _pop_count(options: dict[str, str], key: str, default: int) -> int:
    value = options.pop(key, str(default))
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"--slurm {key}={value}: must be a whole number, 1 or more")
    return int(value)


def _check_sbatch_argument(key: str, value: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9-]*", key) or "\n" in value:
        raise ConfigError(f"--slurm {key}={value}: not an argument of sbatch")
    if key in _OURS:
        raise ConfigError(f"--slurm {key}={value}: is set by this command; leave it out")
    if key in _MEMORY:
        raise ConfigError(f"--slurm {key}={value}: write mem_per_cpu_gb=N instead")


def _environment(options: Mapping[str, str]) -> str:
    """Return the shell command, one line, that makes the environment of a job."""
    given = [key for key in _ENVIRONMENTS if key in options]
    if len(given) > 1:
        raise ConfigError(f"--slurm: {' and '.join(given)} exclude each other; keep one")
    project = Path(__file__).resolve().parents[2]
    exports = [f"export {name}={value}" for name, value in ONE_THREAD.items()]
    exports.append(f"export PYTHONPATH={shlex.quote(str(project))}${{PYTHONPATH:+:$PYTHONPATH}}")
    return "; ".join([_activation(options), *exports])


def _activation(options: Mapping[str, str]) -> str:
    if "env_command" in options:
        return options["env_command"]
    if "condaenv" in options:
        name = shlex.quote(options["condaenv"])
        return f'source "$(conda info --base)/etc/profile.d/conda.sh" && conda activate {name}'
    if "venv_path" in options:
        script = Path(options["venv_path"]).absolute() / "bin" / "activate"
        if not script.is_file():
            raise ConfigError(f"--slurm venv_path={options['venv_path']}: there is no {script}")
    else:
        script = Path(sys.prefix) / "bin" / "activate"
        if not script.is_file():  # not a virtual environment
            return f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
    return f"source {shlex.quote(str(script))}"


def _job_id(output: str) -> str:
    """Return the id in what sbatch says: "Submitted batch job 17", with or without a cluster's name after it."""
    found = re.search(r"\d+", output)
    if found is None:
        raise ConfigError(f"--slurm: sbatch named no job: {output.strip()!r}")
    return found.group()
