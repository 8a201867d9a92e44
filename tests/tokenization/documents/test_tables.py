from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path

import pytest

from runtime.command import ConfigError
from tests.tokenization.documents.inputs import COMPRESS, read, read_pieces, source_of, texts, write

ROWS = [("1", "one, two", "en"), ("2", 'He said "no".\nThen left.', "de"), ("3", "\u2019x\u2019", "")]


def table(delimiter: str = ",", line_end: str = "\r\n") -> str:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=line_end)
    writer.writerows([("id", "text", "lang"), *ROWS])
    return out.getvalue()


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.csv", ";"), ("a.csv", "\t"), ("a.tsv", "\t")])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("suffix", ["", ".xz"])
def test_named_fields(tmp_path: Path, name: str, delimiter: str, line_end: str, suffix: str) -> None:
    data = COMPRESS[suffix](b"\xef\xbb\xbf" + table(delimiter, line_end).encode())
    documents = read(write(tmp_path / (name + suffix), data), language_field="lang")[0]
    assert documents == [(text, number, language) for number, (_, text, language) in enumerate(ROWS)]


def test_another_encoding(tmp_path: Path) -> None:
    assert len(texts(write(tmp_path / "a.csv", table().encode("utf-16")), encoding="utf-16")) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"id,txt\n1,a\n",
            r"a\.csv: line 1: the header has no field 'text' \(did you mean 'txt'\?\); it names id, txt; .*--text",
        ),
        (b"text,text\na,b\n", "line 1: the header names field 'text' twice"),
        (b"text,id\na,1\nb\n", r"record 1: 1 fields, but the header names 2"),
        (b'text,id\na,1\n"b"c,2\n', r"record 1: not a row: ',' expected after '\"'"),
        (b'text,id\na,1\n"b', r"record 1: a quote of the row in line 3 is not closed"),
        (b"text,id\na,1\nb\xff,2\n", r"byte 13 \(line 3\): is not UTF-8 text: 0xFF"),
    ],
)
def test_bad_tables_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path / "a.csv", content)
    with pytest.raises(ConfigError, match=message):
        texts(path)


def test_bad_rows_are_left_out(tmp_path: Path) -> None:
    content = b'text,id\na,1\nb\n\n"c"d,3\n\xff\xc3e,4\nf,5\n'
    path = write(tmp_path / "a.csv", content)
    documents, faults = read(path, errors="skip")
    assert [document.text for document in documents] == ["a", "f"]
    assert faults.dropped == {
        "rows that do not fit the header": 2,
        "documents with bytes that are not in the encoding": 1,
    }
    documents, faults = read(path, errors="replace")
    assert [document.text for document in documents] == ["a", "\ufffd\ufffde", "f"]
    assert faults.repaired == {"bytes that are not in the encoding": 2}


def test_a_stray_quote_does_not_swallow_rows_silently(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b'text\na\n"b\n' + b"word\n" * 1000)
    documents, faults = read(path, errors="skip")
    assert [document.text for document in documents] == ["a"]
    assert faults.counts == {"files cut short": 1}
    assert faults.places[0]["offset"] == 1
    assert faults.places[0]["detail"].endswith("to the end of the file is lost (lines 3 to 1003)")
    documents, faults = read(write(path, b'text,n\na,1\n"b,2\nc,3\nd,4\n"e",5\nf,6\n'), errors="skip")
    assert [document.text for document in documents] == ["a", "f"]
    assert faults.places[0]["detail"].endswith("(lines 3 to 6)")


def test_pieces_of_a_table_give_every_document_once(tmp_path: Path) -> None:
    lines = [f"number {number}" for number in range(5000)]
    source = source_of(write(tmp_path / "a.csv", "\n".join(["text", *lines]).encode()), "csv")
    for count in (1, 2, 3):
        assert Counter(document.text for document in read_pieces(source, count)[0]) == Counter(lines)


def test_a_quote_that_is_never_closed_does_not_take_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenization.documents.tables._LONGEST_FIELD_CHARS", 1000)
    content = b'text\na\n"b\n' + b"word\n" * 1000
    documents, faults = read(write(tmp_path / "a.csv", content), errors="skip")
    assert [document.text for document in documents] == ["a"]
    assert faults.counts == {"files cut short": 1}
    with pytest.raises(ConfigError, match="record 1: a field of over 1000 characters: a quote is not closed"):
        read(tmp_path / "a.csv")
