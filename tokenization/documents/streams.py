"""Opens files, local or remote, and decompresses them."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

import fsspec
import zstandard

from runtime.command import ConfigError
from tokenization.documents.model import Source, compression_of, is_url

BLOCK_BYTES = 1 << 20
# Compressed bytes read at once: so few that what they stand for fits into memory, whatever it is.
_COMPRESSED_BYTES = {".gz": 1 << 18, ".bz2": 1 << 18, ".xz": 1 << 18, ".zst": 1 << 14}
_LARGEST_ZSTD_WINDOW = 1 << 31
_DECOMPRESSION_ERRORS = (zlib.error, lzma.LZMAError, zstandard.ZstdError, EOFError, OSError)


class DamagedError(Exception):
    """A file that ends early or cannot be read from some place on.

    Args:
        what: what is wrong with it.
        offset: byte of the decompressed file, or number of the record, up to which it could be read.
    """

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(what)
        self.offset = offset


class HeadEndError(Exception):
    """A reader wants more of a file than the beginning it was given."""


def open_plain(path: str) -> IO[bytes]:
    """Open a file as it is stored.

    Raises:
        ConfigError: a remote file cannot be read.
    """
    if not is_url(path):
        return open(path, "rb", buffering=0)
    with remote_errors(path):
        return cast("IO[bytes]", fsspec.open(path, "rb").open())


def open_text(path: str) -> IO[bytes]:
    """Open a file as it is once decompressed; it can be sought if it is not compressed."""
    compression = compression_of(path)
    plain = open_plain(path)
    return cast("IO[bytes]", Decompressor(plain, compression)) if compression else plain


def read_blocks(stream: IO[bytes], path: str, num_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield what is left of a stream in blocks of at most `num_bytes`.

    Raises:
        DamagedError: the compressed data is damaged or ends early.
        ConfigError: a remote file cannot be read further.
    """
    with remote_errors(path):
        while block := stream.read(num_bytes):
            yield block


@contextmanager
def remote_errors(path: str) -> Iterator[None]:
    """Turn the errors of a remote file system, which are of any class, into `ConfigError`."""
    try:
        yield
    except (ConfigError, DamagedError, HeadEndError):
        raise
    except Exception as error:
        if not is_url(path):
            raise
        what = str(error) or type(error).__name__
        raise ConfigError(f"{path}: cannot be read: {what}") from error


class BlockStream(io.RawIOBase):
    """A stream of the blocks that a subclass gives in `next_block`."""

    def __init__(self) -> None:
        self._rest = memoryview(b"")

    def next_block(self) -> bytes | None:
        """Return some more bytes, perhaps none; None at the end."""
        raise NotImplementedError

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read at least one byte into a buffer, or none at the end."""
        while not self._rest:
            block = self.next_block()
            if block is None:
                return 0
            self._rest = memoryview(block)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


class Decompressor(BlockStream):
    """Decompresses .gz, .bz2, .xz or .zst members one after the other, in bounded memory.

    Unlike the readers of the standard library it gives all bytes before a damaged place, and unlike zstandard's it
    tells a file cut short from a whole one.

    Args:
        file: the compressed file; closed with this one.
        compression: its suffix.
    """

    def __init__(self, file: IO[bytes], compression: str) -> None:
        super().__init__()
        self._file = file
        self._new_member = _MEMBERS[compression]
        self._block_bytes = _COMPRESSED_BYTES[compression]
        self._has_limit = compression != ".zst"
        self._member: Any = None
        self._pending = b""
        self.num_compressed = 0
        self.num_plain = 0

    def close(self) -> None:
        """Close the compressed file."""
        self._file.close()
        super().close()

    def next_block(self) -> bytes | None:
        """Decompress some more."""
        data = self._next_input()
        if data is None:
            return None
        try:
            return self._decompress(data)
        except _DECOMPRESSION_ERRORS as error:
            raise DamagedError(f"its compressed data is damaged: {error}", self.num_plain) from None

    def _next_input(self) -> bytes | None:
        """Return compressed bytes, b"" where the member has more to give without any, None at the file's end."""
        data, self._pending = self._pending, b""
        if not data:
            if not getattr(self._member, "needs_input", True):
                return b""
            data = self._file.read(self._block_bytes)
        if self._member is not None:
            if not data:
                raise DamagedError("ends early, in the middle of its compressed data", self.num_plain)
            return data
        while data and self.num_compressed and not (data := data.lstrip(b"\0")):  # padding between members
            data = self._file.read(self._block_bytes)
        return data or None

    def _decompress(self, data: bytes) -> bytes:
        if self._member is None:
            self._member = self._new_member()
        member = self._member
        plain: bytes = member.decompress(data, BLOCK_BYTES) if self._has_limit else member.decompress(data)
        self._pending = getattr(member, "unconsumed_tail", b"")
        if member.eof:
            self._pending = member.unused_data
            self._member = None
        self.num_compressed += len(data) - len(self._pending)
        self.num_plain += len(plain)
        return plain


_MEMBERS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
    ".zst": lambda: zstandard.ZstdDecompressor(max_window_size=_LARGEST_ZSTD_WINDOW).decompressobj(),
}


def line_number(source: Source, offset: int) -> int:
    """Return the number of the line, from 1, at a byte of a local file's text; 0 where that is not known."""
    if source.is_remote or not source.has_byte_offsets or not source.settings.is_utf8:
        return 0
    number = 1
    with open_text(source.path) as stream:
        while offset > 0 and (block := stream.read(min(offset, BLOCK_BYTES))):
            number += block.count(b"\n")
            offset -= len(block)
    return number
