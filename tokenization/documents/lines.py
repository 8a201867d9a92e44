"""Reads .txt files: a document a line, documents parted by blank lines, or a file a document.

A file that can be sought is cut by bytes. Where a piece begins is a function of the file and one byte alone: the first
document that starts there or later. So neighbours agree, and nothing is lost or given twice.

A line ends with a line feed, a carriage return, or both.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from itertools import accumulate
from typing import IO, NamedTuple

from tokenization.documents.model import Document
from tokenization.documents.reading import Reading, replace_bad
from tokenization.documents.streams import read_blocks


class BadLine(NamedTuple):
    """Bytes of a line that are not UTF-8: how many places, offset and value of the first."""

    num_bad: int
    offset: int
    byte: int


class LineBlock(NamedTuple):
    """Lines that follow one another.

    Args:
        texts: decoded lines without their ends, bad bytes replaced.
        offsets: byte at which each starts.
        bad: by place in `texts`, the lines with bad bytes.
    """

    texts: list[str]
    offsets: list[int]
    bad: dict[int, BadLine]


def read_line_documents(reading: Reading) -> Iterator[Document]:
    """Read documents of one line each, empty ones included."""
    for block in read_lines(reading):
        texts = [text.strip() for text in block.texts]
        if not block.bad and not _is_shared(reading):
            yield from map(Document, texts, block.offsets)
            continue
        for index, (text, offset) in enumerate(zip(texts, block.offsets, strict=True)):
            if _is_shared(reading) and not reading.owns(offset):
                continue
            bad = block.bad.get(index)
            if bad is None or reading.bad_bytes(offset, bad.offset, bad.byte, bad.num_bad):
                yield Document(text, offset)


def read_blank_documents(reading: Reading) -> Iterator[Document]:
    """Read documents parted by blank lines."""
    gathered: list[str] = []
    start = 0
    bad_lines: list[BadLine] = []
    for block in read_lines(reading, parts_at_blank=True):
        for index, text in enumerate(block.texts):
            stripped = text.strip()
            if stripped:
                if not gathered:
                    start = block.offsets[index]
                gathered.append(stripped)
                if index in block.bad:
                    bad_lines.append(block.bad[index])
            elif gathered:
                yield from _join(reading, gathered, start, bad_lines)
                gathered, bad_lines = [], []
    if gathered:
        yield from _join(reading, gathered, start, bad_lines)


def read_file_document(reading: Reading) -> Iterator[Document]:
    """Read a file that is one document."""
    with reading.open() as stream:
        raw = b"".join(read_blocks(stream, reading.source.path)).removeprefix(codecs.BOM_UTF8)
    text = reading.decode(raw, 0)
    if text is not None:
        yield Document(tidy(text), 0)


def tidy(text: str) -> str:
    """Return a document's text with line feeds for line ends, without white space at either end."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.strip()


def read_lines(reading: Reading, parts_at_blank: bool = False) -> Iterator[LineBlock]:
    """Read the lines of a piece, decoded.

    Args:
        reading: the piece.
        parts_at_blank: whether documents start after blank lines, not at every line.
    """
    for offset, block in read_line_blocks(reading, parts_at_blank):
        if parts_at_blank or not _is_shared(reading) or reading.owns_some(offset, offset + len(block)):
            yield _decode_lines(block, offset)


