"""The work folder of an audit: what was measured is kept until all is done, so that a second call goes on.

    WORK/audit-KEY/lock              held by the audit at work
    WORK/audit-KEY/shard-KEY/*.npy   one measured shard, there as a whole or not at all
    WORK/audit-KEY/sentences-..., plan-...   what `pretrain.data` keeps

A key is the hash of all that the content depends on.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

from pretrain.audit.measure import ARRAY_DTYPES, ShardMeasure
from pretrain.data.arrays import ArrayWriter, map_arrays, provide_folder
from runtime.command import ConfigError

logger = logging.getLogger(__name__)

_VERSION = 1


def key_of(*parts: object) -> str:
    """Return a key of values that JSON can hold."""
    return hashlib.sha256(json.dumps([_VERSION, *parts]).encode()).hexdigest()[:32]


@contextlib.contextmanager
def work_folder(shards: Path, wanted: Path | None, key: str) -> Iterator[Path]:
    """Give the folder of one audit; it is removed after a whole audit, and stays after a broken one.

    Args:
        shards: The folder of shards.
        wanted: Where the user wants it; None: SHARDS.audit-work, or a temporary folder where that can't be written.
        key: Key of the shards and the settings.

    Raises:
        ConfigError: `wanted` can't be written, or another audit is at work there.
    """
    parent = wanted or shards.resolve().with_name(f"{shards.resolve().name}.audit-work")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        if not os.access(parent, os.W_OK):
            raise PermissionError(f"{parent}: not writable")
    except OSError as error:
        if wanted is not None:
            raise ConfigError(f"--work-dir {wanted}: can't be written ({error.strerror or error})") from error
        logger.info("%s can't be written; working in a temporary folder, from which no second call goes on", parent)
        with tempfile.TemporaryDirectory(prefix="zerobert-audit-") as temporary:
            yield Path(temporary)
        return
    folder = parent / f"audit-{key}"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{folder}: another audit of these shards is at work; wait, or give --work-dir") from None
        yield folder
        shutil.rmtree(folder)
    # the parent may hold other things
    with contextlib.suppress(OSError):
        parent.rmdir()


def provide_measure(folder: Path, key: str, measure: Callable[[], ShardMeasure]) -> ShardMeasure:
    """Return a shard's measures, mapped from disk; they are taken where they are not there yet.

    Args:
        folder: The work folder.
        key: Key of the shard and of what is counted.
        measure: Takes them.
    """

    def build(target: Path) -> None:
        found = measure()
        for field in fields(ShardMeasure):
            with ArrayWriter(target / f"{field.name}.npy", ARRAY_DTYPES[field.name]) as writer:
                writer.append(getattr(found, field.name))

    target = folder / f"shard-{key}"
    provide_folder(target, build, may_build=True, wait_seconds=0.0)
    return ShardMeasure(**map_arrays(target, ARRAY_DTYPES))


def has_measure(folder: Path, key: str) -> bool:
    """Return whether a shard was measured."""
    return (folder / f"shard-{key}").is_dir()
