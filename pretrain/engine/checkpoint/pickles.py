"""Reading and writing DeepSpeed's files: nothing in one runs, and a write that fails is heard of by every rank.

A .pt file is a pickle, and a pickle can name any function to be called. Here it may hold tensors, plain values and the
few types that DeepSpeed writes; a file that names anything else is refused before anything of it is made.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from unittest import mock

import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from runtime.command import ConfigError
from runtime.files import sha256_of

ALLOWED_TYPES = (LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address)
"""What DeepSpeed 0.19 puts into its files beside tensors and plain values."""


def load_pickle(path: str | Path, *, map_location: Any = "cpu", mmap: bool = False) -> Any:
    """Read a .pt file without running any code of it.

    Args:
        path: the file.
        map_location: of its tensors.
        mmap: leave tensors on disk until they are used.

    Raises:
        ConfigError: it holds a type that DeepSpeed does not write, or is damaged.
    """
    try:
        with torch.serialization.safe_globals(list(ALLOWED_TYPES)):
            return torch.load(path, map_location=map_location, mmap=mmap, weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ConfigError(f"{path}: {_reason(path, error)}") from None


def _reason(path: str | Path, error: Exception) -> str:
    """Say whether a file holds what it must not, or is broken."""
    try:
        strange = set(torch.serialization.get_unsafe_globals_in_checkpoint(str(path)))
    except Exception:  # noqa: BLE001 - a broken file can fail in any way
        strange = set()
    strange -= {f"{kind.__module__}.{kind.__qualname__}" for kind in ALLOWED_TYPES}
    if strange:
        return f"refused, it would run {', '.join(sorted(strange))}: no checkpoint of DeepSpeed's has that in it"
    if "weights_only" in str(error).lower() or "Unsupported" in str(error):
        return f"refused, it holds what no checkpoint of DeepSpeed's has in it ({str(error).splitlines()[0]})"
    return f"this file of the checkpoint is damaged ({str(error).splitlines()[0]})"


@contextlib.contextmanager
def only_safe_pickles() -> Iterator[None]:
    """Make every `torch.load` in the block one of `load_pickle`: DeepSpeed's own tools ask for `weights_only=False`."""
    real = torch.load

    def safe_load(file: Any, map_location: Any = None, *_: Any, mmap: bool | None = None, **__: Any) -> Any:
        with mock.patch.object(torch, "load", real):
            return load_pickle(file, map_location=map_location, mmap=bool(mmap))

    with mock.patch.object(torch, "load", safe_load):
        yield


@dataclass
class Written:
    """What one rank wrote of a checkpoint."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name in the checkpoint's folder: bytes and sha256."""
    faults: list[str] = field(default_factory=list)
    """File and reason, of each that could not be written."""


class CheckpointFiles(TorchCheckpointEngine):  # type: ignore[misc]
    """What `engine.save_checkpoint` and `engine.load_checkpoint` write and read files with, on this rank.

    A write that fails is kept, not raised: DeepSpeed's ranks wait for each other while saving, and would wait for ever
    for the one that has left.

    Args:
        in_background: files are written by a thread; what they hold is copied to memory first.
    """

    def __init__(self, in_background: bool = False) -> None:
        super().__init__()
        self.zipfile_serialization = True
        self.written = Written()
        self._in_background = in_background
        self._copies: list[tuple[Path, io.BytesIO]] = []
        self._thread: threading.Thread | None = None

    def save(self, state_dict: Any, path: str | Path) -> None:
        """Write one file, or copy what it is to hold."""
        path = Path(path)
        with self.keeping_faults(path):
            if self._in_background:
                copy = io.BytesIO()
                torch.save(state_dict, copy)
                self._copies.append((path, copy))
            else:
                torch.save(state_dict, path)
                self.note(path)

    def load(self, path: str | Path, map_location: Any = None) -> Any:
        """Read one file."""
        return load_pickle(path, map_location=map_location)

    def start(self) -> None:
        """Begin to write what was copied; without a background there is nothing to write."""
        self._thread = threading.Thread(target=self._write_copies, name="checkpoint", daemon=False)
        self._thread.start()

    def is_done(self) -> bool:
        """Say whether everything is written."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> Written:
        """Wait until everything is written."""
        if self._thread is not None:
            self._thread.join()
        return self.written

    @contextlib.contextmanager
    def keeping_faults(self, path: Path) -> Iterator[None]:
        """Keep what goes wrong with a file, and go on."""
        try:
            yield
        except (OSError, RuntimeError) as error:  # torch's own writer raises RuntimeError
            reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
            self.written.faults.append(f"{path}: {reason}")

    def note(self, path: Path) -> None:
        """Bring a file to the disk, and list it."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.written.files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}

    def _write_copies(self) -> None:
        for path, copy in self._copies:
            with self.keeping_faults(path):
                path.write_bytes(copy.getbuffer())
                self.note(path)
            copy.close()
        self._copies.clear()
