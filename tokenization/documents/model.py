"""What text input is made of: documents, the files they stand in, and the pieces such a file is cut into."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from runtime.command import ConfigError

LAYOUTS = ("auto", "line", "blank", "file")
FORMATS = ("auto", "txt", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "wikiextractor", "mediawiki")
POLICIES = ("fail", "replace", "skip")
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
COLUMN_KINDS = ("parquet", "arrow")
RECORD_KINDS = ("json", "csv", "tsv")  # a document's offset is the number of its record, not a byte
FIELD_KINDS = ("jsonl", *RECORD_KINDS, *COLUMN_KINDS)
_FEW = 5
_WEB = ("http", "https")


class NoLanguageFieldError(ConfigError):
    """A file lacks the field that holds a document's language."""


class Document(NamedTuple):
    """One document as it stands in its file.

    Args:
        text: lines joined by line feeds, without white space at either end; may be empty.
        offset: byte at which it starts, in the decompressed file as UTF-8; number of its record, from 0, in a file
            of records (parquet, arrow, csv, tsv, json).
        language: value of the language field, "" without one.
    """

    text: str
    offset: int
    language: str = ""


@dataclass(frozen=True)
class ReadSettings:
    """How text is read: the same for the tokenizer and for the shards.

    Args:
        text_field: name of the field that holds the text, in kinds with fields.
        layout: one of `LAYOUTS`, for .txt files.
        format: one of `FORMATS`; "auto": by the file's name, or by its beginning.
        encoding: codec of text files.
        errors: one of `POLICIES`.
        language_field: name of the field that holds a document's language; None: there is none.
    """

    text_field: str = "text"
    layout: str = "auto"
    format: str = "auto"
    encoding: str = "utf-8"
    errors: str = "fail"
    language_field: str | None = None

    @property
    def is_utf8(self) -> bool:
        """Whether text files are read as they stand, without a transcoder."""
        return codecs.lookup(self.encoding).name in ("utf-8", "utf-8-sig")

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that are read: the text, and the language where it has one."""
        return (self.text_field,) if self.language_field is None else (self.text_field, self.language_field)


@dataclass(frozen=True)
class Source:
    """One input file.

    Args:
        path: local path or fsspec URL.
        kind: "line", "blank", "file", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "wikiextractor" or
            "mediawiki".
        num_bytes: size as it is stored; 0 where a server does not tell.
        text_bytes: estimate of the bytes of text in it.
        version: changes when the file does.
        settings: how it is read.
        num_pieces: most pieces it can usefully be cut into.
        refusal: why nothing of it is read, under a policy that goes on without it; "" for a good file.
        delimiter: what parts the fields of a csv or tsv file.
    """

    path: str
    kind: str
    num_bytes: int
    text_bytes: int
    version: str
    settings: ReadSettings = field(default_factory=ReadSettings)
    num_pieces: int = 1
    refusal: str = ""
    delimiter: str = ","

    @property
    def is_remote(self) -> bool:
        """Whether the path is an fsspec URL."""
        return is_url(self.path)

    @property
    def compression(self) -> str:
        """Suffix of the compression, such as ".gz", or ""."""
        return "" if self.kind in COLUMN_KINDS else compression_of(self.path)

    @property
    def is_stream(self) -> bool:
        """Whether a byte of its text can only be reached by reading all before it."""
        if self.kind in COLUMN_KINDS:
            return False
        return self.kind in RECORD_KINDS or bool(self.compression) or not self.settings.is_utf8

    @property
    def has_byte_offsets(self) -> bool:
        """Whether the offsets of its documents are bytes, not numbers of records."""
        return self.kind not in RECORD_KINDS + COLUMN_KINDS


class Piece(NamedTuple):
    """The index-th of `count` equal pieces of a source; `source` is its place in the list of sources."""

    source: int
    index: int  # type: ignore[assignment]  # hides a method of tuples that nobody needs of a piece
    count: int  # type: ignore[assignment]


def is_url(path: str) -> bool:
    """Whether a path is an fsspec URL, such as s3://bucket/file."""
    return "://" in path


def few(paths: Sequence[str]) -> str:
    """Return the first paths of a list as text."""
    return ", ".join(paths[:_FEW]) + (", ..." if len(paths) > _FEW else "")


def file_name(path: str) -> str:
    """Return the last part of a path or URL, in lower case, without a web address's query."""
    if path.split("://", maxsplit=1)[0] in _WEB:
        path = urlsplit(path).path
    return PurePosixPath(path.replace("\\", "/")).name.lower()


def compression_of(path: str) -> str:
    """Return the suffix of a file's compression, such as ".gz", or ""."""
    suffix = PurePosixPath(file_name(path)).suffix
    return suffix if suffix in COMPRESSED_SUFFIXES else ""
