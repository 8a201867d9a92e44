r"""The .bin/.idx token format of Megatron (MMIDIDX, version 1): writer and memory-mapped reader.

NAME.bin holds the token ids of all sentences end to end. NAME.idx, little-endian:

    9 bytes   b"MMIDIDX\x00\x00"
    uint64    version, 1
    uint8     code of the ids' type: 3 = int16, 4 = int32
    uint64    S, sentences
    uint64    D + 1, documents and one
    int32     x S      tokens of each sentence
    int64     x S      byte of NAME.bin at which it starts
    int64     x (D+1)  index of the first sentence of each document; starts with 0, ends with S

Ids are written as int16 where the vocabulary has 32,768 tokens at most (BERT's has 30,522), else as int32: Megatron's
reader and DeepSpeed's agree on their codes. They do not on uint16, which is 8 to Megatron and 6 to DeepSpeed, where 8
is uint64. The reader here takes Megatron's uint16 shards as well.
"""

from __future__ import annotations

import struct
import uuid
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.command import ConfigError

_HEADER = struct.Struct("<9sQBQQ")
_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_DTYPES: dict[int, type[np.integer[Any]]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
}
_PIECE_SENTENCES = 1 << 20
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


class ShardCounts(NamedTuple):
    """What a shard holds."""

    documents: int
    sentences: int
    tokens: int


def bin_path(prefix: Path) -> Path:
    """Return the path of a shard's token ids."""
    return prefix.with_name(f"{prefix.name}.bin")


def idx_path(prefix: Path) -> Path:
    """Return the path of a shard's index."""
    return prefix.with_name(f"{prefix.name}.idx")


def idx_bytes(documents: int, sentences: int) -> int:
    """Return the size of an index in bytes."""
    return _HEADER.size + 12 * sentences + 8 * (documents + 1)


