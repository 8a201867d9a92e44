"""Reads .json files: a list of objects or of strings, or an object with one such list. Memory: a few records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from tokenization.documents.chunks import read_chunks
from tokenization.documents.model import Document
from tokenization.documents.reading import Reading
from tokenization.documents.records import record_document, shorten, text_document
from tokenization.documents.streams import DamagedError, HeadEndError

_SPACE = " \t\n\r"
# A number, a word such as `true` or an escape may be cut by the end of what was read so far.
_LONGEST_CUT_TOKEN = 16


def read_json_documents(reading: Reading) -> Iterator[Document]:
    """Read the documents of a .json file."""
    for number, (value, raw) in enumerate(_Parser(reading).records()):
        if not reading.owns(number):
            continue
        text = reading.unmark(raw, number)
        if text is None:
            continue
        # The same again, with U+FFFD for the marks of bad bytes.
        record = value if text is raw else json.loads(text)
        if isinstance(record, str):
            yield from text_document(reading, record, number)
        else:
            yield from record_document(reading, record, text, number)


def _has_field(reading: Reading, field: str) -> bool:
    """Whether the file's object has a field, wherever it stands in it."""
    try:
        return field in _Parser(reading).keys()
    except (DamagedError, HeadEndError):
        return False  # what is wrong is told where it is come upon


class _Parser:
    """Finds the records in a growing buffer of text; what was taken is thrown away."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._chunks = read_chunks(reading)
        self._decode = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._is_at_end = False
        self._number = 0

    def records(self) -> Iterator[tuple[Any, str]]:
        """Yield (value, its JSON text) of every record.

        Raises:
            DamagedError: what follows cannot be read.
        """
        start = self._next()
        if start == "[":
            yield from self._list()
        elif start == "{":
            yield from self._object()
        elif start:
            self._fail(f"a JSON list or object is wanted: {shorten(self._text[self._at :])}")
        if self._next():
            hint = "; if it holds an object a line, tell it with --format jsonl" if start == "{" else ""
            self._fail(f"more text after the end of the JSON: {shorten(self._text[self._at :])}{hint}")

    def _list(self) -> Iterator[tuple[Any, str]]:
        self._at += 1
        if self._next() == "]":
            self._at += 1
            return
        while True:
            yield self._value()
            self._number += 1
            separator = self._next()
            self._at += 1
            if separator == "]":
                return
            if separator != ",":
                self._fail(f"',' or ']' is wanted after a record, not {separator!r}" if separator else "ends early")

    def _object(self) -> Iterator[tuple[Any, str]]:
        """Yield the object itself if it has the text field, else the records of its only list."""
        text_field = self._reading.source.settings.text_field
        lists: list[str] = []
        fields: dict[str, Any] = {}
        is_record: bool | None = None
        for key in self._keys():
            is_record = True if key == text_field else is_record
            if self._next() == "[" and is_record is None:
                is_record = _has_field(self._reading, text_field)
            if self._next() == "[" and not is_record:
                lists.append(key)
                if len(lists) > 1:
                    self._fail(f"holds more than one list ({', '.join(lists)}); which one is meant cannot be told")
                yield from self._list()
            else:
                fields[key] = self._value()[0]
        if not lists:
            yield fields, json.dumps(fields, ensure_ascii=False)

    def keys(self) -> Iterator[str]:
        """Yield the names of the object's fields, and pass over their values."""
        self._next()
        for key in self._keys():
            yield key
            if self._next() == "[":
                for _ in self._list():
                    pass
            else:
                self._value()

    def _keys(self) -> Iterator[str]:
        """Yield the names of an object's fields; the caller reads each one's value."""
        self._at += 1
        separator = "}" if self._next() == "}" else ","
        self._at += separator == "}"
        while separator == ",":
            key = self._value()[0]
            if self._next() != ":" or not isinstance(key, str):
                self._fail("a field's name and ':' are wanted")
            self._at += 1
            yield key
            separator = self._next()
            self._at += 1
        if separator != "}":
            self._fail("',' or '}' is wanted after a field")

    def _value(self) -> tuple[Any, str]:
        self._next()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                is_cut = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - _LONGEST_CUT_TOKEN
                if not (is_cut and self._grow()):
                    self._fail(f"{error.msg}: {shorten(self._text[self._at :])}")
            except (RecursionError, ValueError) as error:
                what = "JSON nested too deep" if isinstance(error, RecursionError) else str(error)
                self._fail(f"{what}: {shorten(self._text[self._at :])}")
            else:
                if end < len(self._text) or not self._grow():
                    start, self._at = self._at, end
                    return value, self._text[start:end]

    def _next(self) -> str:
        """Pass over white space; return the character there, "" at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if not self._grow():
                return ""

    def _grow(self) -> bool:
        """Read as much as is still unused, so that a long record is not parsed over and over."""
        wanted = len(self._text) - self._at
        parts = [self._text[self._at :]]
        size = 0
        while size <= wanted and (chunk := next(self._chunks, "")):
            parts.append(chunk)
            size += len(chunk)
        self._text = "".join(parts)
        self._at = 0
        return size > 0

    def _fail(self, what: str) -> NoReturn:
        raise DamagedError(f"is not JSON that can be read further: {what}", self._number)
