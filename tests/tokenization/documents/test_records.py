from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.command import ConfigError
from tests.tokenization.documents.inputs import COMPRESS, read, read_pieces, source_of, texts, write

GOOD = b'{"text": "good"}\n'
BAD_LINES = [
    (b'{"text": "b"\n', r"byte 17 \(line 2\): is not JSON: .*: '\{\"text\": \"b\"'", "records that are not JSON"),
    (
        b'{"texts": "b"}\n',
        r"byte 17 \(line 2\): no field 'text' \(did you mean 'texts'\?\); it has 'texts'; name .*--text-field",
        "records without the text field",
    ),
    (b'{"text": 1}\n', "field 'text' is int, not a string", "records whose text is not a string"),
    (b'{"text": null}\n', "field 'text' is NoneType, not a string", "records whose text is not a string"),
    (b'["a"]\n', "a JSON object is wanted, this is list", "records that are not JSON objects"),
    (b"[" * 100_000 + b"\n", "JSON nested too deep|is not JSON", "records that are not JSON"),
    (b'{"n": ' + b"1" * 5000 + b', "text": "b"}\n', "is not JSON: Exceeds the limit", "records that are not JSON"),
    (b'{"text": "a", "text": "b"}\n', "field 'text' stands there twice", "records with the text field twice"),
]
ANY_PIECES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FRAGMENTS = [
    b"\n",
    b"\r\n",
    b'{"text": "a"}\n',
    '{"text": "\u2019\u2028"}\n'.encode(),
    b'{"text": "b", "x": {"text": 1}}',
    b'{"text": "\\ud800"}\n',
    b'{"text": "a\xff"}\n',
    b'"text"',
    b"{",
    b"}",
    b"\xef\xbb\xbf",
    b"[1]\n",
]


@pytest.mark.parametrize(("line", "message", "reason"), BAD_LINES)
def test_bad_lines_are_named_or_left_out(tmp_path: Path, line: bytes, message: str, reason: str) -> None:
    path = write(tmp_path / "a.jsonl", GOOD + line + GOOD)
    with pytest.raises(ConfigError, match=r"a\.jsonl: .*" + message):
        _read_all(path)
    for policy in ("replace", "skip"):
        documents, faults = read(path, errors=policy)
        assert [document.text for document in documents] == ["good", "good"]
        assert faults.dropped == faults.counts == {reason: 1}
        assert faults.places[0]["offset"] == len(GOOD)


def _read_all(path: Path) -> list[str]:
    return [document.text for document in read_pieces(source_of(path, "jsonl"), 1)[0]]


def test_half_surrogates_are_replaced_or_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"text": "a\\ud800b\\udc00"}\n{"text": "\\ud83d\\ude00"}\n')
    with pytest.raises(ConfigError, match="half a surrogate pair"):
        texts(path)
    documents, faults = read(path, errors="replace")
    assert [document.text for document in documents] == ["a\ufffdb\ufffd", "\U0001f600"]
    assert faults.repaired == {"half surrogate pairs": 2}
    documents, faults = read(path, errors="skip")
    assert [document.text for document in documents] == ["\U0001f600"]
    assert faults.dropped == {"half surrogate pairs": 1}


def test_lines_are_objects_with_text_and_language(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        b'\xef\xbb\xbf{"body": " x\\r\\ny ", "lang": "de", "o": {"body": 1}}\r\n\n'
        b'{"body": "z", "lang": null}\r\n{"body": "w"}',
    )
    documents = read(path, text_field="body", language_field="lang")[0]
    assert [(document.text, document.language) for document in documents] == [("x\ny", "de"), ("z", ""), ("w", "")]
    assert documents[0].offset == 3


def test_a_language_field_that_no_record_has_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", GOOD)
    with pytest.raises(
        ConfigError,
        match=r"--language-field lang: no file has this field; .*a\.jsonl: none of the first 1 documents has",
    ):
        texts(path, language_field="lang")


def test_bad_bytes_in_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", GOOD + b'{"text": "a\xff\xc3b"}\n')
    with pytest.raises(ConfigError, match=r"byte 28 \(line 2\): is not UTF-8 text: 0xFF"):
        _read_all(path)
    assert texts(path, errors="replace") == ["good", "a\ufffd\ufffdb"]
    assert texts(path, errors="skip") == ["good"]


