"""The shards of a split end to end: where every sentence stands, and the tokens of any span.

A token's offset counts from the first token of the split's first shard. A document lies in one shard, so a
segment never crosses from one shard into the next.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import intrinsic

from pretrain.data.arrays import ArrayWriter, map_arrays, provide_folder, read_only
from runtime.command import ConfigError
from runtime.seeding import compiled
from tokenization.indexed import IndexedReader, bin_path
from tokenization.manifest import Manifest, SplitInfo

Int64Array = npt.NDArray[np.int64]
MappedShards = tuple[Int64Array, Int64Array, npt.NDArray[Any]]
"""Address of each shard's first token; `shard_token_starts`; an empty array of the tokens' dtype."""

_FORMAT_VERSION = 1
_DTYPES = {"sentence_offsets": np.int64, "document_starts": np.int64}
_PIECE_SENTENCES = 1 << 20


def split_of(manifest: Manifest, split: str) -> SplitInfo:
    """Return what the manifest says of a split.

    Raises:
        ConfigError: There is no such split, or it holds no document.
    """
    info = manifest.splits.get(split)
    if info is None:
        raise ConfigError(f"{manifest.directory}: no split {split!r}; it has {', '.join(sorted(manifest.splits))}")
    if info.documents == 0:
        raise ConfigError(f"{manifest.directory}: split {split!r} holds no document")
    return info


def shard_token_starts(info: SplitInfo) -> Int64Array:
    """Return the offset of each shard's first token, and the total at the end: int64 (shards + 1,)."""
    sizes = [shard.tokens for shard in info.shards]
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)


@dataclass(frozen=True)
class SentenceIndex:
    """Where the documents and sentences of a split stand, in a few flat arrays.

    Attributes:
        sentence_offsets: int64 (sentences + 1,): offset of each sentence's first token, and the total.
        document_starts: int64 (documents + 1,): number of each document's first sentence, and the total.
        shard_token_starts: int64 (shards + 1,): offset of each shard's first token, and the total.
    """

    sentence_offsets: Int64Array
    document_starts: Int64Array
    shard_token_starts: Int64Array

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.document_starts) - 1

    @property
    def num_sentences(self) -> int:
        """Number of sentences."""
        return len(self.sentence_offsets) - 1

    @property
    def sentence_lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each sentence: int32 (sentences,), computed at every call."""
        return np.diff(self.sentence_offsets).astype(np.int32)

    @classmethod
    def open(
        cls,
        manifest: Manifest,
        split: str,
        cache_dir: str | Path | None = None,
        piece_sentences: int = _PIECE_SENTENCES,
    ) -> SentenceIndex:
        """Read the index of a split's shards.

        Args:
            manifest: The shard dir's manifest.
            split: "train", "validation", ...
            cache_dir: Where to keep the arrays as .npy files and map them from; None keeps them in memory, 8
                bytes a sentence.
            piece_sentences: Sentences handled at a time.

        Returns:
            The index.

        Raises:
            ConfigError: The split is missing or empty, a shard has a document or sentence without tokens, or
                it does not hold what the manifest says.
        """
        info = split_of(manifest, split)
        token_starts = read_only(shard_token_starts(info))
        if cache_dir is None:
            pieces: dict[str, list[Int64Array]] = {name: [] for name in _DTYPES}
            for name, values in _scan(manifest, info, piece_sentences):
                pieces[name].append(values)
            arrays = {name: read_only(np.concatenate(pieces[name])) for name in _DTYPES}
        else:
            inputs = f"{_FORMAT_VERSION} {manifest.fingerprint} {split}"
            key = hashlib.sha256(inputs.encode()).hexdigest()[:32]

            def build(folder: Path) -> None:
                _write(folder, _scan(manifest, info, piece_sentences))

            folder = Path(cache_dir) / f"sentences-{split}-{key}"
            provide_folder(folder, build, may_build=True, wait_seconds=0.0)
            arrays = map_arrays(folder, _DTYPES)
        return cls(shard_token_starts=token_starts, **arrays)


class TokenStore:
    """The tokens of a split's shards, memory-mapped, addressed by offset."""

    def __init__(self, manifest: Manifest, split: str) -> None:
        """Map the shards of a split.

        Args:
            manifest: The shard dir's manifest.
            split: "train", "validation", ...

        Raises:
            ConfigError: The split is missing or empty, or a shard holds another number of tokens than the
                manifest says.
        """
        info = split_of(manifest, split)
        self._starts = shard_token_starts(info)
        self._dtype = np.dtype(manifest.dtype)
        self._shards = []
        for shard in info.shards:
            # not through IndexedReader, which reads the whole index: every rank starts here
            path = bin_path(manifest.directory / shard.name)
            size = path.stat().st_size
            if size != shard.tokens * self._dtype.itemsize:
                raise ConfigError(f"{path}: {size} bytes, manifest.json says {shard.tokens} tokens")
            self._shards.append(_map_tokens(path, self._dtype) if size else np.empty(0, self._dtype))
        addresses = np.array([shard.ctypes.data for shard in self._shards], dtype=np.int64)
        self._mapped = (addresses, self._starts, np.empty(0, dtype=self._dtype))

    @property
    def mapped(self) -> MappedShards:
        """What `copy_span` reads from; it lives no longer than the store."""
        return self._mapped

    @property
    def num_tokens(self) -> int:
        """Tokens of the split."""
        return int(self._starts[-1])

    def gather(self, starts: Int64Array, lengths: Int64Array) -> npt.NDArray[Any]:
        """Return the tokens of spans, one after the other.

        Args:
            starts: int64 (n,): offset of each span's first token.
            lengths: int64 (n,): tokens of each span, 0 or more. A span lies in one shard.

        Returns:
            Tokens (sum of lengths,) in the shards' own dtype.

        Raises:
            IndexError: A span does not lie in one shard.
        """
        tokens = np.empty(int(lengths.sum()), dtype=self._dtype)
        _copy_spans(self._mapped, starts, lengths, tokens)
        return tokens


