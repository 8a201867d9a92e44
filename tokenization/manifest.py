"""manifest.json: what a folder of shards holds, what it was made from, and hashes to check it by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runtime.command import ConfigError
from runtime.files import read_json, sha256_of, write_json
from tokenization.indexed import bin_path, idx_bytes, idx_path

MANIFEST_NAME = "manifest.json"
FORMAT = "zerobert-shards"
VERSION = 2
_READABLE_VERSIONS = (1, 2)  # 1 tells of no repairs
SPLITS = ("train", "validation")
_DTYPES = ("int16", "int32", "uint16")


@dataclass(frozen=True)
class ShardInfo:
    """One .bin/.idx couple.

    Args:
        name: file name without suffix.
        documents: documents in it.
        sentences: sentences in it.
        tokens: token ids in it.
        bytes: size of NAME.bin.
        sha256: of NAME.bin.
        idx_sha256: of NAME.idx.
    """

    name: str
    documents: int
    sentences: int
    tokens: int
    bytes: int
    sha256: str
    idx_sha256: str


@dataclass(frozen=True)
class SplitInfo:
    """The shards of a split and their sums."""

    documents: int
    sentences: int
    tokens: int
    shards: tuple[ShardInfo, ...]

    @classmethod
    def of(cls, shards: tuple[ShardInfo, ...]) -> SplitInfo:
        """Sum up shards."""
        return cls(
            documents=sum(shard.documents for shard in shards),
            sentences=sum(shard.sentences for shard in shards),
            tokens=sum(shard.tokens for shard in shards),
            shards=shards,
        )


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What manifest.json says.

    Args:
        tokenizer_fingerprint: sha256 of the tokenizer.json that the ids belong to.
        vocab_size: tokens of that tokenizer.
        dtype: "int16" or "int32" ("uint16" where Megatron wrote the shards).
        splits: "train" and "validation".
        sources: {"path", "bytes", "sha256"} of every input file.
        settings: what the shards were made with.
        dropped: how many documents, lines and sentences were left out, by reason.
        repaired: faults of the input in documents that were kept, by reason.
        places: the first {"path", "offset", "reason", "detail"} of each kind of fault, repaired or left out.
        text_bytes: UTF-8 bytes of the text as it was read.
    """

    tokenizer_fingerprint: str
    vocab_size: int
    dtype: str
    splits: Mapping[str, SplitInfo]
    sources: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any]
    dropped: Mapping[str, int]
    repaired: Mapping[str, int]
    places: Sequence[Mapping[str, Any]]
    text_bytes: int


@dataclass(frozen=True, kw_only=True)
class Manifest(Contents):
    """A folder of shards: the contents of its manifest, and where it is.

    Args:
        directory: the folder.
        fingerprint: sha256 of manifest.json.
    """

    directory: Path
    fingerprint: str


def tokenizer_fingerprint(directory: str | Path) -> str:
    """Return the fingerprint of a tokenizer folder: the sha256 of its tokenizer.json.

    Raises:
        ConfigError: there is no tokenizer.json.
    """
    path = Path(directory) / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; a tokenizer folder is wanted (zerobert tokenizer makes one)")
    return sha256_of(path)


def write_manifest(directory: Path, contents: Contents) -> None:
    """Write manifest.json, the last file of a folder of shards."""
    write_json(
        directory / MANIFEST_NAME,
        {
            "format": FORMAT,
            "version": VERSION,
            "tokenizer": {"fingerprint": contents.tokenizer_fingerprint, "vocab_size": contents.vocab_size},
            "dtype": contents.dtype,
            "splits": {name: asdict(split) for name, split in contents.splits.items()},
            "sources": [dict(source) for source in contents.sources],
            "settings": dict(contents.settings),
            "dropped": dict(contents.dropped),
            "repaired": dict(contents.repaired),
            "places": [dict(place) for place in contents.places],
            "text_bytes": contents.text_bytes,
        },
    )


def load_manifest(directory: str | Path) -> Manifest:
    """Read a folder's manifest and compare the sizes of its files; `verify` compares their contents too.

    Raises:
        ConfigError: the folder or the manifest is missing, of another format or version, or a file's size
            disagrees.
    """
    directory = Path(directory)
    path = directory / MANIFEST_NAME
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such folder of shards")
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; a folder of shards is wanted (zerobert shard makes one)")
    value = read_json(path)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ConfigError(f'{path}: not a manifest of shards: "format" must be {FORMAT!r}')
    if value.get("version") not in _READABLE_VERSIONS:
        known = " and ".join(map(str, _READABLE_VERSIONS))
        raise ConfigError(f'{path}: "version" is {value.get("version")!r}; this program reads {known}')
    try:
        manifest = _parse(directory, sha256_of(path), value)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: a field is missing or of the wrong kind: {error}") from None
    if manifest.dtype not in _DTYPES:
        raise ConfigError(f'{path}: "dtype" is {manifest.dtype!r}; known: {", ".join(_DTYPES)}')
    for split in manifest.splits.values():
        for shard in split.shards:
            _check_sizes(manifest, shard)
    return manifest


def verify(manifest: Manifest) -> None:
    """Hash every file of a folder of shards and compare it with the manifest.

    Raises:
        ConfigError: a file holds other bytes than the manifest says.
    """
    for split in manifest.splits.values():
        for shard in split.shards:
            prefix = manifest.directory / shard.name
            for path, wanted in ((bin_path(prefix), shard.sha256), (idx_path(prefix), shard.idx_sha256)):
                found = sha256_of(path)
                if found != wanted:
                    raise ConfigError(f"{path}: was changed: sha256 {found}, {MANIFEST_NAME} says {wanted}")


def _parse(directory: Path, fingerprint: str, value: Mapping[str, Any]) -> Manifest:
    splits = {}
    for name in SPLITS:
        split = value["splits"][name]
        shards = tuple(ShardInfo(**shard) for shard in split["shards"])
        splits[name] = SplitInfo(split["documents"], split["sentences"], split["tokens"], shards)
        if splits[name] != SplitInfo.of(shards):
            raise ConfigError(f"{directory / MANIFEST_NAME}: split {name!r}: sums are not those of its shards")
    return Manifest(
        directory=directory,
        fingerprint=fingerprint,
        tokenizer_fingerprint=value["tokenizer"]["fingerprint"],
        vocab_size=value["tokenizer"]["vocab_size"],
        dtype=value["dtype"],
        splits=splits,
        sources=value["sources"],
        settings=value["settings"],
        dropped=value["dropped"],
        repaired=value.get("repaired", {}),
        places=value.get("places", []),
        text_bytes=value["text_bytes"],
    )


def _check_sizes(manifest: Manifest, shard: ShardInfo) -> None:
    prefix = manifest.directory / shard.name
    itemsize = np.dtype(manifest.dtype).itemsize
    due = {
        bin_path(prefix): shard.tokens * itemsize,
        idx_path(prefix): idx_bytes(shard.documents, shard.sentences),
    }
    if shard.bytes != shard.tokens * itemsize:
        raise ConfigError(
            f"{manifest.directory / MANIFEST_NAME}: shard {shard.name}: {shard.bytes} bytes are not "
            f"{shard.tokens} tokens of {manifest.dtype}"
        )
    for path, wanted in due.items():
        if not path.is_file():
            raise ConfigError(f"{path}: no such file, though {MANIFEST_NAME} lists it")
        size = path.stat().st_size
        if size != wanted:
            raise ConfigError(f"{path}: {size} bytes, {MANIFEST_NAME} says {wanted}")
