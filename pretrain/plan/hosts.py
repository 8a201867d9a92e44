"""How many ranks a launch has: a hostfile's slots, read as DeepSpeed's launcher reads them."""

from __future__ import annotations

import logging
from pathlib import Path

from runtime.command import ConfigError

logger = logging.getLogger(__name__)


def count_slots(path: str | Path) -> dict[str, int]:
    """Return the slots of each host of a hostfile.

    Args:
        path: lines of `NAME slots=N`; # begins a comment.

    Raises:
        ConfigError: no such file, no host in it, or a line that the launcher would refuse; names it.
    """
    from deepspeed.launcher.runner import _parse_hostfile  # noqa: PLC0415 - takes a second to import

    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--hostfile {path}: cannot be read: {error}") from None
    hosts: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.strip().startswith("#"):
            continue
        try:
            # One line at a time, so that its number can be told; the launcher's logger would say it a second time.
            logging.disable(logging.ERROR)
            found = _parse_hostfile([line])
        except ValueError:
            raise ConfigError(f"{path}: line {number}: {line.strip()!r}: must be NAME slots=N") from None
        finally:
            logging.disable(logging.NOTSET)
        (host, slots), *_ = found.items()
        if host in hosts:
            raise ConfigError(f"{path}: line {number}: {host} stands in an earlier line already")
        if slots < 1:
            raise ConfigError(f"{path}: line {number}: slots={slots}: must be at least 1")
        hosts[host] = slots
    if not hosts:
        raise ConfigError(f"{path}: names no host; a line is NAME slots=N")
    return hosts
