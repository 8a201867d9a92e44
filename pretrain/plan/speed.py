"""Tokens a second: as told, or as a run or a benchmark measured them."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from runtime.command import ConfigError
from runtime.files import read_json

METRICS_NAME = "metrics.jsonl"
_KEY = "speed/tokens_per_second"


@dataclass(frozen=True)
class Speed:
    """A speed of all devices together."""

    tokens_per_second: float
    world_size: int | None
    """Devices that it was measured on; None: as many as are planned."""
    source: str


def read_speed(text: str | None, run_dir: Path) -> Speed | None:
    """Return the speed to reckon with.

    Args:
        text: of --tokens-per-second: a number, a run dir or its metrics.jsonl, or the JSON of `zerobert bench step`;
            None: what the run dir has measured so far, if anything.
        run_dir: of the run.

    Raises:
        ConfigError: neither a number above 0 nor a file with a speed in it.
    """
    if text is None:
        return _of_run(run_dir) if (run_dir / METRICS_NAME).is_file() else None
    try:
        value = float(text)
    except ValueError:
        return _of_file(Path(text))
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"--tokens-per-second {text}: must be a number above 0")
    return Speed(value, None, "--tokens-per-second")


def _of_file(path: Path) -> Speed:
    if path.is_dir() or path.name == METRICS_NAME:
        found = _of_run(path if path.is_dir() else path.parent)
        if found is None:
            raise ConfigError(f"--tokens-per-second {path}: {METRICS_NAME} has no {_KEY} yet")
        return found
    if not path.is_file():
        raise ConfigError(f"--tokens-per-second {path}: neither a number nor a run dir nor a file")
    values = read_json(path)
    if not isinstance(values, dict) or not isinstance(values.get("tokens_per_second"), int | float):
        raise ConfigError(f"--tokens-per-second {path}: not a JSON of zerobert bench step: it has no tokens_per_second")
    return Speed(float(values["tokens_per_second"]), int(values.get("world_size", 1)), str(path))


def _of_run(run_dir: Path) -> Speed | None:
    """Return the median of what a run has logged; None where it has logged no speed."""
    path = run_dir / METRICS_NAME
    if not path.is_file():
        raise ConfigError(f"--tokens-per-second {run_dir}: it has no {METRICS_NAME}")
    speeds = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            value = json.loads(line).get(_KEY)
        except (ValueError, AttributeError):
            continue  # a line that a killed run cut short
        if isinstance(value, int | float) and value > 0:
            speeds.append(float(value))
    if not speeds:
        return None
    world = None
    if (run_dir / "run.json").is_file():
        world = int(read_json(run_dir / "run.json").get("world_size", 0)) or None
    return Speed(statistics.median(speeds), world, f"median of {len(speeds)} lines of {path}")