def _map_tokens(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Map a .bin file that is not empty; pairs are read at random, so the kernel is told not to read ahead."""
    with open(path, "rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_RANDOM"):  # else not of this system
        mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, dtype=dtype)


@intrinsic  # type: ignore[untyped-decorator]
def _as_pointer(_: Any, address: Any) -> Any:
    """Return an address, int64, as a pointer."""

    def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), generate


@compiled
def borrowed(array: Any) -> Any:
    """Return a 1-D array without its count of references, which every slice of it would change.

    The array itself must be kept meanwhile.
    """
    return numba.carray(_as_pointer(array.ctypes.data), len(array), array.dtype)


@compiled
def copy_span(mapped: Any, start: int, out: Any) -> Any:
    """Copy the tokens of a span, whatever their dtype, and return the largest, uint64: negative ones are huge.

    Args:
        mapped: See `TokenStore.mapped`. Addresses, because taking an array out of a list costs more than
            copying a segment.
        start: Offset of the span's first token in the split.
        out: (n,): is filled.

    Raises:
        IndexError: The span does not lie in one shard.
    """
    addresses, shard_starts, like = mapped
    number = np.searchsorted(shard_starts, start, side="right") - 1
    if number < 0 or number >= len(addresses) or start + len(out) > shard_starts[number + 1]:
        raise IndexError("a span of tokens that lies in no shard")
    address = addresses[number] + like.itemsize * (start - shard_starts[number])
    tokens = numba.carray(_as_pointer(address), len(out), like.dtype)
    largest = np.uint64(0)
    for place in range(len(out)):
        largest = max(largest, np.uint64(tokens[place]))
        out[place] = tokens[place]
    return largest


@compiled
def _copy_spans(mapped: Any, starts: Any, lengths: Any, out: Any) -> None:
    """Copy the spans that begin at `starts` (offsets in the split) into `out`, end to end."""
    place = np.int64(0)
    for span in range(len(starts)):
        length = np.int64(lengths[span])
        if length > 0:
            copy_span(mapped, starts[span], out[place : place + length])
            place += length


def _scan(manifest: Manifest, info: SplitInfo, piece_sentences: int) -> Iterator[tuple[str, Int64Array]]:
    """Yield (array name, next values) of the index, reading the shards one by one, a piece at a time."""
    tokens = sentences = 0
    for shard in info.shards:
        path = manifest.directory / shard.name
        reader = IndexedReader(path)
        if reader.dtype != np.dtype(manifest.dtype):
            raise ConfigError(f"{path}: holds {reader.dtype}, manifest.json says {manifest.dtype}")
        starts = np.asarray(reader.document_indices, dtype=np.int64)
        if len(starts) > 1 and np.diff(starts).min() < 1:
            document = int(np.argmin(np.diff(starts)))
            raise ConfigError(f"{path}: document {document} holds no sentence")
        yield "document_starts", starts[:-1] + sentences
        shard_tokens = 0
        for first in range(0, len(reader.sentence_lengths), piece_sentences):
            lengths = np.asarray(reader.sentence_lengths[first : first + piece_sentences], dtype=np.int64)
            if lengths.min() < 1:
                raise ConfigError(f"{path}: sentence {first + int(np.argmin(lengths))} holds no token")
            ends = np.cumsum(lengths)
            yield "sentence_offsets", ends - lengths + (tokens + shard_tokens)
            shard_tokens += int(ends[-1])
        _check_count(manifest, shard.name, "documents", len(starts) - 1, shard.documents)
        _check_count(manifest, shard.name, "tokens", shard_tokens, shard.tokens)
        tokens += shard_tokens
        sentences += len(reader.sentence_lengths)
    yield "document_starts", np.array([sentences], dtype=np.int64)
    yield "sentence_offsets", np.array([tokens], dtype=np.int64)


def _write(folder: Path, pieces: Iterator[tuple[str, Int64Array]]) -> None:
    writers = {name: ArrayWriter(folder / f"{name}.npy", dtype) for name, dtype in _DTYPES.items()}
    try:
        for name, values in pieces:
            writers[name].append(values)
    finally:
        for writer in writers.values():
            writer.close()


def _check_count(manifest: Manifest, shard: str, what: str, found: int, said: int) -> None:
    if found != said:
        raise ConfigError(f"{manifest.directory / shard}: holds {found} {what}, manifest.json says {said}")