def read_line_blocks(
    reading: Reading, parts_at_blank: bool = False, has_returns: bool = True
) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, whole lines that end with line feeds) of a piece; the file's last line may have no end.

    Args:
        reading: the piece.
        parts_at_blank: whether documents start after blank lines, not at every line.
        has_returns: whether a carriage return ends a line; it is replaced, so that offsets stay.
    """
    with reading.open() as stream:
        start, end = 0, None
        if not reading.source.is_stream and reading.count > 1:
            start, end = (_boundary(reading, stream, part, parts_at_blank, has_returns) for part in (0, 1))
            stream.seek(start)
        offset = start
        for block in _whole_lines(stream, reading.source.path, has_returns, None if end is None else end - start):
            if offset == 0 and block.startswith(codecs.BOM_UTF8):
                if len(block) > len(codecs.BOM_UTF8):
                    yield len(codecs.BOM_UTF8), block.removeprefix(codecs.BOM_UTF8)
            else:
                yield offset, block
            offset += len(block)


def _boundary(reading: Reading, stream: IO[bytes], part: int, parts_at_blank: bool, has_returns: bool) -> int:
    """Return the byte at which this piece (part 0) or the next (part 1) begins."""
    size = reading.source.num_bytes
    at = size * (reading.index + part) // reading.count
    if at == 0 or at >= size:
        return min(at, size)
    stream.seek(at - 1)  # a line that starts exactly at `at` is known by the line end before it
    offset = at - 1
    is_first = True
    for block in _whole_lines(stream, reading.source.path, has_returns, None):
        for line in block.split(b"\n")[:-1]:
            offset += len(line) + 1
            if not parts_at_blank or (not is_first and not line.decode("utf-8", "replace").strip()):
                return offset
            is_first = False
    return size


def _whole_lines(stream: IO[bytes], path: str, has_returns: bool, limit: int | None) -> Iterator[bytes]:
    """Yield what is left of a stream, or `limit` bytes of it, in blocks that end with line ends."""
    parts: list[bytes] = []
    for block in _limited(read_blocks(stream, path), limit):
        data = parts.pop() + block if parts and parts[-1].endswith(b"\r") else block
        if has_returns and b"\r" in data:
            held = data.endswith(b"\r")  # perhaps the first half of a line end
            data = data[: len(data) - held].replace(b"\r\n", b" \n").replace(b"\r", b"\n") + b"\r" * held
        cut = data.rfind(b"\n") + 1
        if cut:
            yield b"".join([*parts, data[:cut]])
            parts = []
        if cut < len(data):
            parts.append(data[cut:])
    if parts:
        rest = b"".join(parts)
        yield rest[:-1] + b"\n" if has_returns and rest.endswith(b"\r") else rest


def _limited(blocks: Iterator[bytes], limit: int | None) -> Iterator[bytes]:
    if limit is None:
        yield from blocks
        return
    while limit > 0 and (block := next(blocks, b"")):
        yield block[:limit]
        limit -= len(block)


def _decode_lines(block: bytes, start: int) -> LineBlock:
    """Decode lines, in one go where all bytes are good."""
    block = block.removesuffix(b"\n")
    bad: dict[int, BadLine] = {}
    try:
        text = block.decode("utf-8")
        texts = text.split("\n")
    except UnicodeDecodeError:
        text = ""
        texts = [_decode_line(line, index, bad) for index, line in enumerate(block.split(b"\n"))]
    lines: list[str] | list[bytes] = texts if len(text) == len(block) else block.split(b"\n")
    offsets = list(accumulate((len(line) + 1 for line in lines), initial=start))
    offsets.pop()
    for index, (count, at, byte) in bad.items():
        bad[index] = BadLine(count, offsets[index] + at, byte)
    return LineBlock(texts, offsets, bad)


def _decode_line(line: bytes, index: int, bad: dict[int, BadLine]) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        text, count = replace_bad(line)
        bad[index] = BadLine(count, error.start, line[error.start])
        return text


def _is_shared(reading: Reading) -> bool:
    """Whether other pieces read the same bytes and give other documents of them."""
    return reading.source.is_stream and reading.count > 1


def _join(reading: Reading, lines: list[str], start: int, bad_lines: list[BadLine]) -> Iterator[Document]:
    """Yield the document of some lines, if it is this piece's and is kept."""
    if _is_shared(reading) and not reading.owns(start):
        return
    if bad_lines:
        first = bad_lines[0]
        if not reading.bad_bytes(start, first.offset, first.byte, sum(line.num_bad for line in bad_lines)):
            return
    yield Document("\n".join(lines), start)
