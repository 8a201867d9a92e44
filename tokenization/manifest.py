"""manifest.json: what a folder of shards holds, what it was made from, and hashes to check it by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

import numpy as np

from runtime.command import ConfigError
from runtime.files import read_json, sha256_of, write_json
from tokenization.indexed import ShardCounts, bin_path, idx_bytes, idx_path

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

    @classmethod
    def of(cls, prefix: Path, counts: ShardCounts) -> ShardInfo:
        """Return what is to be said of a shard that was just closed; reads both files for their hashes."""
        files = (bin_path(prefix), idx_path(prefix))
        return cls(prefix.name, *counts, files[0].stat().st_size, *(sha256_of(path) for path in files))


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
        ConfigError: the folder or the manifest is missing, of another format or version, a field is missing or of the
            wrong kind, or a file's size disagrees.
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
    manifest = _parse(directory, sha256_of(path), value)
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
    fields = _Fields(directory / MANIFEST_NAME, value)
    tokenizer = fields.inner("tokenizer")
    splits = fields.inner("splits")
    settings = fields.inner("settings")
    if settings.value.get("tokenizer") is not None:
        settings.text("tokenizer")
    dtype = fields.text("dtype")
    if dtype not in _DTYPES:
        raise ConfigError(f'{fields.path}: "dtype" is {dtype!r}; known: {", ".join(_DTYPES)}')
    return Manifest(
        directory=directory,
        fingerprint=fingerprint,
        tokenizer_fingerprint=tokenizer.text("fingerprint"),
        vocab_size=tokenizer.count("vocab_size"),
        dtype=dtype,
        splits={name: _parse_split(splits.inner(name)) for name in SPLITS},
        sources=[source.value for source in fields.list_of("sources")],
        settings=settings.value,
        dropped=fields.inner("dropped").counts(),
        repaired=fields.inner("repaired").counts() if "repaired" in value else {},
        places=[place.value for place in fields.list_of("places")] if "places" in value else [],
        text_bytes=fields.count("text_bytes"),
    )


def _parse_split(split: _Fields) -> SplitInfo:
    shards = tuple(_parse_shard(shard) for shard in split.list_of("shards"))
    info = SplitInfo(split.count("documents"), split.count("sentences"), split.count("tokens"), shards)
    if info != SplitInfo.of(shards):
        raise ConfigError(f"{split.path}: {split.name}: sums are not those of its shards")
    return info


def _parse_shard(shard: _Fields) -> ShardInfo:
    unknown = shard.value.keys() - {field.name for field in fields_of(ShardInfo)}
    if unknown:
        raise ConfigError(f'{shard.path}: "{shard.name}" has a field that no shard has: {min(unknown)!r}')
    name = shard.text("name")
    if Path(name).name != name:
        raise ConfigError(f'{shard.path}: "{shard.name}.name" is {name!r}; must be a file name without a folder')
    return ShardInfo(
        name=name,
        documents=shard.count("documents"),
        sentences=shard.count("sentences"),
        tokens=shard.count("tokens"),
        bytes=shard.count("bytes"),
        sha256=shard.text("sha256"),
        idx_sha256=shard.text("idx_sha256"),
    )


@dataclass(frozen=True)
class _Fields:
    """An object of the manifest; what is taken from it must be there and of the right kind.

    Args:
        path: of the manifest.
        value: the object.
        name: where it stands, as "splits.train"; "" for the manifest itself.
    """

    path: Path
    value: Mapping[str, Any]
    name: str = ""

    def inner(self, key: str) -> _Fields:
        """Return an object in it."""
        found = self._take(key)
        if not isinstance(found, dict):
            raise self._wrong(key, found, "an object")
        return _Fields(self.path, found, self._name_of(key))

    def list_of(self, key: str) -> list[_Fields]:
        """Return the objects of a list in it."""
        found = self._take(key)
        if not isinstance(found, list):
            raise self._wrong(key, found, "a list of objects")
        names = [f"{key}[{number}]" for number in range(len(found))]
        for name, item in zip(names, found, strict=True):
            if not isinstance(item, dict):
                raise self._wrong(name, item, "an object")
        return [_Fields(self.path, item, self._name_of(name)) for name, item in zip(names, found, strict=True)]

    def text(self, key: str) -> str:
        """Return a text in it."""
        found = self._take(key)
        if not isinstance(found, str):
            raise self._wrong(key, found, "a text")
        return found

    def count(self, key: str) -> int:
        """Return a number in it."""
        found = self._take(key)
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise self._wrong(key, found, "a whole number, 0 or more")
        return found

    def counts(self) -> dict[str, int]:
        """Return all of it as numbers."""
        return {key: self.count(key) for key in self.value}

    def _take(self, key: str) -> Any:
        if key not in self.value:
            raise ConfigError(f'{self.path}: "{self._name_of(key)}" is missing')
        return self.value[key]

    def _name_of(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def _wrong(self, key: str, found: Any, rule: str) -> ConfigError:
        return ConfigError(f'{self.path}: "{self._name_of(key)}" is {_cut(repr(found))}; must be {rule}')


def _cut(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


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
