"""Turns text of any encoding into UTF-8 on the fly, so that all that follows knows UTF-8 alone.

Bytes that cannot be decoded become one byte 0xFF a fault. No UTF-8 text holds that byte, so what reads the result
finds the fault again at its place, and treats it as the policy says.
"""

from __future__ import annotations

import codecs
import threading
from collections.abc import Callable
from typing import IO

from runtime.command import ConfigError, did_you_mean
from tokenization.documents.streams import BlockStream, DamagedError

BAD_BYTE = b"\xff"
# What stands for bad bytes in decoded text: half a surrogate pair, which no decoder gives.
BAD_MARK = "\udcff"
# Name of the codecs' error handler that gives it.
MARKING = "zerobert.mark"
_OF_HOST_NAMES = ("idna", "punycode")
_BLOCK_BYTES = 1 << 16
_MOST_ORIGINS = 1000
_BYTE_ORDER_MARKS = {
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}
_KNOWN = (
    "utf-8",
    "utf-16",
    "utf-32",
    "latin-1",
    "cp1252",
    "cp1251",
    "gb18030",
    "big5",
    "shift_jis",
    "euc_jp",
    "euc_kr",
)


class _Faults(threading.local):
    """Faults of the call of a decoder that runs in this thread: (bytes it was decoding, first bad one)."""

    def __init__(self) -> None:
        self.found: list[tuple[bytes, int]] = []


_faults = _Faults()


def _mark(error: UnicodeError) -> tuple[str | bytes, int]:
    if isinstance(error, UnicodeDecodeError):
        _faults.found.append((error.object, error.start))
        return BAD_MARK, error.end
    if isinstance(error, UnicodeEncodeError):
        return BAD_BYTE * (error.end - error.start), error.end
    raise error


codecs.register_error(MARKING, _mark)


def check_encoding(name: str) -> None:
    """Refuse what is not the name of an encoding of text.

    Raises:
        ConfigError: there is no such encoding.
    """
    try:
        info = codecs.lookup(name)
        is_usable = info._is_text_encoding and info.incrementaldecoder is not None and info.name not in _OF_HOST_NAMES
        is_usable = is_usable and isinstance("".encode(info.name), bytes)
    except (LookupError, ValueError, UnicodeError):
        raise ConfigError(
            f"--encoding {name}: Python knows no such encoding{did_you_mean(name, _KNOWN)}; known are, among others, "
            f"{', '.join(_KNOWN)}"
        ) from None
    if not is_usable:
        raise ConfigError(f"--encoding {name}: not an encoding of text; known are, among others, {', '.join(_KNOWN)}")


def lacks_byte_order(encoding: str, beginning: bytes) -> bool:
    """Whether a file in UTF-16 or UTF-32 does not tell by its first bytes in which order they are."""
    marks = _BYTE_ORDER_MARKS.get(codecs.lookup(encoding).name)
    return marks is not None and len(beginning) >= len(marks[0]) and not beginning.startswith(marks)


def no_byte_order(encoding: str) -> str:
    """Return the message for such a file."""
    name = codecs.lookup(encoding).name
    return f"no byte order mark, which {name} begins with; name the order: --encoding {name}-le or {name}-be"


class Transcoder(BlockStream):
    """Reads a stream in some encoding as UTF-8.

    Args:
        stream: bytes in that encoding; closed with this one.
        encoding: name of the codec.
        on_bad: called with the byte of `stream` at which bytes cannot be decoded, and the first of them; it may
            raise.

    Attributes:
        origins: byte of `stream` for the byte of the result, for the first thousand faults.
    """

    def __init__(self, stream: IO[bytes], encoding: str, on_bad: Callable[[int, int], None]) -> None:
        super().__init__()
        self._stream = stream
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)(MARKING)
        self._on_bad = on_bad
        self._num_read = 0
        self._num_written = 0
        self._is_at_end = False
        self.origins: dict[int, int] = {}

    def close(self) -> None:
        """Close the stream that is read."""
        self._stream.close()
        super().close()

    def next_block(self) -> bytes | None:
        """Transcode some more."""
        if self._is_at_end:
            return None
        data = self._stream.read(_BLOCK_BYTES)
        self._is_at_end = not data
        _faults.found.clear()
        try:
            text = self._decoder.decode(data, not data)
        except UnicodeDecodeError:
            raise
        except UnicodeError:  # of utf-16 and utf-32
            raise DamagedError(no_byte_order(self._encoding), self._num_written) from None
        self._num_read += len(data)
        encoded = text.encode("utf-8", MARKING)
        if _faults.found:
            self._report(encoded)
        self._num_written += len(encoded)
        return encoded

    def _report(self, encoded: bytes) -> None:
        at = -1
        for given, start in _faults.found:
            origin = self._num_read - len(given) + start  # what was decoded is bytes kept back, then this block
            self._on_bad(origin, given[start])
            at = encoded.find(BAD_BYTE, at + 1)
            if len(self.origins) < _MOST_ORIGINS:
                self.origins[self._num_written + at] = origin
