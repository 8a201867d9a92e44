"""What every part that reads a DeepSpeed JSON asks of a value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runtime.command import ConfigError

AUTO = "auto"


def require_object(value: Any, place: str, path: str | Path) -> None:
    """Raise ConfigError unless a value is an object."""
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {place} = {value!r}: must be an object {{...}}")


def require_number(value: Any, place: str, path: str | Path) -> None:
    """Raise ConfigError unless a value is a number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigError(f"{path}: {place} = {value!r}: must be a number of at least 0")