@given(fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=30), count=st.integers(2, 12))
@ANY_PIECES
def test_pieces_of_jsonl_give_every_document_once(tmp_path: Path, fragments: list[bytes], count: int) -> None:
    source = source_of(write(tmp_path / "a.jsonl", b"".join(fragments)), "jsonl", errors="replace")
    whole, whole_faults = read_pieces(source, 1)
    parts, part_faults = read_pieces(source, count)
    assert parts == whole
    del whole_faults.counts["files without text"]  # known of whole files alone
    assert part_faults.counts == whole_faults.counts


@pytest.mark.parametrize("suffix", COMPRESS)
def test_pieces_of_compressed_jsonl(tmp_path: Path, suffix: str) -> None:
    lines = [f"{number} {'é' * (number % 100)}x" for number in range(30_000)]
    data = COMPRESS[suffix]("".join(json.dumps({"text": line}, ensure_ascii=False) + "\n" for line in lines).encode())
    source = source_of(write(tmp_path / f"a.jsonl{suffix}", data), "jsonl")
    for count in (1, 3, 8):
        assert Counter(document.text for document in read_pieces(source, count)[0]) == Counter(lines)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([{"text": "a"}, {"text": " b\r\nc"}], ["a", "b\nc"]),
        (["a", "b"], ["a", "b"]),
        ({"version": "1", "data": [{"text": "a"}], "more": {"x": [1]}}, ["a"]),
        ({"rows": ["a", "b"]}, ["a", "b"]),
        ({"text": "a", "n": 1.5}, ["a"]),
        ({"title": "T", "text": "a", "tags": ["b", "c"], "more": [1]}, ["a"]),
        ({"tags": ["b", "c"], "more": [{"text": "d"}], "text": "a"}, ["a"]),
        ({"data": [{"text": "a"}, {"text": "b" * 5_000_000}]}, ["a", "b" * 5_000_000]),
        ([{"text": "x" * 3_000_000}, {"text": "y", "n": [[1, 2], None, True]}], ["x" * 3_000_000, "y"]),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_json_lists(tmp_path: Path, value: Any, expected: list[str], indent: int | None, suffix: str) -> None:
    data = json.dumps(value, indent=indent, ensure_ascii=False).encode("utf-8")
    path = write(tmp_path / f"a.json{suffix}", COMPRESS[suffix](b"\xef\xbb\xbf" + data + b"\n"))
    assert texts(path) == expected


def test_json_of_an_object_a_line_is_read_as_such(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "a.json", b'{"text": "a"}\n{"text": "b"}\n')) == ["a", "b"]


@pytest.mark.parametrize("size", [10, 160_000, 3_000_000])
def test_json_of_an_object_a_line_may_begin_with_a_long_or_a_bad_one(tmp_path: Path, size: int) -> None:
    long = b'{"text": "' + b"x" * size + b'"}\n'
    assert len(texts(write(tmp_path / "a.json", long + GOOD))) == 2
    bad = long.replace(b"text", b"texts")
    assert texts(write(tmp_path / "b.json", bad + GOOD), errors="skip") == ["good"]


