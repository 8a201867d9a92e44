"""Reads documents from .txt and .jsonl files, compressed or not.

A .txt file holds one document a line (layout "line"), or documents of several lines parted by blank lines
(layout "blank"). A .jsonl file holds one JSON object a line, with the text in one of its fields. Text is
UTF-8; a byte order mark and Windows line ends are taken off. Whatever cannot be read is a `ConfigError` that
says where.
"""

from __future__ import annotations

import argparse
import bz2
import codecs
import gzip
import json
import logging
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import zstandard

from runtime.command import ConfigError, did_you_mean

logger = logging.getLogger(__name__)

LAYOUTS = ("auto", "line", "blank")
TEXT_SUFFIXES = (".txt", ".jsonl")
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_BLOCK_BYTES = 1 << 20
_HALF_SURROGATE = re.compile("[\ud800-\udfff]")
_LAYOUT_PROBE_BYTES = 4 << 20
_DECOMPRESSION_ERRORS = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zstandard.ZstdError)


class Document(NamedTuple):
    """One document as it stands in its file.

    Args:
        text: lines joined by line feeds, without white space at either end; may be empty.
        line: number of its first line, from 1.
        offset: byte at which its first line starts, in the decompressed file.
    """

    text: str
    line: int
    offset: int


@dataclass(frozen=True)
class Source:
    """One input file and how its documents are laid out.

    Args:
        path: the file.
        layout: "line", "blank" or "jsonl".
        text_field: name of the JSON field that holds the text ("jsonl" alone).
    """

    path: Path
    layout: str
    text_field: str

    @property
    def is_compressed(self) -> bool:
        """Whether bytes of the text can only be reached by decompressing all before them."""
        return self.path.suffix.lower() in COMPRESSED_SUFFIXES


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags by which every command of this stage names its text."""
    parser.add_argument(
        "--input",
        nargs="+",
        required=True,
        metavar="PATH",
        help="files (.txt, .jsonl, also .gz .bz2 .xz .zst) or folders of such files",
    )
    parser.add_argument("--text-field", default="text", help="JSON field that holds the text (default: text)")
    parser.add_argument(
        "--txt-layout",
        choices=LAYOUTS,
        default="auto",
        help="a .txt file holds one document a line, or documents parted by blank lines; auto: blank "
        "where a blank line stands between two lines of text in the file's first 4 MiB (default)",
    )


def open_sources(inputs: Sequence[str | Path], text_field: str, layout: str) -> list[Source]:
    """Find the input files and settle the layout of each.

    Args:
        inputs: files, in the order in which they are read, or folders, whose supported files are read by
            name.
        text_field: see `Source`.
        layout: one of `LAYOUTS`, for .txt files.

    Raises:
        ConfigError: a path is missing, of an unsupported kind, named twice, or a folder without a supported
            file.
    """
    paths = [path for given in inputs for path in _expand(Path(given))]
    first_names: dict[Path, Path] = {}
    for path in paths:
        first = first_names.setdefault(path.resolve(), path)
        if first is not path:
            raise ConfigError(f"--input {path}: the same file is there already as {first}; its text counts twice")
    sources = []
    for path in paths:
        if _text_suffix(path) == ".jsonl":
            sources.append(Source(path, "jsonl", text_field))
            continue
        chosen = _probe_layout(path) if layout == "auto" else layout
        how = "parted by blank lines" if chosen == "blank" else "one a line"
        logger.info("%s: documents are %s (--txt-layout %s)", path, how, layout)
        sources.append(Source(path, chosen, text_field))
    return sources


def read_documents(source: Source, offset: int = 0, line: int = 1) -> Iterator[Document]:
    """Read the documents of a file in order, empty ones included.

    Args:
        source: the file.
        offset: where to start: 0, or the `offset` of one of its documents.
        line: the number of the line at that offset.

    Raises:
        ConfigError: damaged compression, invalid UTF-8, or a line that is not a JSON object with the text
            field.
    """
    lines = _read_lines(source, offset, line)
    if source.layout == "blank":
        return _group_by_blank_lines(lines)
    if source.layout == "jsonl":
        return (Document(_json_text(source, text, line), line, at) for text, line, at in lines if text.strip())
    return (Document(text.strip(), line, at) for text, line, at in lines)


def _expand(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(child for child in path.iterdir() if child.is_file() and _text_suffix(child))
        if not found:
            raise ConfigError(f"--input {path}: the folder holds no .txt or .jsonl file (nor one compressed)")
        return found
    if not path.exists():
        raise ConfigError(f"--input {path}: no such file or folder")
    if not _text_suffix(path):
        known = ", ".join(TEXT_SUFFIXES)
        also = " ".join(COMPRESSED_SUFFIXES)
        raise ConfigError(f"--input {path}: cannot read this kind of file; known: {known}, each also {also}")
    return [path]


def _text_suffix(path: Path) -> str:
    """Return ".txt" or ".jsonl", or "" for a file of another kind."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in TEXT_SUFFIXES else ""


