"""Reads .csv and .tsv files, whose first row names the fields."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any

from runtime.command import ConfigError, did_you_mean
from tokenization.documents.chunks import read_chunks, split_lines
from tokenization.documents.faults import BAD_ROW
from tokenization.documents.lines import tidy
from tokenization.documents.model import Document, NoLanguageFieldError, Source
from tokenization.documents.reading import Reading
from tokenization.documents.streams import DamagedError

_DELIMITERS = {"csv": ",;|\t", "tsv": "\t"}
# The csv module's limit, far above a document's length: a quote that is never closed must not take in the whole file.
_LONGEST_FIELD_CHARS = 1 << 28


def find_delimiter(source: Source, beginning: str) -> str:
    """Return what parts the fields: the first delimiter by which the header has the text field.

    Raises:
        ConfigError: by no delimiter.
    """
    lines = beginning.lstrip("\ufeff").splitlines()
    headers = {mark: next(csv.reader(lines[:1], delimiter=mark), []) for mark in _DELIMITERS[source.kind]}
    wanted = source.settings.text_field
    for mark, header in headers.items():
        if wanted in header:
            _check_header(source, header)
            return mark
    header = max(headers.values(), key=len)
    raise ConfigError(
        f"{source.path}: line 1: the header has no field {wanted!r}{did_you_mean(wanted, header)}; it names "
        f"{', '.join(header[:20])}; name the field with --text-field"
    )


def _check_header(source: Source, header: list[str]) -> None:
    for name in source.settings.fields:
        if name not in header:
            hint = did_you_mean(name, header)
            raise NoLanguageFieldError(
                f"{source.path}: line 1: no field {name!r}{hint} in the header (--language-field)"
            )
        if header.count(name) > 1:
            raise ConfigError(f"{source.path}: line 1: the header names field {name!r} twice")


def read_table_documents(reading: Reading) -> Iterator[Document]:
    """Read one document a row; empty rows are passed over."""
    csv.field_size_limit(_LONGEST_FIELD_CHARS)
    rows = csv.reader(split_lines(read_chunks(reading)), delimiter=reading.source.delimiter, strict=True)
    header = _next_row(reading, rows, -1) or []
    _check_header(reading.source, header)
    columns = [header.index(name) for name in reading.source.settings.fields]
    number = 0
    first_line = rows.line_num + 1
    while (row := _next_row(reading, rows, number)) is not None:
        if row and len(row) != len(header):
            lines = _lines(first_line, rows.line_num)
            reading.fault(BAD_ROW, number, number, f"{len(row)} fields, but the header names {len(header)}{lines}")
        elif row and reading.owns(number):
            yield from _document(reading, row, columns, number)
        number += bool(row)
        first_line = rows.line_num + 1


def _document(reading: Reading, row: list[str], columns: list[int], number: int) -> Iterator[Document]:
    values = [reading.unmark(row[column], number) for column in columns]
    if None not in values:
        text, language = [*values, ""][:2]
        yield Document(tidy(str(text)), number, str(language).strip())


def _lines(first: int, last: int) -> str:
    """Return where a row stands that takes in more than a line: perhaps a quote is not closed."""
    return f" (lines {first} to {last})" if last > first else ""


def _next_row(reading: Reading, rows: Any, number: int) -> list[str] | None:
    """Return the next row, [] for one that cannot be read, None at the end.

    Raises:
        DamagedError: a quote is not closed, so that what follows cannot be told apart.
    """
    first_line = rows.line_num + 1
    try:
        row: list[str] | None = next(rows, None)
        return row
    except csv.Error as error:
        if "field larger" in str(error):
            raise DamagedError(
                f"a field of over {_LONGEST_FIELD_CHARS} characters: a quote is not closed", number
            ) from None
        lines = _lines(first_line, rows.line_num)
        if "unexpected end" in str(error):
            what = f"a quote of the row in line {first_line} is not closed (close it, or write it twice)"
            rest = f"all from there to the end of the file is lost{lines}"
            raise DamagedError(f"{what}; {rest}", max(number, 0)) from None
        reading.fault(BAD_ROW, max(number, 0), max(number, 0), f"not a row: {error}{lines}")
        return []
