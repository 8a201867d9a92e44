"""What every reader works with: one file, how much of it is to be given, and where faults go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import IO, cast

from tokenization.documents.faults import BAD_BYTES, BAD_DOCUMENTS, Faults
from tokenization.documents.model import Source
from tokenization.documents.streams import BLOCK_BYTES, open_text
from tokenization.documents.transcode import BAD_MARK, Transcoder

BLOCK_RECORDS = 1024
_REPLACEMENT = "\ufffd"
_REPLACEMENT_BYTES = b"\xef\xbf\xbd"


def replace_bad(raw: bytes) -> tuple[str, int]:
    """Decode UTF-8 with one U+FFFD for each maximal bad part; return the text and how many there are."""
    text = raw.decode("utf-8", "replace")
    return text, text.count(_REPLACEMENT) - raw.count(_REPLACEMENT_BYTES)


class Reading:
    """The reading of one piece of one file.

    Args:
        source: the file.
        faults: where faults are counted.
        index: which piece, 0 <= index < count.
        count: number of pieces.
        open_stream: opens the file's bytes, decompressed, in its own encoding; None: from `source.path`.
    """

    def __init__(
        self,
        source: Source,
        faults: Faults,
        index: int = 0,
        count: int = 1,
        open_stream: Callable[[], IO[bytes]] | None = None,
    ) -> None:
        self.source = source
        self.faults = faults
        self.index = index
        self.count = count
        self._open_stream = open_stream
        self._transcoder: Transcoder | None = None
        self._unit = BLOCK_BYTES if source.has_byte_offsets else BLOCK_RECORDS

    def open(self) -> IO[bytes]:
        """Open the file's text as UTF-8."""
        stream = open_text(self.source.path) if self._open_stream is None else self._open_stream()
        if self.source.settings.is_utf8:
            return stream
        encoding = self.source.settings.encoding
        self._transcoder = Transcoder(stream, encoding, self.refuse_bytes)
        return cast("IO[bytes]", self._transcoder)

    def owns(self, offset: int) -> bool:
        """Whether a document at an offset of a stream is this piece's to give."""
        return offset // self._unit % self.count == self.index

    def owns_some(self, start: int, end: int) -> bool:
        """Whether a document between two offsets of a stream can be this piece's to give."""
        if self.count == 1:
            return True
        blocks = range(start // self._unit, end // self._unit + 1)
        return any(block % self.count == self.index for block in blocks)

    def fault(
        self, reason: str, start: int, offset: int, detail: str, count: int = 1, is_repaired: bool = False
    ) -> None:
        """Tell of a fault in the document that starts at `start`, if that is this piece's.

        Raises:
            ConfigError: the policy is "fail".
        """
        if not self.source.is_stream or self.owns(start):
            self.faults.found(reason, self.source, offset, detail, count, is_repaired)

    def decode(self, raw: bytes, start: int, document: int | None = None) -> str | None:
        """Decode bytes of a document.

        Args:
            raw: the bytes, as UTF-8.
            start: offset of the first.
            document: offset of the document's start; None: `start`.

        Returns:
            The text; None where the document is to be left out.

        Raises:
            ConfigError: there are bad bytes, and the policy is "fail".
        """
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            text, count = replace_bad(raw)
            document = start if document is None else document
            return text if self.bad_bytes(document, start + error.start, raw[error.start], count) else None

    def bad_bytes(self, document: int, offset: int, byte: int, count: int) -> bool:
        """Tell of bad bytes in a document; return whether it is kept."""
        is_kept = self.faults.policy == "replace"
        if self._transcoder is None:
            detail = f"is not UTF-8 text: 0x{byte:02X}"
        else:
            if self.source.has_byte_offsets:
                offset = self._transcoder.origins.get(offset, offset)
            detail = f"is not text in {self.source.settings.encoding}"
        reason = BAD_DOCUMENTS if self.faults.policy == "skip" else BAD_BYTES
        self.fault(reason, document, offset, detail, count if is_kept else 1, is_repaired=is_kept)
        return is_kept

    def refuse_bytes(self, offset: int, byte: int) -> None:
        """Stop at bad bytes if the policy is "fail", whatever the file's kind.

        Raises:
            ConfigError: it is.
        """
        if self.faults.policy == "fail":
            encoding = "UTF-8 text" if self._transcoder is None else f"text in {self.source.settings.encoding}"
            as_bytes = replace(self.source, kind="line")  # the place is a byte, not a record
            self.faults.found(BAD_BYTES, as_bytes, offset, f"is not {encoding}: 0x{byte:02X}")

    def decode_record(self, raw: bytes, record: int) -> str | None:
        """Decode a record's bytes as the policy says; None: it is left out."""
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            text, count = replace_bad(raw)
            return text if self.bad_bytes(record, record, raw[error.start], count) else None

    def unmark(self, text: str, record: int) -> str | None:
        """Treat the marks of bad bytes in a record's decoded text as the policy says; None: it is left out."""
        if BAD_MARK not in text:
            return text
        if not self.bad_bytes(record, record, 0xFF, text.count(BAD_MARK)):
            return None
        return text.replace(BAD_MARK, _REPLACEMENT)
