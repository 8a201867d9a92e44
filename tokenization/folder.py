"""An output folder that is whole or not there."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from runtime.command import ConfigError


def check_output(path: Path, force: bool, proof: str, inputs: Sequence[str]) -> None:
    """Refuse an output folder that must not be written to.

    Args:
        path: the folder to be.
        force: whether an older output there may be replaced.
        proof: name of a file by which an older output of the same kind is known, so that --force never
            deletes anything else.
        inputs: what is read; it must not lie in the folder.

    Raises:
        ConfigError: there is a file, or a folder that is not empty.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ConfigError(f"--output {path}: is there already and is not a folder")
    if not path.exists() or not any(path.iterdir()):
        return
    if not force:
        raise ConfigError(f"--output {path}: the folder is not empty; name another, or replace it with --force")
    if not (path / proof).is_file():
        raise ConfigError(f"--output {path}: --force replaces an older output alone; there is no {proof} in it")
    for given in inputs:
        if Path(given).resolve().is_relative_to(path.resolve()):
            raise ConfigError(f"--output {path}: holds the input {given}, which --force would delete")


@contextlib.contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder beside the output, and rename it into place when all went well.

    On an error nothing is left behind. A killed process leaves PATH.partial-<pid>, which can be deleted.

    Args:
        path: the output folder; what is there is replaced (see `check_output`).
    """
    path = Path(os.path.abspath(path))
    new_parents = [parent for parent in path.parents if not parent.exists()]
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    old = path.with_name(f"{path.name}.old-{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        yield partial
        if path.exists():
            path.rename(old)
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)
        for parent in new_parents:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise
    shutil.rmtree(old, ignore_errors=True)