def _probe_layout(path: Path) -> str:
    """Return "blank" where a blank line stands between two lines of text, else "line"."""
    seen_text = seen_gap = False
    read_bytes = 0
    for raw in _read_raw_lines(Source(path, "line", ""), 0):
        if raw.strip(b" \t\r\n\f\v" + codecs.BOM_UTF8):
            if seen_gap:
                return "blank"
            seen_text = True
        else:
            seen_gap = seen_text
        read_bytes += len(raw)
        if read_bytes > _LAYOUT_PROBE_BYTES:
            break
    return "line"


def _read_lines(source: Source, offset: int, line: int) -> Iterator[tuple[str, int, int]]:
    """Yield (text without line end, line number, byte offset)."""
    for raw in _read_raw_lines(source, offset):
        body = raw
        if offset == 0:
            body = raw.removeprefix(codecs.BOM_UTF8)
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError as error:
            at = offset + len(raw) - len(body) + error.start
            raise ConfigError(
                f"{source.path}: byte {at} (line {line}) is not UTF-8 text: 0x{body[error.start]:02X}; "
                "convert the file to UTF-8 first"
            ) from None
        yield text.rstrip("\r\n"), line, offset
        offset += len(raw)
        line += 1


def _read_raw_lines(source: Source, offset: int) -> Iterator[bytes]:
    try:
        with _open(source.path) as stream:
            if source.is_compressed:
                _skip(stream, offset)
            else:
                stream.seek(offset)
            yield from stream
    except _DECOMPRESSION_ERRORS as error:
        raise ConfigError(f"{source.path}: damaged or cut short: {error}") from None
    except OSError as error:
        if error.errno is not None or not source.is_compressed:
            raise
        raise ConfigError(f"{source.path}: damaged: {error}") from None  # bz2 says it with a bare OSError


def _skip(stream: IO[bytes], num_bytes: int) -> None:
    while num_bytes > 0:
        num_bytes -= len(stream.read(min(num_bytes, _BLOCK_BYTES)))


def _open(path: Path) -> IO[bytes]:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path, "rb"))
    if suffix == ".bz2":
        return bz2.open(path, "rb")
    if suffix == ".xz":
        return lzma.open(path, "rb")
    if suffix == ".zst":
        return BufferedReader(_ZstdStream(path), _BLOCK_BYTES)
    return open(path, "rb", buffering=_BLOCK_BYTES)


class _ZstdStream(RawIOBase):
    """Decompresses .zst frames one after the other.

    zstandard's own `stream_reader` ends without a word where a file is cut short; this one raises EOFError.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb")  # closed in close()
        self._frame: Any = None
        self._compressed = b""
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._plain and self._read_block():
            pass
        count = min(len(buffer), len(self._plain))
        buffer[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()

    def _read_block(self) -> bool:
        """Decompress some more; return whether there was something left to read."""
        data = self._compressed or self._file.read(_BLOCK_BYTES)
        self._compressed = b""
        if not data:
            if self._frame is not None:
                raise EOFError("the file ended in the middle of a zstd frame")
            return False
        if self._frame is None:
            self._frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        self._plain = memoryview(self._frame.decompress(data))
        if self._frame.eof:
            self._compressed = self._frame.unused_data
            self._frame = None
        return True


def _group_by_blank_lines(lines: Iterable[tuple[str, int, int]]) -> Iterator[Document]:
    gathered: list[str] = []
    first_line = first_offset = 0
    for text, line, offset in lines:
        stripped = text.strip()
        if stripped:
            if not gathered:
                first_line, first_offset = line, offset
            gathered.append(stripped)
        elif gathered:
            yield Document("\n".join(gathered), first_line, first_offset)
            gathered = []
    if gathered:
        yield Document("\n".join(gathered), first_line, first_offset)


def _json_text(source: Source, line: str, number: int) -> str:
    where = f"{source.path}:{number}"
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not a line of JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"{where}: JSON nested too deep") from None
    if not isinstance(record, dict):
        raise ConfigError(f"{where}: a JSON object is wanted, this is {type(record).__name__}")
    if source.text_field not in record:
        hint = did_you_mean(source.text_field, record)
        raise ConfigError(f"{where}: no field {source.text_field!r}{hint}; name the field with --text-field")
    text = record[source.text_field]
    if not isinstance(text, str):
        raise ConfigError(f"{where}: field {source.text_field!r} is {type(text).__name__}, not a string")
    if "\\u" in line and _HALF_SURROGATE.search(text):
        raise ConfigError(f"{where}: field {source.text_field!r} holds half a surrogate pair (\\ud800-\\udfff)")
    return text.strip()
