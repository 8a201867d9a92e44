"""One small interface for the numbers of a run: JSON lines always, W&B and TensorBoard when asked.

Tracking never stops a run and never asks a question: what fails costs one warning, and the numbers are still in
metrics.jsonl.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, cast

from runtime.files import write_json, write_text

logger = logging.getLogger(__name__)

STEP_KEY = "trainer/step"
METRICS_FILE = "metrics.jsonl"
TRACKING_FILE = "tracking.json"


class _Sink(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class _JsonLines:
    """metrics.jsonl: one JSON object a line, "step" first."""

    def __init__(self, path: Path, first_step: int) -> None:
        if path.exists():
            # Steps after the checkpoint we go on from are made again: each step keeps one line.
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            write_text(path, "".join(line for line in lines if _step_of(line) < first_step))
        self._stream = path.open("a", encoding="utf-8")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._stream.write(json.dumps({"step": step, **values}) + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf  # a line cut by a crash


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl, but for one that a crash cut short; empty without the file."""
    path = run_dir / METRICS_FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if _step_of(line) < math.inf]


class _Wandb:
    def __init__(self, run_dir: Path, mode: str, project: str, name: str, config: Mapping[str, Any]) -> None:
        import wandb  # noqa: PLC0415 - late: slow, and a broken one must cost a warning, not the run

        asked_online = mode == "online"
        if mode == "auto":
            mode = os.environ.get("WANDB_MODE") or "online"
        if mode == "online" and not _has_wandb_key():
            if asked_online:
                logger.warning("wandb: no key (WANDB_API_KEY or ~/.netrc): this run is tracked offline")
            mode = "offline"
        known = run_dir / TRACKING_FILE
        run_id = json.loads(known.read_text(encoding="utf-8"))["wandb_id"] if known.exists() else secrets.token_hex(4)
        write_json(known, {"wandb_id": run_id})
        self._run = wandb.init(
            project=project,
            name=name,
            id=run_id,
            resume="allow",
            dir=str(run_dir),
            mode=cast(Any, mode),
            config=dict(config),
            settings=wandb.Settings(silent=True, console="off", init_timeout=30),
        )
        self._run.define_metric(STEP_KEY)
        self._run.define_metric("*", step_metric=STEP_KEY)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({STEP_KEY: step, **values})

    def close(self) -> None:
        self._run.finish()


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    return netrc.is_file() and "wandb" in netrc.read_text(encoding="utf-8", errors="replace")


class _TensorBoard:
    def __init__(self, run_dir: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra

        self._writer = SummaryWriter(str(run_dir / "tensorboard"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        self._writer.close()


class Tracker:
    """The numbers of one run. On ranks other than zero it does nothing.

    Args:
        run_dir: the run's folder.
        is_rank_zero: whether this process writes.
        config: settings and fingerprints, shown beside the curves.
        first_step: the first step of this start, counted from 1; lines of later steps from a lost start are dropped.
        project: W&B project.
        name: W&B run name.
        wandb_mode: "auto" (online with a key, else offline), "online", "offline" or "off".
        tensorboard: whether to write event files as well.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        is_rank_zero: bool,
        config: Mapping[str, Any],
        first_step: int,
        project: str,
        name: str,
        wandb_mode: str,
        tensorboard: bool,
    ) -> None:
        self._sinks: dict[str, _Sink] = {}
        if not is_rank_zero:
            return
        self._sinks[METRICS_FILE] = _JsonLines(run_dir / METRICS_FILE, first_step)
        if wandb_mode != "off":
            self._open("wandb", lambda: _Wandb(run_dir, wandb_mode, project, name, config))
        if tensorboard:
            self._open("tensorboard", lambda: _TensorBoard(run_dir))

    def _open(self, kind: str, make: Callable[[], _Sink]) -> None:
        try:
            self._sinks[kind] = make()
        except Exception as error:  # noqa: BLE001 - a tracker that fails to start must not stop the run
            logger.warning("%s: %s: not tracked there; the numbers are in %s", kind, error, METRICS_FILE)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the numbers of a step.

        Args:
            step: optimizer updates done.
            values: by metric name; docs/metrics.md has units and reductions.
        """
        for kind, sink in list(self._sinks.items()):
            try:
                sink.log(step, values)
            except Exception as error:  # noqa: BLE001 - as above
                logger.warning("%s: %s: no longer tracked there", kind, error)
                del self._sinks[kind]

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, sink in self._sinks.items():
            try:
                sink.close()
            except Exception as fault:  # noqa: BLE001 - as above
                logger.warning("%s: %s: may be incomplete", name, fault)
