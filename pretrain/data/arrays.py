"""Folders of .npy arrays, there as a whole or not at all, memory-mapped by every process of a host.

1. A process that may build writes the arrays into a folder of its own beside the target (`ArrayWriter`).
2. It renames that folder to the target. Where another process was faster, its folder stays and ours is
   dropped: both hold the same bytes.
3. A process that may not build waits until the target is there, with a time limit.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.command import ConfigError

logger = logging.getLogger(__name__)

PARTIAL = ".partial-"
STALE_SECONDS = 24 * 3600.0
_SILENT_SECONDS = 2.0
_POLL_SECONDS = 0.2
_REMINDER_SECONDS = 60.0


class ArrayWriter:
    """Writes one 1-D array to a .npy file piece by piece.

    The bytes depend on the values alone, not on how they were cut into pieces.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike) -> None:
        """Open a file for an array of one dtype.

        Args:
            path: The .npy file; its folder is there already.
            dtype: Dtype of the array.
        """
        self.dtype = np.dtype(dtype)
        self.size = 0
        self._file = open(path, "wb")
        self._header_bytes = self._write_header()

    def append(self, values: npt.NDArray[Any]) -> None:
        """Add values (n,) at the end, converted to the array's dtype."""
        self._file.write(np.ascontiguousarray(values, dtype=self.dtype).data)
        self.size += len(values)

    def close(self) -> None:
        """Write the length into the header, and flush to the disk."""
        self._file.seek(0)
        header_bytes = self._write_header()
        # numpy leaves room for the largest length in the header of a 1-D array
        assert header_bytes == self._header_bytes
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> ArrayWriter:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def _write_header(self) -> int:
        description = {
            "shape": (self.size,),
            "fortran_order": False,
            "descr": np.lib.format.dtype_to_descr(self.dtype),
        }
        np.lib.format.write_array_header_1_0(self._file, description)
        return self._file.tell()


def map_arrays(folder: Path, dtypes: Mapping[str, npt.DTypeLike]) -> dict[str, npt.NDArray[Any]]:
    """Map the arrays of a folder into memory, read-only.

    Args:
        folder: A folder with NAME.npy for every name.
        dtypes: Name and dtype of each array.

    Returns:
        The arrays by name, each (n,).

    Raises:
        ConfigError: A file is missing, cut short or of another dtype.
    """
    arrays = {}
    for name, wanted in dtypes.items():
        dtype = np.dtype(wanted)
        path = folder / f"{name}.npy"
        try:
            mapped = np.load(path, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read as a .npy array ({error}); remove {folder}") from error
        if mapped.dtype != dtype or mapped.ndim != 1:
            raise ConfigError(f"{path}: holds {mapped.dtype} {mapped.shape}, not a row of {dtype}; remove {folder}")
        # a plain array: slices of np.memmap cost several times more
        arrays[name] = np.asarray(mapped)
    return arrays


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the array, contiguous and locked against writing, as a mapped one is."""
    array = np.ascontiguousarray(array)
    array.setflags(write=False)
    return array


def provide_folder(folder: Path, build: Callable[[Path], None], *, may_build: bool, wait_seconds: float) -> Path:
    """Return a folder once it is there whole: found, built here, or built by another process.

    Args:
        folder: The folder wanted. Its name tells all that its content depends on.
        build: Writes the content into the empty folder that it is given.
        may_build: True: build at once where it is missing; several processes may do so. False: wait for
            another process.
        wait_seconds: Longest wait.

    Returns:
        `folder`.

    Raises:
        TimeoutError: It did not appear within `wait_seconds`.
    """
    if folder.is_dir():
        return folder
    if not may_build:
        _wait_for(folder, wait_seconds)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial_of(folder)
    partial.mkdir()
    try:
        build(partial)
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            logger.info("%s was built by another process meanwhile", folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder so that no process sees a part of it; another process may be removing it as well."""
    doomed = _partial_of(folder)
    try:
        folder.rename(doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed)


def remove_stale_partials(parent: Path) -> list[Path]:
    """Remove what killed processes left behind: unfinished folders not touched for a day.

    Args:
        parent: Where the folders stand.

    Returns:
        The folders removed.
    """
    limit = time.time() - STALE_SECONDS
    stale = [path for path in sorted(parent.glob(f"*{PARTIAL}*")) if _last_change(path) < limit]
    for path in stale:
        shutil.rmtree(path, ignore_errors=True)
    return stale


def _partial_of(folder: Path) -> Path:
    """Return the name of an unfinished folder that no other process uses."""
    return folder.with_name(f"{folder.name}{PARTIAL}{uuid.uuid4().hex}")


def _last_change(folder: Path) -> float:
    """Return when a folder or a file of it was last written to, in seconds since 1970."""
    try:
        return max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except FileNotFoundError:  # its builder has just finished
        return time.time()


def _wait_for(folder: Path, wait_seconds: float) -> None:
    """Poll until a folder is there; say now and then what is waited for."""
    start = time.monotonic()
    reminder = start + _SILENT_SECONDS
    while not folder.is_dir():
        now = time.monotonic()
        if now - start >= wait_seconds:
            raise TimeoutError(f"waited {wait_seconds:g} s for {folder}, which another process builds: see its log")
        if now >= reminder:
            logger.info("waiting for %s, which another process of the host builds (%.0f s)", folder, now - start)
            reminder = now + _REMINDER_SECONDS
        time.sleep(_POLL_SECONDS)
