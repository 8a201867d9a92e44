"""Workers of this machine: the same files for any number of them, and nothing lost but the task of one that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime.command import EXIT_BAD_INPUT, EXIT_INTERRUPTED, ConfigError
from tests.tokenization.steps import EXPECTED, NUM_TASKS, make_stage, outputs, run_counts, runs_of
from tokenization.tasks.executors import run_local
from tokenization.tasks.task_queue import TaskError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

ROOT = Path(__file__).resolve().parents[3]


def _command(work_dir: Path, *arguments: str) -> subprocess.Popen[str]:
    """A real command in a session of its own, so that a signal to its process group is what a terminal sends."""
    work_dir.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.tokenization.steps", str(work_dir), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)


def _wait_for_workers(work_dir: Path, *ranks: int) -> list[int]:
    """Return the processes of tasks once these have begun."""
    deadline = time.monotonic() + 30
    while not all(runs_of(work_dir, rank) for rank in ranks):
        assert time.monotonic() < deadline, "the tasks do not begin"
        time.sleep(0.02)
    return [int(runs_of(work_dir, rank)[-1].split()[0]) for rank in ranks]


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait_until_gone(pids: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(_is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, "a worker lingers"
        time.sleep(0.02)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_writes_the_same(tmp_path, workers):
    run_local([make_stage(tmp_path)], tmp_path, workers)
    assert outputs(tmp_path) == EXPECTED
    assert run_counts(tmp_path) == [1] * NUM_TASKS


def test_one_worker_is_this_process(tmp_path):
    run_local([make_stage(tmp_path)], tmp_path, 1)
    assert {line.split()[0] for rank in range(NUM_TASKS) for line in runs_of(tmp_path, rank)} == {str(os.getpid())}


def test_two_workers_share_the_tasks_with_one_thread_each(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    run_local([make_stage(tmp_path, dict.fromkeys(range(NUM_TASKS), "pause"))], tmp_path, 2)
    lines = [runs_of(tmp_path, rank)[0].split()[:2] for rank in range(NUM_TASKS)]
    assert len({pid for pid, _ in lines} - {str(os.getpid())}) == 2
    assert {threads for _, threads in lines} == {"1"}
    assert os.environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize("workers", [1, 2])
def test_no_task_sees_what_another_left_in_the_step(tmp_path, workers):
    run_local([make_stage(tmp_path)], tmp_path, workers)
    assert [runs_of(tmp_path, rank)[0].split(maxsplit=2)[2] for rank in range(NUM_TASKS)] == [
        f"[{rank}]" for rank in range(NUM_TASKS)
    ]


def test_a_second_run_does_nothing_again(tmp_path):
    for workers in (2, 1):
        run_local([make_stage(tmp_path)], tmp_path, workers)
    assert run_counts(tmp_path) == [1] * NUM_TASKS


def test_stages_run_in_order(tmp_path):
    stages = [make_stage(tmp_path / name, name=name) for name in ("first", "second")]
    run_local(stages, tmp_path, 2)
    last = max(path.stat().st_mtime_ns for path in (tmp_path / "first" / "out").iterdir())
    assert last < min(path.stat().st_mtime_ns for path in (tmp_path / "second" / "runs").iterdir())


def test_a_worker_killed_from_outside_costs_its_task_alone(tmp_path):
    command = _command(tmp_path, "2", "1=sleep")
    (pid,) = _wait_for_workers(tmp_path, 1)
    _wait_for_workers(tmp_path, NUM_TASKS - 1)  # the other worker goes on
    os.kill(pid, signal.SIGKILL)
    _, messages = command.communicate(timeout=30)
    assert command.returncode == 0, messages
    assert "tiny: the worker of task 1 was killed by signal 9: out of memory?; the task starts again" in messages
    assert outputs(tmp_path) == EXPECTED
    assert run_counts(tmp_path) == [1, 2, 1, 1, 1, 1]


def test_all_workers_may_die_once(tmp_path):
    run_local([make_stage(tmp_path, dict.fromkeys(range(NUM_TASKS), "kill-once"))], tmp_path, 2)
    assert outputs(tmp_path) == EXPECTED
    assert run_counts(tmp_path) == [2] * NUM_TASKS


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("kill", "tiny: task 2: given up after 3 attempts; its worker was killed by signal 9: out of memory?"),
        ("exit", "tiny: task 2: given up after 3 attempts; its worker ended by itself with exit code 3"),
    ],
)
def test_a_task_whose_worker_always_dies_is_given_up(tmp_path, fault, message):
    with pytest.raises(TaskError) as caught:
        run_local([make_stage(tmp_path, {2: fault})], tmp_path, 2)
    assert str(caught.value) == message
    assert run_counts(tmp_path)[2] == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_input_in_a_task_is_bad_input_of_the_command(tmp_path, workers):
    stage = make_stage(tmp_path, {2: "refuse-once", 3: "pause"})  # a pause: the failure is there before task 3 is done
    with pytest.raises(ConfigError, match=r"^corpus\.txt: task 2 is refused$"):
        run_local([stage], tmp_path, workers)
    counts = run_counts(tmp_path)
    assert counts[:3] == [1, 1, 1]
    assert counts[4:] == [0, 0], "tasks were handed out after the failure"
    run_local([stage], tmp_path, workers)
    assert outputs(tmp_path) == EXPECTED
    assert run_counts(tmp_path) == [1, 1, 2, 1, 1, 1]


def test_the_error_of_the_lowest_task_is_raised_and_running_tasks_finish(tmp_path):
    with pytest.raises(ConfigError, match="task 0"):
        run_local([make_stage(tmp_path, {0: "refuse", 1: "refuse"})], tmp_path, 2)
    work_dir = tmp_path / "second"
    with pytest.raises(ConfigError, match="task 1"):
        run_local([make_stage(work_dir, {0: "pause", 1: "refuse"})], work_dir, 2)
    assert "0.txt" in outputs(work_dir)


def test_other_errors_keep_type_and_traceback(tmp_path):
    with pytest.raises(KeyError, match="task 0 is broken") as caught:
        run_local([make_stage(tmp_path, {0: "break"})], tmp_path, 2)
    assert "in _break" in str(caught.value.__cause__)


def test_an_error_that_does_not_survive_pickling_keeps_its_message(tmp_path):
    with pytest.raises(TaskError, match=r"^tiny: task 0: UnpicklableError: 1 and 2$") as caught:
        run_local([make_stage(tmp_path, {0: "unpicklable"})], tmp_path, 2)
    assert "in _unpicklable" in str(caught.value.__cause__)


def test_bad_input_is_one_message_and_nothing_else(tmp_path):
    command = _command(tmp_path, "2", "2=refuse")
    _, messages = command.communicate(timeout=30)
    assert command.returncode == EXIT_BAD_INPUT
    assert messages == "zerobert tiny: error: corpus.txt: task 2 is refused\n"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_ends_all_at_once_and_a_second_run_goes_on(tmp_path, workers):
    command = _command(tmp_path, workers, "2=sleep")
    _wait_for_workers(tmp_path, 2)
    if workers == "2":
        _wait_for_workers(tmp_path, NUM_TASKS - 1)
    pids = [int(runs_of(tmp_path, rank)[0].split()[0]) for rank in range(3)]
    os.killpg(command.pid, signal.SIGINT)
    _, messages = command.communicate(timeout=5)
    assert command.returncode == EXIT_INTERRUPTED
    assert messages == "zerobert tiny: interrupted\n"
    assert not any(_is_running(pid) for pid in pids)

    before = run_counts(tmp_path)
    again = _command(tmp_path, workers, "2=sleep")
    assert again.wait(timeout=30) == 0
    assert outputs(tmp_path) == EXPECTED
    done_before = [rank for rank in range(NUM_TASKS) if before[rank] and rank != 2]
    assert all(run_counts(tmp_path)[rank] == 1 for rank in done_before)
    assert run_counts(tmp_path)[2] == 2


def test_ctrl_c_is_the_parents_alone(tmp_path):
    command = _command(tmp_path, "2", "0=nap")
    (pid,) = _wait_for_workers(tmp_path, 0)
    os.kill(pid, signal.SIGINT)  # the terminal's signal reaches the workers too, perhaps before the parent
    _, messages = command.communicate(timeout=30)
    assert (command.returncode, messages) == (0, "")
    assert run_counts(tmp_path) == [1] * NUM_TASKS


def test_ctrl_c_while_workers_start_is_silent(tmp_path):
    command = _command(tmp_path, "2", *(f"{rank}=sleep" for rank in range(NUM_TASKS)))
    deadline = time.monotonic() + 30
    while not (children := _children(command.pid)):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(command.pid, signal.SIGINT)
    _, messages = command.communicate(timeout=5)
    assert messages == "zerobert tiny: interrupted\n"
    _wait_until_gone(children, 2)


def _children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_no_worker_outlives_a_killed_parent(tmp_path):
    command = _command(tmp_path, "2", "0=sleep", "1=sleep")
    pids = _wait_for_workers(tmp_path, 0, 1)
    children = _children(command.pid)
    assert set(pids) <= set(children)
    command.kill()
    command.wait(timeout=5)
    _wait_until_gone(children, 5)
