"""Finds the input files: paths, folders, globs, URLs, datasets. Always in the same order."""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from runtime.command import ConfigError
from runtime.files import read_json
from tokenization.documents.model import ReadSettings, Source, compression_of, few, file_name, is_url
from tokenization.documents.remote import DATASET_PREFIX, find_dataset, find_remote
from tokenization.manifest import FORMAT

logger = logging.getLogger(__name__)

KNOWN_KINDS = (
    ".txt .jsonl .ndjson .json .csv .tsv .xml, each also .gz .bz2 .xz .zst; .parquet .arrow; WikiExtractor's wiki_00"
)
_KINDS = {
    ".txt": "txt",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".xml": "mediawiki",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_WIKIEXTRACTOR_NAME = re.compile(r"wiki_\d+")
_LOCAL_URL = re.compile(r"(?:file|local)://")
_DATASET_LIST = "dataset_dict.json"
_DATASET_STATE = "state.json"
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class _Found:
    """A file, and the --input that named it.

    Args:
        path: local path or URL.
        given: the argument.
        is_named: whether the argument names this file alone.
        num_bytes: size, for a remote file.
        version: for a remote file.
    """

    path: str
    given: str
    is_named: bool
    num_bytes: int = 0
    version: str = ""


def find_files(inputs: Sequence[str | Path], settings: ReadSettings) -> list[Source]:
    """Find the input files; their kind is settled only as far as their names tell it.

    Args:
        inputs: files, in the order in which they are read, or folders, patterns, URLs, datasets.
        settings: how they are read.

    Returns:
        Sources of kind "" (not known), "txt" (layout not known) or a final one.

    Raises:
        ConfigError: an input is missing, or none of its files is of a known kind, or a file is named twice.
    """
    sources: list[Source] = []
    first_names: dict[str, str] = {}
    passed_over: list[str] = []
    for given in map(str, inputs):
        num_before = len(sources)
        for found in _expand(given):
            kind = _kind_of(found, settings)
            if kind is None:
                passed_over.append(found.path)
                continue
            identity = _identity(found.path)
            if identity in first_names:
                first = first_names[identity]
                raise ConfigError(
                    f"--input {found.path}: the same file is there already as {first}; give it once, or its text "
                    "counts twice"
                )
            first_names[identity] = found.path
            sources.append(_describe(found, kind, settings))
        if len(sources) == num_before:
            raise ConfigError(f"--input {given}: holds no file of a known kind; known are {KNOWN_KINDS} (see --format)")
    if passed_over:
        logger.warning("%d files are of no known kind and passed over: %s", len(passed_over), few(passed_over))
    return sources


def _kind_of(found: _Found, settings: ReadSettings) -> str | None:
    """Return the kind a name tells, "" where the beginning must tell it, None for a file to be passed over."""
    if settings.format != "auto":
        return settings.format
    name = file_name(found.path).removesuffix(compression_of(found.path))
    kind = _KINDS.get(PurePosixPath(name).suffix)
    if kind is None and not _WIKIEXTRACTOR_NAME.fullmatch(name) and not found.is_named:
        return None
    return kind or ""


def _describe(found: _Found, kind: str, settings: ReadSettings) -> Source:
    if is_url(found.path):
        return Source(found.path, kind, found.num_bytes, 0, found.version, settings)
    if not os.path.exists(found.path):
        raise ConfigError(f"--input {found.path}: a link that leads nowhere")
    if not os.path.isfile(found.path):
        raise ConfigError(f"--input {found.path}: not a regular file; write it to disk first")
    stat = os.stat(found.path)
    return Source(found.path, kind, stat.st_size, 0, str(stat.st_mtime_ns), settings)


def _identity(path: str) -> str:
    return path if is_url(path) else os.path.realpath(path)


def _expand(given: str) -> Iterator[_Found]:
    """Yield the files an --input stands for."""
    if given.startswith(DATASET_PREFIX) and not os.path.exists(given):
        for file in find_dataset(given):
            yield _Found(file.path, given, True, file.num_bytes, file.version)
        return
    path = _LOCAL_URL.sub("", given, count=1)
    if is_url(path):
        files, is_named = find_remote(path)
        for file in files:
            yield _Found(file.path, given, is_named, file.num_bytes, file.version)
    elif os.path.isdir(path):
        outputs: list[str] = []
        yield from (_Found(file, given, file_is_data) for file, file_is_data in _walk(Path(path), outputs))
        if outputs:
            logger.warning("%d folders hold output of ZeroBERT and are passed over: %s", len(outputs), few(outputs))
    elif os.path.exists(path):
        yield _Found(path, given, True)
    elif glob.has_magic(path):
        yield from _match(path, given)
    else:
        raise ConfigError(f"--input {given}: no such file or folder")


def _match(pattern: str, given: str) -> Iterator[_Found]:
    matches = sorted(match for match in glob.glob(pattern, recursive=True) if not os.path.isdir(match))
    if not matches:
        raise ConfigError(f"--input {given}: no file fits this pattern")
    yield from (_Found(match, given, False) for match in matches)


def _walk(folder: Path, outputs: list[str], seen: frozenset[str] = frozenset()) -> Iterator[tuple[str, bool]]:
    """Yield (file, whether it is known for data) of a folder and those in it, by name.

    Hidden ones are passed over, and so are folders of our own output, which `outputs` takes up.
    """
    identity = os.path.realpath(folder)
    if identity in seen:
        return  # a link to a folder above
    if (folder / _DATASET_LIST).is_file() or (folder / _DATASET_STATE).is_file():
        yield from ((file, True) for file in _saved_dataset(folder))
        return
    for child in sorted(folder.iterdir()):
        if child.name.startswith("."):
            continue
        if not child.is_dir():
            yield str(child), False
        elif _is_output(child):
            outputs.append(str(child))
        else:
            yield from _walk(child, outputs, seen | {identity})


def _is_output(folder: Path) -> bool:
    """Whether a folder holds shards, a tokenizer, or unfinished work on one of them."""
    if (folder / "tokenizer.json").is_file() or (folder.suffix == ".partial" and (folder / "logs").is_dir()):
        return True
    if not (folder / _MANIFEST).is_file():
        return False
    try:
        manifest = read_json(folder / _MANIFEST)
    except (ConfigError, OSError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


def _saved_dataset(folder: Path) -> Iterator[str]:
    """Yield the files of a dataset as `save_to_disk` of Hugging Face's `datasets` leaves it: all its splits."""
    if (folder / _DATASET_LIST).is_file():
        splits = _field(folder / _DATASET_LIST, "splits")
        if not all(isinstance(split, str) for split in splits):
            raise ConfigError(f"{folder / _DATASET_LIST}: 'splits' is to hold names, not {splits}")
        logger.info("%s: a saved dataset; splits read: %s", folder, ", ".join(splits))
        for split in splits:
            yield from _saved_dataset(folder / split)
        return
    if not (folder / _DATASET_STATE).is_file():
        raise ConfigError(f"{folder}: no {_DATASET_STATE}, though {folder.parent / _DATASET_LIST} names this split")
    for entry in _field(folder / _DATASET_STATE, "_data_files"):
        if not isinstance(entry, dict) or not isinstance(entry.get("filename"), str):
            raise ConfigError(f"{folder / _DATASET_STATE}: an entry of '_data_files' has no 'filename': {entry}")
        path = folder / entry["filename"]
        if not path.is_file():
            raise ConfigError(f"{path}: no such file, though {folder / _DATASET_STATE} names it")
        yield str(path)


def _field(path: Path, name: str) -> list[Any]:
    value = read_json(path)
    if not isinstance(value, dict) or not isinstance(value.get(name), list):
        raise ConfigError(f"{path}: no list {name!r}; is this a dataset saved on disk?")
    return list(value[name])
