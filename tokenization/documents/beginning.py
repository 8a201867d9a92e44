"""Looks at the beginning of a file: settles its kind, estimates its text, finds its first faults."""

from __future__ import annotations

import codecs
import json
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import IO, cast

from runtime.command import ConfigError
from tokenization.documents.columns import examine_columns
from tokenization.documents.discover import KNOWN_KINDS
from tokenization.documents.faults import Faults
from tokenization.documents.lines import read_lines
from tokenization.documents.model import COLUMN_KINDS, FIELD_KINDS, Document, NoLanguageFieldError, Source
from tokenization.documents.readers import read
from tokenization.documents.reading import Reading
from tokenization.documents.streams import BlockStream, DamagedError, Decompressor, HeadEndError, open_text, read_blocks
from tokenization.documents.tables import find_delimiter
from tokenization.documents.transcode import lacks_byte_order, no_byte_order

_HEAD_BYTES = 256 << 10
_LAYOUT_BYTES = 4 << 20
_CHECKED_BYTES = 64 << 10
_LARGEST_NUL_SHARE = 0.01
# Every piece of a stream costs one more pass of decompression over the file.
_MOST_STREAM_PIECES = 8
_LEAST_PIECE_BYTES = 1 << 10
# Rows, or bytes of text, among which a first document is looked for.
_MOST_OFFSET = 8 << 20
_MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ": ".xz", b"\x28\xb5\x2f\xfd": ".zst", b"PAR1": ".parquet"}


@dataclass(frozen=True)
class Head:
    """The beginning of a file, decompressed, in its own encoding.

    Args:
        data: the bytes.
        num_stored: bytes of the file as it is stored that stand for them.
        is_whole: whether that is all there is.
        damage: what keeps the file from being read further, if something does.
    """

    data: bytes
    num_stored: int
    is_whole: bool
    damage: DamagedError | None

    def open(self) -> IO[bytes]:
        """Open it as if it was the file; what reads past it gets a `HeadEndError`."""
        return cast("IO[bytes]", _HeadStream(self))


class _HeadStream(BlockStream):
    def __init__(self, head: Head) -> None:
        super().__init__()
        self._head = head
        self._is_given = False

    def next_block(self) -> bytes | None:
        """Return all bytes of the head, then its end as it is."""
        if not self._is_given and self._head.data:
            self._is_given = True
            return self._head.data
        if self._head.damage is not None:
            raise self._head.damage
        if not self._head.is_whole:
            raise HeadEndError
        return None


def examine(source: Source) -> Source:
    """Return a text file's source with kind, pieces and size of text settled.

    Args:
        source: the file; its kind is "" where its name does not tell, "txt" where the layout is open.

    Raises:
        ConfigError: the file cannot be read, is of no known kind, or holds a fault and the policy is "fail".
    """
    if source.kind in COLUMN_KINDS:
        source = examine_columns(source)
        _read_first(source, None)
        return source
    may_be_txt = source.kind == "txt" and source.settings.layout == "auto"
    head = _read_head(source.path, _LAYOUT_BYTES if may_be_txt or source.kind == "json" else _HEAD_BYTES)
    beginning = _peek(source, head)
    _refuse_binary(source, head, beginning)
    source = _settle_kind(source, head, beginning)
    source = replace(source, text_bytes=_estimate(source, head))
    source = replace(source, num_pieces=_count_pieces(source))
    return source if _read_first(source, head) else replace(source, text_bytes=0)


def _settle_kind(source: Source, head: Head, beginning: bytes) -> Source:
    kind = source.kind or _sniff(source.path, beginning)
    if kind == "txt":
        layout = source.settings.layout
        kind = _probe_layout(source, head) if layout == "auto" else layout
    if kind == "json" and source.settings.format == "auto" and beginning.lstrip().startswith(b"{"):
        kind = "jsonl" if _is_json_lines(_peek(source, head, _LAYOUT_BYTES), source.settings.text_field) else "json"
    if kind == "mediawiki" and not beginning.lstrip().startswith((b"<mediawiki", b"<?xml", b"<page>")):
        raise ConfigError(f"{source.path}: not a MediaWiki dump: it does not begin with <mediawiki")
    source = replace(source, kind=kind)
    if kind in ("csv", "tsv"):
        return replace(source, delimiter=find_delimiter(source, beginning.decode("utf-8", "replace")))
    return source


