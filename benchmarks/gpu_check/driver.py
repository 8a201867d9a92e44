"""Runs the stages one after the other, each in a process of its own with a deadline, and keeps what they found."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.stage import run_in_process
from runtime.files import read_json, write_json

DONE, ABSENT, FAILED, OUT_OF_TIME, SKIPPED = "done", "absent", "failed", "out of time", "skipped"
LEAST_SECONDS = 5.0
"""A stage with less time than this left is not started."""
LOG_LINES = 15
FORK_FAULTS = ("forked subprocess", "initialization error")
"""What CUDA says in a process that was forked from one which had touched it."""


@dataclass(frozen=True)
class Stage:
    """One measurement."""

    name: str
    function: str
    """"module:function"; takes `Results`."""
    seconds: float
    """Its deadline at full scale."""


@dataclass
class Outcome:
    """What came of a stage."""

    status: str
    seconds: float = 0.0
    reason: str = ""
    results: dict[str, Any] = field(default_factory=dict)


def run_stages(
    stages: Sequence[Stage], scale: str, *, seconds: float, facts: dict[str, Any], json_path: Path | None = None
) -> int:
    """Run stages in order; after each its line is printed and the JSON file is whole.

    Args:
        stages: the most valuable first.
        scale: "full" or "tiny".
        seconds: in which all must be done; what does not fit is cut or skipped.
        facts: of the run, for the file.
        json_path: where the figures go; None: nowhere.

    Returns:
        0 if every stage ran, or found what it measures absent; 1 if one failed, was cut or skipped.
    """
    end = time.monotonic() + seconds
    # Importing torch and transformers takes seconds; the stages are forked from a server that has done it.
    context: BaseContext = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.gpu_check.preload"])
    outcomes: dict[str, Outcome] = {}
    for stage in stages:
        limit = min(stage.seconds, end - time.monotonic())
        outcome = _run(stage, scale, limit, context)
        if outcome.status == FAILED and any(fault in outcome.reason for fault in FORK_FAULTS):
            context = multiprocessing.get_context("spawn")
            outcome = _run(stage, scale, min(stage.seconds, end - time.monotonic()), context)
        outcomes[stage.name] = outcome
        _print(_line(stage.name, outcome))
        if json_path is not None:
            write_json(json_path, {**facts, "stages": {name: asdict(one) for name, one in outcomes.items()}})
    bad = [name for name, outcome in outcomes.items() if outcome.status not in (DONE, ABSENT)]
    _print(f"\n{'not measured: ' + ', '.join(bad) if bad else 'all stages ran'}")
    return 1 if bad else 0


def _run(stage: Stage, scale: str, limit: float, context: BaseContext) -> Outcome:
    """Run one stage; end its process group when its time is over."""
    if limit < LEAST_SECONDS:
        return Outcome(SKIPPED, reason="no time left")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zerobert-gpu-check-") as folder:
        path, log = Path(folder) / "found.json", Path(folder) / "log"
        process = context.Process(  # type: ignore[attr-defined]
            target=run_in_process, args=(stage.function, scale, path, log)
        )
        process.start()
        process.join(limit)
        is_late = process.is_alive()
        _end(process.pid, is_late)
        process.join()
        results = read_json(path) if path.exists() else {}
        status, reason = _judge(process.exitcode, is_late, limit, results, _last_lines(log))
    return Outcome(status, round(time.monotonic() - begin, 1), reason, results)


def _judge(code: int | None, is_late: bool, limit: float, results: dict[str, Any], log: str) -> tuple[str, str]:
    if is_late:
        return OUT_OF_TIME, f"cut after {limit:.0f} s"
    if code:
        return FAILED, log or f"exit code {code}"
    if "absent" in results:
        return ABSENT, str(results["absent"])
    return DONE, ""


def _end(pid: int, is_late: bool) -> None:
    """End what a stage started, and the stage itself if it is late."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if is_late:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # in case it has no group of its own yet


def _last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-LOG_LINES:])


def _line(name: str, outcome: Outcome) -> str:
    said = outcome.results.get("headline", "")
    why = outcome.reason.strip().splitlines()[-1] if outcome.reason.strip() else ""
    return (
        f"{name:22s} {outcome.status:11s} {outcome.seconds:6.1f} s  {'; '.join(part for part in (said, why) if part)}"
    )


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
