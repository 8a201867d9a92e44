"""Reads JSON: .jsonl files of an object a line, and .json files of one list."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from runtime.command import did_you_mean
from tokenization.documents.faults import (
    BAD_JSON,
    DUPLICATE_FIELD,
    HALF_SURROGATES,
    NO_FIELD,
    NO_OBJECT,
    NO_STRING,
)
from tokenization.documents.lines import read_line_blocks, tidy
from tokenization.documents.model import Document
from tokenization.documents.reading import Reading

_HALF_SURROGATE = re.compile("[\ud800-\udfff]")
_LONGEST_SHOWN = 60
_MOST_FIELDS = 10


def read_jsonl_documents(reading: Reading) -> Iterator[Document]:
    """Read documents of one JSON object a line; blank lines are passed over."""
    is_shared = reading.source.is_stream and reading.count > 1
    for block_start, block in read_line_blocks(reading, has_returns=False):
        if is_shared and not reading.owns_some(block_start, block_start + len(block)):
            continue
        start = block_start
        for line in block.split(b"\n"):
            if line.strip() and not (is_shared and not reading.owns(start)):
                text = reading.decode(line, start)
                if text is not None:
                    yield from parse_record(reading, text, start)
            start += len(line) + 1


def parse_record(reading: Reading, line: str, offset: int) -> Iterator[Document]:
    """Yield the document of one JSON text, if there is one."""
    try:
        record = json.loads(line)
    except ValueError as error:
        reading.fault(BAD_JSON, offset, offset, f"is not JSON: {error}: {shorten(line)}")
    except RecursionError:
        reading.fault(BAD_JSON, offset, offset, "JSON nested too deep")
    else:
        yield from record_document(reading, record, line, offset)


def record_document(reading: Reading, record: Any, line: str, offset: int) -> Iterator[Document]:
    """Yield the document of a parsed JSON value, if there is one.

    Args:
        reading: what is read.
        record: the value.
        line: the JSON text it was parsed from.
        offset: where that starts.
    """
    field, language_field = reading.source.settings.text_field, reading.source.settings.language_field
    if not isinstance(record, dict):
        reading.fault(NO_OBJECT, offset, offset, f"a JSON object is wanted, this is {type(record).__name__}")
    elif field not in record:
        hint = did_you_mean(field, record)
        fields = ", ".join(shorten(name) for name in list(record)[:_MOST_FIELDS]) or "none"
        reading.fault(NO_FIELD, offset, offset, f"no field {field!r}{hint}; it has {fields}")
    elif line.count(f'"{field}"') > 1 and _is_twice(line, field):
        reading.fault(DUPLICATE_FIELD, offset, offset, f"field {field!r} stands there twice")
    else:
        language = "" if language_field is None else record.get(language_field)
        text = field_text(reading, record[field], field, offset)
        language = field_text(reading, language or "", str(language_field), offset)
        if text is not None and language is not None:
            yield Document(text, offset, language)


def text_document(reading: Reading, value: str, offset: int) -> Iterator[Document]:
    """Yield the document of a record that is the text itself."""
    text = field_text(reading, value, "", offset)
    if text is not None:
        yield Document(text, offset)


def field_text(reading: Reading, value: Any, field: str, offset: int) -> str | None:
    """Return a field's text, tidied; None where the document is to be left out."""
    if not isinstance(value, str):
        reading.fault(NO_STRING, offset, offset, f"field {field!r} is {type(value).__name__}, not a string")
        return None
    if not value.isascii() and _HALF_SURROGATE.search(value):
        value, count = _HALF_SURROGATE.subn("\ufffd", value)
        is_kept = reading.faults.policy == "replace"
        detail = f"field {field!r} holds half a surrogate pair (\\ud800-\\udfff)"
        reading.fault(HALF_SURROGATES, offset, offset, detail, count if is_kept else 1, is_repaired=is_kept)
        if not is_kept:
            return None
    return tidy(value)


def shorten(text: str) -> str:
    """Return the beginning of a text, as a message shows it."""
    text = text.strip()
    return repr(text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "\u2026")


def _is_twice(line: str, field: str) -> bool:
    """Whether the outermost object has a field twice; JSON's parser takes the last without a word."""
    last: list[list[tuple[str, Any]]] = [[]]

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        last[0] = pairs  # the outermost object is the last one done
        return dict(pairs)

    json.loads(line, object_pairs_hook=keep)
    return sum(name == field for name, _ in last[0]) > 1
