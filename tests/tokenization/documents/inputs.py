"""Writes input files and reads them back."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zstandard

from tokenization.documents import (
    Document,
    Faults,
    Piece,
    ReadSettings,
    Source,
    open_sources,
    read_documents,
    read_piece,
)

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": lambda data: gzip.compress(data, mtime=0),  # or the ids of tests would hold the time
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": zstandard.ZstdCompressor().compress,
}


def read(*paths: Path | str, **settings: Any) -> tuple[list[Document], Faults]:
    """Read files whole, as `open_sources` and `read_documents` do it; return documents with text, and faults."""
    chosen = ReadSettings(**settings)
    faults = Faults(chosen.errors)
    sources = open_sources(list(paths), chosen)
    return [document for source in sources for document in read_documents(source, faults) if document.text], faults


def texts(*paths: Path | str, **settings: Any) -> list[str]:
    return [document.text for document in read(*paths, **settings)[0]]


def read_pieces(source: Source, count: int) -> tuple[list[Document], Faults]:
    faults = Faults(source.settings.errors)
    pieces = [Piece(0, index, count) for index in range(count)]
    return [document for piece in pieces for document in read_piece([source], piece, faults)], faults


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def source_of(path: Path, kind: str, **settings: Any) -> Source:
    """A source made without looking at the file."""
    size = path.stat().st_size
    return Source(str(path), kind, size, size, "", ReadSettings(**settings), num_pieces=8)


def names(paths: Sequence[Source]) -> list[str]:
    return [Path(source.path).name for source in paths]