def test_json_of_an_object_a_line_that_is_not_known_as_such(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", b'{"text": "' + b"x" * 5_000_000 + b'"}\n' + GOOD)
    with pytest.raises(ConfigError, match=r"more text after the end of the JSON: .*--format jsonl"):
        read(path)
    assert len(texts(path, format="jsonl")) == 2


def test_bad_bytes_in_a_json_object(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", b'{\n"tags": [],\n"text": "a\xff"}')
    assert texts(path, errors="replace") == ["a\ufffd"]
    with pytest.raises(ConfigError, match=r"a\.json: byte 24 \(line 3\): is not UTF-8 text: 0xFF"):
        read(path)


def test_the_fields_of_a_record_without_text_are_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps({f"f{number}": 1 for number in range(12)}).encode())
    with pytest.raises(ConfigError, match=r"no field 'text'; it has 'f0', .*, 'f9'; name"):
        read(path)


def test_files_without_the_language_field_are_read_where_others_have_it(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", b'{"text": "a", "lang": "de"}\n')
    write(tmp_path / "b.jsonl", b'{"text": "b"}\n')
    write(tmp_path / "c.csv", b"text\nc\n")
    documents = read(tmp_path, language_field="lang")[0]
    assert [(document.text, document.language) for document in documents] == [("a", "de"), ("b", ""), ("c", "")]
    with pytest.raises(ConfigError, match=r"--language-field lang: no file has this field; .*c\.csv: line 1: no field"):
        read(tmp_path / "c.csv", tmp_path / "b.jsonl", language_field="lang")


@given(
    values=st.lists(
        st.text(max_size=8) | st.fixed_dictionaries({"text": st.text(max_size=8), "n": st.floats(allow_nan=False)}),
        max_size=12,
    ),
    indent=st.sampled_from([None, 1]),
    block=st.integers(1, 11),
)
@ANY_PIECES
def test_json_lists_do_not_depend_on_block_edges(
    tmp_path: Path, values: list[Any], indent: int | None, block: int
) -> None:
    path = write(tmp_path / "a.json", json.dumps(values, indent=indent).encode())
    expected = [value if isinstance(value, str) else value["text"] for value in values]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenization.documents.streams.read_blocks.__defaults__", (block,))
        documents, faults = read_pieces(source_of(path, "json", errors="skip"), 1)
    assert [document.text for document in documents] == [
        text.replace("\r\n", "\n").replace("\r", "\n").strip() for text in expected
    ]
    assert faults.counts.keys() <= {"files without text"}


def test_pieces_of_a_json_list_give_every_document_once(tmp_path: Path) -> None:
    lines = [f"number {number}" for number in range(5000)]
    source = source_of(write(tmp_path / "a.json", json.dumps([{"text": line} for line in lines]).encode()), "json")
    for count in (1, 2, 3):
        assert Counter(document.text for document in read_pieces(source, count)[0]) == Counter(lines)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"text": "a"}, {"text": ]', r"record 1: .*Expecting value"),
        (b'[{"text": "a"} {"text": "b"}]', r"record 1: .*',' or '\]' is wanted after a record, not '\{'"),
        (b'[{"text": "a"}, {"text": "b"', r"record 1: .*Expecting ',' delimiter"),
        (b'[{"text": "a"}, {"text": "b', r"record 1: .*Unterminated string"),
        (b'[{"text": "a"}', r"record 1: .*ends early"),
        (b'[{"text": "a"}] x', r"record 1: .*more text after the end"),
        (b'{"a": [{"text": "a"}], "b": []}', r"record 1: .*more than one list \(a, b\)"),
        (b'{"a": [{"text": "a"}], 3: []}', r"record 1: .*a field's name and ':' are wanted"),
        (b'{"a": [{"text": "a"}]', r"record 1: .*',' or '\}' is wanted"),
        (b'[{"text": "a"}, ' + b"[" * 100_000, r"record 1: .*(nested too deep|Expecting value)"),
    ],
)
def test_json_that_cannot_be_read_further(tmp_path: Path, content: bytes, message: str) -> None:
    source = source_of(write(tmp_path / "a.json", content), "json")
    with pytest.raises(ConfigError, match=message):
        read_pieces(source, 1)
    documents, faults = read_pieces(source_of(tmp_path / "a.json", "json", errors="skip"), 1)
    assert [document.text for document in documents] == ["a"]
    assert faults.counts == {"files cut short": 1}


@pytest.mark.parametrize("content", [b'"text"', b"3", b"nothing"])
def test_json_without_a_list(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match="a JSON list or object is wanted"):
        texts(write(tmp_path / "a.json", content))


def test_records_of_a_json_list_are_checked_one_by_one(tmp_path: Path) -> None:
    content = b'[{"text": "a"}, {"texts": "b"}, 3, {"text": null}, {"text": "\xff"}, "\\ud800", {"text": "c"}]'
    source = source_of(write(tmp_path / "a.json", content), "json", errors="skip")
    documents, faults = read_pieces(source, 1)
    assert [document.text for document in documents] == ["a", "c"]
    assert faults.dropped == {
        "records without the text field": 1,
        "records that are not JSON objects": 1,
        "records whose text is not a string": 1,
        "documents with bytes that are not in the encoding": 1,
        "half surrogate pairs": 1,
    }
    with pytest.raises(ConfigError, match=r"a\.json: byte 61 \(line 1\): is not UTF-8 text: 0xFF"):
        read_pieces(source_of(tmp_path / "a.json", "json"), 1)


def test_a_bad_record_does_not_pull_the_whole_file_into_memory(tmp_path: Path) -> None:
    import tracemalloc

    content = b'[{"text": "a"}, {"text" "b"}' + b', {"text": "c"}' * 2_000_000 + b"]"
    source = source_of(write(tmp_path / "a.json", content), "json", errors="skip")
    tracemalloc.start()
    documents = read_pieces(source, 1)[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(documents) == 1
    assert peak < 12 << 20 < len(content)
