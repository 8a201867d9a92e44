"""One pass over the whole input before any work: finds every fault, counts, notes where to cut.

The notes let a task start in the middle of the input without reading what other tasks read. They depend on
the input alone, so the work is cut the same way whatever number of workers there is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runtime.command import ConfigError
from tokenization.documents import Document, Source, read_documents

_MARKS_PER_TOTAL = 4096
# A task that starts inside a compressed file decompresses what lies before; 8 parts cost 3.5 more passes at
# most.
_PARTS_OF_COMPRESSED_FILE = 8


class Mark(NamedTuple):
    """A place where a task can start.

    Args:
        document: index of the document there, over the whole input.
        text_bytes: UTF-8 bytes of text before it, over the whole input.
        source: index of its file.
        offset: byte of the (decompressed) file.
        line: number of the line there, from 1.
    """

    document: int
    text_bytes: int
    source: int
    offset: int
    line: int


class Part(NamedTuple):
    """The documents of one task: so many from a mark on."""

    start: Mark
    num_documents: int


@dataclass(frozen=True)
class Survey:
    """What one pass over the input found.

    Args:
        sources: the files.
        num_documents: documents in all, empty ones included.
        text_bytes: UTF-8 bytes of all documents' text.
        marks: places to start at, ascending; the first is the first document.
    """

    sources: tuple[Source, ...]
    num_documents: int
    text_bytes: int
    marks: tuple[Mark, ...]

    def cut(self, num_parts: int) -> list[Part]:
        """Cut the input into parts of about as many bytes each.

        Args:
            num_parts: how many at most; fewer where there are fewer documents or marks.
        """
        positions = [mark.text_bytes for mark in self.marks]
        wanted = (bisect_left(positions, part * self.text_bytes // num_parts) for part in range(num_parts))
        chosen = sorted({0, *(index for index in wanted if index < len(self.marks))})
        starts = [self.marks[index] for index in chosen]
        ends = [mark.document for mark in starts[1:]] + [self.num_documents]
        return [Part(start, end - start.document) for start, end in zip(starts, ends, strict=True)]


def survey(sources: Sequence[Source]) -> Survey:
    """Read all the input once.

    Raises:
        ConfigError: a file cannot be read (see `read_documents`) or holds no text.
    """
    marks: list[Mark] = []
    num_documents = text_bytes = 0
    for index, source in enumerate(sources):
        bytes_before = text_bytes
        own: list[Mark] = []
        for document in read_documents(source):
            # The distance grows with what has been read: a bounded number of marks, and short inputs cut
            # finely.
            if not own or text_bytes - own[-1].text_bytes >= text_bytes // _MARKS_PER_TOTAL:
                own.append(Mark(num_documents, text_bytes, index, document.offset, document.line))
            num_documents += 1
            text_bytes += len(document.text.encode("utf-8"))
        if text_bytes == bytes_before:
            raise ConfigError(f"{source.path}: holds no text: no document that is not empty")
        marks += _thin(own, text_bytes - bytes_before) if source.is_compressed else own
    return Survey(tuple(sources), num_documents, text_bytes, tuple(marks))


def read_part(sources: Sequence[Source], part: Part) -> Iterator[Document]:
    """Read the documents of a part, going on from file to file."""
    left = part.num_documents
    for index in range(part.start.source, len(sources)):
        is_first = index == part.start.source
        start = (part.start.offset, part.start.line) if is_first else (0, 1)
        for document in read_documents(sources[index], *start):
            if left == 0:
                return
            left -= 1
            yield document
    if left:
        raise ConfigError(f"{sources[-1].path}: {left} documents fewer than before; the input changed meanwhile")


def _thin(marks: list[Mark], text_bytes: int) -> list[Mark]:
    """Keep the marks that cut a file into few parts of about as many bytes each."""
    start = marks[0].text_bytes
    kept: list[Mark] = []
    for mark in marks:
        if mark.text_bytes - start >= len(kept) * text_bytes / _PARTS_OF_COMPRESSED_FILE:
            kept.append(mark)
    return kept