class IndexedWriter:
    """Writes one shard; a context manager. Both files get their names in `close`, so there is a whole shard or none.

    Two processes that write the same shard do not disturb each other: the last to close it stays.

    Args:
        prefix: path without suffix; its folder is there.
        dtype: type of the token ids, such as np.int16.
    """

    def __init__(self, prefix: Path, dtype: type[np.integer[Any]]) -> None:
        """Open a file beside NAME.bin for writing."""
        if dtype not in _CODES:
            raise ValueError(f"{prefix}: no code for token type {dtype!r}; known: {list(_CODES)}")
        self.prefix = prefix
        self._dtype = dtype
        self._sentence_lengths = array("i")
        self._document_starts = array("q", [0])
        self._tokens = 0
        self._unfinished = prefix.with_name(f"{prefix.name}.{uuid.uuid4().hex}")
        self._stream = open(self._unfinished, "xb")  # closed in close()

    def __enter__(self) -> IndexedWriter:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the shard; after an error nothing of it stays."""
        if error is None:
            self.close()
        else:
            self._stream.close()
            self._unfinished.unlink(missing_ok=True)

    def add_document(self, sentences: Sequence[Sequence[int] | NDArray[Any]]) -> None:
        """Append a document.

        Args:
            sentences: token ids of each sentence, without special tokens.

        Raises:
            ValueError: no sentence, an empty one, or ids outside the type; nothing of the document is
                written.
        """
        arrays = [self._convert(sentence) for sentence in sentences]
        if not arrays:
            raise ValueError(f"{self.prefix}: a document without a sentence")
        for ids in arrays:
            self._sentence_lengths.append(ids.size)
            self._tokens += ids.size
        self._document_starts.append(len(self._sentence_lengths))
        self._stream.write(np.concatenate(arrays).tobytes())

    def add_documents(
        self, ids: NDArray[Any], sentence_lengths: NDArray[Any], document_sentences: NDArray[Any]
    ) -> None:
        """Append documents that stand end to end in one array.

        Args:
            ids: (tokens,) of the shard's type.
            sentence_lengths: (sentences,) tokens of each sentence, 1 or more.
            document_sentences: (documents,) sentences of each document, 1 or more.

        Raises:
            ValueError: another type, an empty sentence or document, or sums that disagree; nothing is written.
        """
        if ids.dtype != self._dtype:
            raise ValueError(f"{self.prefix}: ids of type {ids.dtype}, the shard's is {np.dtype(self._dtype).name}")
        for what, counts, wanted in (
            ("tokens", sentence_lengths, ids.size),
            ("sentences", document_sentences, sentence_lengths.size),
        ):
            if counts.size == 0 or counts.min() < 1 or int(counts.sum(dtype=np.int64)) != wanted:
                raise ValueError(f"{self.prefix}: counts of {what} must be 1 or more and add up to {wanted}")
        ends = len(self._sentence_lengths) + np.cumsum(document_sentences, dtype=np.int64)
        self._sentence_lengths.frombytes(sentence_lengths.astype(np.int32).tobytes())
        self._document_starts.frombytes(ends.tobytes())
        self._tokens += ids.size
        self._stream.write(ids.tobytes())

    def close(self) -> ShardCounts:
        """Write the index and return what the shard holds."""
        counts = ShardCounts(len(self._document_starts) - 1, len(self._sentence_lengths), self._tokens)
        if self._stream.closed:
            return counts
        self._stream.close()
        lengths = np.array(self._sentence_lengths, dtype="<i4")
        pointers = np.zeros(len(lengths), dtype="<i8")
        if len(lengths):
            np.cumsum(lengths[:-1], dtype=np.int64, out=pointers[1:])
        pointers *= np.dtype(self._dtype).itemsize
        self._unfinished.replace(bin_path(self.prefix))
        with open(self._unfinished, "xb") as stream:
            stream.write(_HEADER.pack(_MAGIC, _VERSION, _CODES[self._dtype], counts.sentences, counts.documents + 1))
            stream.write(lengths.tobytes())
            stream.write(pointers.tobytes())
            stream.write(np.array(self._document_starts, dtype="<i8").tobytes())
        self._unfinished.replace(idx_path(self.prefix))
        return counts

    def _convert(self, sentence: Sequence[int] | NDArray[Any]) -> NDArray[Any]:
        ids = np.asarray(sentence)
        if ids.ndim != 1 or ids.size == 0:
            raise ValueError(f"{self.prefix}: a sentence of shape {ids.shape}; (tokens,) with 1 or more is wanted")
        if ids.dtype == self._dtype:
            return ids
        limits = np.iinfo(self._dtype)
        if ids.dtype.kind not in "iu" or ids.min() < limits.min or ids.max() > limits.max:
            raise ValueError(f"{self.prefix}: a sentence holds ids that are no {np.dtype(self._dtype).name}")
        return ids.astype(self._dtype)


class IndexedReader:
    """Opens one shard; nothing is copied into memory.

    Args:
        prefix: path without suffix.

    Attributes:
        dtype: type of the token ids.
        tokens: (tokens,) of that type: all sentences end to end.
        sentence_lengths: (S,) int32, in tokens.
        sentence_pointers: (S,) int64, in bytes.
        document_indices: (D + 1,) int64: first sentence of each document, and S.

    Raises:
        ConfigError: a file is missing, is not of this format, or is cut short.
    """

    def __init__(self, prefix: Path) -> None:
        """Map both files and check that they belong together."""
        self._index_path = idx_path(Path(prefix))
        for path in (self._index_path, bin_path(Path(prefix))):
            if not path.is_file():
                raise ConfigError(f"{path}: no such file")
        self.dtype, num_sentences, num_boundaries = self._read_header()
        self._check_size(self._index_path, idx_bytes(num_boundaries - 1, num_sentences))
        index = np.memmap(self._index_path, dtype=np.uint8, mode="r", offset=_HEADER.size)
        ends = np.cumsum([4 * num_sentences, 8 * num_sentences, 8 * num_boundaries])
        self.sentence_lengths: NDArray[np.int32] = index[: ends[0]].view("<i4")
        self.sentence_pointers: NDArray[np.int64] = index[ends[0] : ends[1]].view("<i8")
        self.document_indices: NDArray[np.int64] = index[ends[1] : ends[2]].view("<i8")
        num_tokens = int(self.sentence_lengths.sum(dtype=np.int64))
        self._check_size(bin_path(Path(prefix)), num_tokens * self.dtype.itemsize)
        self._check_index()
        self.tokens: NDArray[Any] = (
            np.memmap(bin_path(Path(prefix)), dtype=self.dtype, mode="r") if num_tokens else np.zeros(0, self.dtype)
        )

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self.sentence_lengths)

    def __getitem__(self, sentence: int) -> NDArray[Any]:
        """Return the token ids (tokens,) of a sentence."""
        start = int(self.sentence_pointers[sentence]) // self.dtype.itemsize
        return self.tokens[start : start + int(self.sentence_lengths[sentence])]

    def _read_header(self) -> tuple[np.dtype[Any], int, int]:
        with open(self._index_path, "rb") as stream:
            header = stream.read(_HEADER.size)
        if not header.startswith(_MAGIC):
            raise ConfigError(f"{self._index_path}: not a .idx file of Megatron: it does not start with {_MAGIC!r}")
        if len(header) < _HEADER.size:
            raise ConfigError(f"{self._index_path}: cut short: {len(header)} bytes")
        _, version, code, num_sentences, num_boundaries = _HEADER.unpack(header)
        if version != _VERSION:
            raise ConfigError(f"{self._index_path}: version {version}; only version {_VERSION} can be read")
        if code not in _DTYPES:
            raise ConfigError(f"{self._index_path}: token type code {code}; known: {sorted(_DTYPES)}")
        if num_boundaries < 1:
            raise ConfigError(f"{self._index_path}: holds no document boundaries")
        return np.dtype(_DTYPES[code]), num_sentences, num_boundaries

    def _check_size(self, path: Path, wanted: int) -> None:
        size = path.stat().st_size
        if size != wanted:
            raise ConfigError(f"{path}: {size} bytes where {wanted} are due; the file is cut short or not this shard's")

    def _check_index(self) -> None:
        """Check that lengths, pointers and boundaries agree, a piece at a time: it may be larger than memory."""
        start = 0
        is_whole = True
        for first in range(0, len(self), _PIECE_SENTENCES):
            lengths = np.asarray(self.sentence_lengths[first : first + _PIECE_SENTENCES], dtype=np.int64)
            ends = start + np.cumsum(lengths * self.dtype.itemsize)
            pointers = self.sentence_pointers[first : first + _PIECE_SENTENCES]
            is_whole &= bool((lengths >= 0).all()) and int(pointers[0]) == start
            is_whole &= np.array_equal(pointers[1:], ends[:-1])
            start = int(ends[-1])
        boundaries = self.document_indices
        for first in range(0, len(boundaries) - 1, _PIECE_SENTENCES):
            is_whole &= bool((np.diff(boundaries[first : first + _PIECE_SENTENCES + 1]) >= 0).all())
        if not is_whole or boundaries[0] != 0 or boundaries[-1] != len(self):
            raise ConfigError(f"{self._index_path}: lengths, pointers and document boundaries disagree")
