"""Decoded text of a file, block by block, for formats whose records are found in text, not in bytes.

Under a policy that goes on, bad bytes stand in it as `transcode.BAD_MARK`, so that the record that holds them is known.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from tokenization.documents.reading import Reading
from tokenization.documents.streams import read_blocks
from tokenization.documents.transcode import MARKING

_BYTE_ORDER_MARK = "\ufeff"


def read_chunks(reading: Reading) -> Iterator[str]:
    """Yield a file's text; its line ends are line feeds.

    Raises:
        ConfigError: there are bad bytes, and the policy is "fail".
    """
    decoder = codecs.getincrementaldecoder("utf-8")("strict" if reading.faults.policy == "fail" else MARKING)
    held = ""
    is_first = True
    with reading.open() as stream:
        blocks = read_blocks(stream, reading.source.path)
        num_read = 0
        is_last = False
        while not is_last:
            block = next(blocks, b"")
            is_last = not block
            try:
                text = decoder.decode(block, is_last)
            except UnicodeDecodeError as error:
                start = num_read + len(block) - len(error.object)
                reading.refuse_bytes(start + error.start, error.object[error.start])
                raise
            num_read += len(block)
            if is_first and text:
                text = text.removeprefix(_BYTE_ORDER_MARK)
                is_first = False
            text = held + text
            held = "\r" if text.endswith("\r") and not is_last else ""  # perhaps the first half of a line end
            if "\r" in text:
                text = text[: len(text) - len(held)].replace("\r\n", "\n").replace("\r", "\n")
            if text:
                yield text


def split_lines(chunks: Iterator[str]) -> Iterator[str]:
    """Yield the lines of a text with their ends."""
    parts: list[str] = []
    for chunk in chunks:
        lines = chunk.split("\n")
        if len(lines) > 1:
            yield "".join([*parts, lines[0], "\n"])
            yield from (line + "\n" for line in lines[1:-1])
            parts = []
        parts.append(lines[-1])
    if rest := "".join(parts):
        yield rest