def _is_json_lines(beginning: bytes, text_field: str) -> bool:
    """Whether a .json file holds an object a line, as many do."""
    first_line, _, rest = beginning.lstrip().partition(b"\n")
    try:
        record = json.loads(first_line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and (text_field in record or rest.lstrip().startswith(b"{"))


def _read_head(path: str, num_bytes: int) -> Head:
    data = bytearray()
    damage = None
    is_whole = False
    with open_text(path) as stream:
        try:
            for block in read_blocks(stream, path, num_bytes):
                data += block
                if len(data) > num_bytes:
                    break
            else:
                is_whole = True
        except DamagedError as error:
            damage = error
        num_stored = stream.num_compressed if isinstance(stream, Decompressor) else len(data)
        num_plain = stream.num_plain if isinstance(stream, Decompressor) else len(data)
    return Head(bytes(data), round(num_stored * len(data) / max(1, num_plain)), is_whole, damage)


def _peek(source: Source, head: Head, num_bytes: int = _CHECKED_BYTES) -> bytes:
    """Return the first bytes as UTF-8."""
    data = b""
    try:
        with Reading(source, Faults("skip"), open_stream=head.open).open() as stream:
            for block in read_blocks(stream, source.path, num_bytes):
                data += block
                if len(data) >= num_bytes:
                    break
    except (HeadEndError, DamagedError):
        pass
    return data[:num_bytes].removeprefix(codecs.BOM_UTF8)


def _refuse_binary(source: Source, head: Head, beginning: bytes) -> None:
    """Refuse what is not text in the encoding that was named."""
    if source.settings.is_utf8 and head.data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        wide = "utf-32" if head.data.startswith(codecs.BOM_UTF32_LE) else "utf-16"
        mark = head.data[:2].hex(" ").upper()
        raise ConfigError(f"{source.path}: byte 0: {mark} begins a text in {wide}; read it with --encoding {wide}")
    if lacks_byte_order(source.settings.encoding, head.data):
        raise ConfigError(f"{source.path}: byte 0: {no_byte_order(source.settings.encoding)}")
    for magic, suffix in _MAGIC.items():
        if head.data.startswith(magic):
            raise ConfigError(f"{source.path}: byte 0: this is a {suffix} file; let its name end with {suffix}")
    nuls = beginning.count(0)
    if nuls > _LARGEST_NUL_SHARE * len(beginning):
        raise ConfigError(
            f"{source.path}: byte {beginning.index(0)}: not text: {nuls} of the first {len(beginning)} bytes are "
            f"zeros; if it is text of a wide encoding, name it: --encoding {_wide_encoding(head.data)}"
        )


def _wide_encoding(data: bytes) -> str:
    """Return the encoding that has its zeros where this text has them, for letters of Latin."""
    zeros = [data[start:_CHECKED_BYTES:4].count(0) for start in range(4)]
    order = "le" if zeros[0] < zeros[3] else "be"
    # In UTF-32 the two inner bytes of Latin letters are zeros, in UTF-16 one of them.
    inner, outer = zeros[1] + zeros[2], zeros[0] + zeros[3]
    return f"utf-32-{order}" if inner > 1.5 * outer else f"utf-16-{order}"


def _sniff(path: str, beginning: bytes) -> str:
    """Return the kind of a file whose name does not tell it."""
    start = beginning.lstrip()
    for mark, kind in ((b"<doc ", "wikiextractor"), (b"<mediawiki", "mediawiki"), (b"{", "jsonl"), (b"[", "json")):
        if start.startswith(mark):
            return kind
    raise ConfigError(
        f"--input {path}: cannot tell what kind of file this is; known are {KNOWN_KINDS}; or tell it with --format"
    )


def _probe_layout(source: Source, head: Head) -> str:
    """Return "blank" where a blank line stands between two lines of text, else "line"."""
    seen_text = seen_gap = False
    reading = Reading(replace(source, kind="line"), Faults("replace"), open_stream=head.open)
    try:
        for block in read_lines(reading):
            for text in block.texts:
                has_text = bool(text.strip())
                if has_text and seen_gap:
                    return "blank"
                seen_text = seen_text or has_text
                seen_gap = seen_text and not has_text
    except (HeadEndError, DamagedError):
        pass
    return "line"


def _estimate(source: Source, head: Head) -> int:
    if head.is_whole or not head.num_stored:
        return len(head.data)
    return max(len(head.data), source.num_bytes * len(head.data) // head.num_stored)


def _count_pieces(source: Source) -> int:
    if source.kind == "file" or (source.is_stream and source.is_remote) or not source.num_bytes:
        return 1
    if source.is_stream:
        return max(1, min(_MOST_STREAM_PIECES, source.text_bytes >> 20))
    return max(1, source.num_bytes // _LEAST_PIECE_BYTES)


def _read_first(source: Source, head: Head | None) -> bool:
    """Read up to the first document with text, so that what is wrong there is told before any work.

    Returns:
        False if the whole file was looked at and holds none.

    Raises:
        ConfigError: there is a fault and the policy is "fail", or no record has the language field.
    """
    reading = Reading(source, Faults(source.settings.errors), open_stream=None if head is None else head.open)
    language_field = source.settings.language_field
    count = 0
    with closing(cast("Generator[Document]", read(reading))) as documents:
        try:
            for document in documents:
                count += bool(document.text)
                if document.text and (not language_field or source.kind not in FIELD_KINDS or document.language):
                    return True
                if document.offset > _MOST_OFFSET:
                    break
            else:
                if not count:
                    return False
        except HeadEndError:
            pass
    if count and language_field:
        raise NoLanguageFieldError(
            f"{source.path}: none of the first {count} documents has a field {language_field!r} (--language-field)"
        )
    return True
