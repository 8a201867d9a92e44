"""Files that are either whole or not there, and the readers of the two settings formats."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from runtime.command import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

_BLOCK_BYTES = 1 << 20


def sha256_of(path: str | Path) -> str:
    """Return the sha256 of a file's bytes as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file atomically: after a crash it holds the old bytes or the new ones, never a part.

    Args:
        path: where; its folder is there already.
        data: the whole content.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """Write a value as indented JSON, atomically; keys keep their order."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file.

    Args:
        path: a UTF-8 file of plain JSON: no comments, no trailing commas, no key twice.

    Returns:
        What it holds.

    Raises:
        ConfigError: there is no such file, or it is not JSON; names the line, the column and what is there.
    """
    text = _read_text(path)
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        position, what = _cause(text, error)
        # json counts "\n" alone; the end may be a line of its own.
        number = text.count("\n", 0, position) + 1
        column = position - text.rfind("\n", 0, position)
        line = text.split("\n")[number - 1].strip()
        raise ConfigError(f"{path}:{number}:{column}: not plain JSON: {what}: {line!r}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: there is no such file, or it is not TOML.
    """
    text = _read_text(path)
    try:
        return parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML document.

    Raises:
        ValueError: it is not TOML.
    """
    return tomllib.loads(text)


def _read_text(path: str | Path) -> str:
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file" if not path.is_dir() else f"{path}: is a directory, not a file")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from None


def _cause(text: str, error: json.JSONDecodeError) -> tuple[int, str]:
    """Say what people write that is not JSON: the position of it, and its name."""
    position = error.pos
    rest = text[position:]
    for mark in ("//", "#", "/*"):
        if rest.startswith(mark):
            return position, f"a comment ({mark}); JSON has none, take it out"
    before = text[:position].rstrip()
    if before.endswith(",") and rest.startswith(("}", "]")):
        return len(before) - 1, f"a trailing comma before {rest[0]!r}; take it out"
    if error.msg.startswith("Illegal trailing comma"):  # from Python 3.13 on, at the comma itself
        return position, f"a trailing comma before {rest[1:].lstrip()[:1]!r}; take it out"
    if rest.startswith("'"):
        return position, 'single quotes; write "..."'
    return position, error.msg


def _refuse_constant(name: str) -> NoReturn:
    raise ConfigError(f"{name} is not JSON; write a number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ConfigError(f"key {twice[0]!r} stands twice in one object; keep one")
    return dict(pairs)
