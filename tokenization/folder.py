"""An output folder that is whole or not there, and the folder beside it where unfinished work waits."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from runtime.command import ConfigError

logger = logging.getLogger(__name__)

_LOCK_NAME = "lock"
_LOGS = "logs"
_DONE = f"{_LOGS}/*/completions/*"  # datatrove's markers of finished tasks


def check_output(
    path: Path,
    force: bool,
    proof: str,
    inputs: Sequence[str],
    is_ours: Callable[[str], bool],
    tokenizer: Path | None = None,
) -> None:
    """Refuse an output folder that must not be written to.

    Args:
        path: the folder to be.
        force: whether an older output there may be replaced.
        proof: name of a file by which an older output of the same kind is known.
        inputs: text that is read; it must not lie in the folder, nor the folder in it.
        is_ours: whether a name is one that this command writes: --force deletes nothing else.
        tokenizer: a folder that is read; it must not lie in the folder.

    Raises:
        ConfigError: there is a file, or a folder that is not empty; or PATH.partial is not one of ours.
    """
    _check_partial(path)
    for given in inputs:
        if os.path.isdir(given) and path.resolve().is_relative_to(Path(given).resolve()):
            raise ConfigError(f"--output {path}: lies in the input folder {given}, and would be read as text next time")
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ConfigError(f"--output {path}: is there already and is not a folder")
    if not path.exists() or not any(path.iterdir()):
        return
    if not force:
        raise ConfigError(f"--output {path}: the folder is not empty; name another, or replace it with --force")
    if not (path / proof).is_file():
        raise ConfigError(f"--output {path}: --force replaces an older output alone; there is no {proof} in it")
    for given in [*inputs, *([] if tokenizer is None else [str(tokenizer)])]:
        if "://" not in given and Path(given).resolve().is_relative_to(path.resolve()):
            raise ConfigError(f"--output {path}: holds the input {given}, which --force would delete")
    stray = sorted(child.name for child in path.iterdir() if not is_ours(child.name))
    if stray:
        raise ConfigError(f"--output {path}: --force would delete {stray[0]}, which this command did not write")


def _check_partial(path: Path) -> None:
    partial = partial_path(path)
    if partial.is_symlink() or (partial.exists() and not partial.is_dir()):
        raise ConfigError(f"--output {path}: unfinished work would stand in {partial}, which is not a folder")
    files = (child for child in partial.rglob("*") if child.is_file() and child.name != _LOCK_NAME)
    if not (partial / _LOGS).is_dir() and any(files):
        raise ConfigError(f"--output {path}: unfinished work would stand in {partial}, which holds something else")


def partial_path(path: Path) -> Path:
    """Return the folder in which the output is made: PATH.partial."""
    path = Path(os.path.abspath(path))
    return path.with_name(f"{path.name}.partial")


@contextlib.contextmanager
def work_folder(path: Path, is_kept: bool = False) -> Iterator[Path]:
    """Give PATH.partial to one process at a time; what an earlier one left there is still there.

    After an error it stays, so that a second call can go on, unless no task is done in it.

    Args:
        path: the output folder to be.
        is_kept: whether it stays in any case: others go on working in it.

    Raises:
        ConfigError: another process is at work there.
    """
    partial = partial_path(path)
    new_folders = [folder for folder in (partial, *partial.parents) if not folder.exists()]
    partial.mkdir(parents=True, exist_ok=True)
    with open(partial / _LOCK_NAME, "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"--output {path}: another process is at work in {partial}") from None
        try:
            yield partial
        finally:
            if partial.exists() and not is_kept:
                if any(partial.glob(_DONE)):
                    logger.info("finished tasks are kept in %s for the next call", partial)
                else:
                    shutil.rmtree(partial)
            (partial / _LOCK_NAME).unlink(missing_ok=True)
            for folder in new_folders:
                with contextlib.suppress(OSError):
                    folder.rmdir()  # those that are empty


def publish(path: Path, kept: Sequence[str]) -> None:
    """Rename PATH.partial to PATH, whatever is there; a crash at any moment leaves one of the two whole.

    Args:
        path: the output folder.
        kept: names of the files that belong to it; all else in PATH.partial is deleted first.
    """
    path = Path(os.path.abspath(path))
    partial = partial_path(path)
    old = path.with_name(f".{path.name}.old-{os.getpid()}")
    for child in partial.iterdir():
        if child.is_dir():
            shutil.rmtree(child)
        elif child.name not in kept:
            child.unlink()
    if path.exists():
        path.rename(old)
    partial.rename(path)
    shutil.rmtree(old, ignore_errors=True)
