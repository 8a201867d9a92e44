"""Finds files on fsspec file systems (s3://, gs://, hf://, https:// ...), and datasets on the Hugging Face Hub."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import fsspec
from fsspec.registry import known_implementations

from runtime.command import ConfigError, did_you_mean
from tokenization.documents.streams import remote_errors

DATASET_PREFIX = "dataset:"
_HUB = "hf://datasets/"
_CONVERTED = quote("refs/convert/parquet", safe="")
_DATASET = re.compile(r"(?P<name>[\w.-]+(?:/[\w.-]+){0,2})(?::(?P<split>[\w.-]+))?")
_DEFAULT_SPLIT = "train"
_WAIT_SECONDS = 10.0
_MAGIC = re.compile(r"[*?\[]")
_WEB = ("http://", "https://")
_VERSION_FIELDS = ("ETag", "etag", "sha256", "blob_id", "mtime", "LastModified", "last_modified", "updated", "created")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class RemoteFile:
    """A file on a remote file system: its URL, its size in bytes (0: not told), and what changes when it does."""

    path: str
    num_bytes: int
    version: str


def find_remote(url: str) -> tuple[list[RemoteFile], bool]:
    """Return the files a URL stands for, and whether it names one file alone.

    Args:
        url: a file, a folder or a glob.

    Raises:
        ConfigError: there is none, or the file system cannot be reached.
    """
    file_system, path = _connect(url)
    is_web = url.startswith(_WEB)
    with remote_errors(url):
        if ("*" in url) if is_web else bool(_MAGIC.search(path)):
            found = {name: info for name, info in file_system.glob(path, detail=True).items() if info["type"] == "file"}
            if not found:
                raise ConfigError(f"--input {url}: no file fits this pattern")
        elif is_web:
            return [_describe(url, file_system.info(path))], True
        else:
            info = _info(file_system, path, url)
            if info["type"] == "file":
                return [_describe(url, info)], True
            found = file_system.find(path, detail=True)
        return [_describe(file_system.unstrip_protocol(name), found[name]) for name in sorted(found)], False


def find_dataset(given: str) -> list[RemoteFile]:
    """Return the Parquet files of a dataset on the Hugging Face Hub.

    Args:
        given: "dataset:NAME[/CONFIG][:SPLIT]".

    Raises:
        ConfigError: there is no such dataset, config or split, or the hub cannot be reached.
    """
    match = _DATASET.fullmatch(given.removeprefix(DATASET_PREFIX))
    if match is None:
        raise ConfigError(f"--input {given}: write it as dataset:NAME[/CONFIG][:SPLIT], such as dataset:org/name:train")
    split = match["split"] or _DEFAULT_SPLIT
    return _within(_WAIT_SECONDS, lambda: _find_split(given, match["name"].split("/"), split), given)


def _find_split(given: str, parts: list[str], split: str) -> list[RemoteFile]:
    file_system, _ = _connect(_HUB)
    for num_name_parts in range(min(2, len(parts)), 0, -1):
        root = f"datasets/{'/'.join(parts[:num_name_parts])}@{_CONVERTED}"
        config = "/".join(parts[num_name_parts:])
        with remote_errors(_HUB + "/".join(parts)):
            if not file_system.exists(root) or len(parts) - num_name_parts > 1:
                continue
            config = _choose(given, "config", config, _folders(file_system, root), "default")
            split = _choose(given, "split", split, _folders(file_system, f"{root}/{config}"), split)
            found = file_system.glob(f"{root}/{config}/{split}/*.parquet", detail=True)
            return [_describe(f"hf://{name}", found[name]) for name in sorted(found)]
    raise ConfigError(
        f"--input {given}: the Hugging Face Hub has no such dataset, or no Parquet files of it; is the name right, and "
        "does it need a token (HF_TOKEN)?"
    )


def _folders(file_system: Any, path: str) -> list[str]:
    found = file_system.ls(path, detail=True)
    return sorted(info["name"].rpartition("/")[2] for info in found if info["type"] == "directory")


def _choose(given: str, what: str, wanted: str, known: list[str], default: str) -> str:
    if not wanted:
        wanted = known[0] if len(known) == 1 else default
    if wanted not in known:
        raise ConfigError(
            f"--input {given}: has no {what} {wanted!r}{did_you_mean(wanted, known)}; it has {', '.join(known)}"
        )
    return wanted


def _within(seconds: float, work: Callable[[], _Result], given: str) -> _Result:
    """Do work in a thread that is left behind when it takes too long: the hub's client tries again for minutes."""
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001  # raised again below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise ConfigError(
            f"--input {given}: the Hugging Face Hub did not answer within {seconds:.0f} s; is there network?"
        )
    return results[0]


def _connect(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it.

    Raises:
        ConfigError: there is no such file system, or a package it needs is missing.
    """
    protocol = url.split("://", maxsplit=1)[0].split("::", maxsplit=1)[0]
    try:
        file_system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        advice = known_implementations.get(protocol, {}).get("err", str(error))
        raise ConfigError(f"--input {url}: a package is missing for {protocol}://: {advice}") from None
    except ValueError as error:
        hint = did_you_mean(protocol, known_implementations)
        raise ConfigError(f"--input {url}: {protocol}:// cannot be read{hint}: {error}") from None
    except Exception as error:  # of any class, from any package
        raise ConfigError(f"--input {url}: cannot be reached: {error}") from error
    return file_system, path


def _info(file_system: Any, path: str, url: str) -> dict[str, Any]:
    try:
        return dict(file_system.info(path))
    except FileNotFoundError:
        raise ConfigError(f"--input {url}: no such file or folder") from None


def _describe(url: str, info: dict[str, Any]) -> RemoteFile:
    version = next((str(info[name]) for name in _VERSION_FIELDS if info.get(name)), "")
    return RemoteFile(url, int(info.get("size") or 0), version)
