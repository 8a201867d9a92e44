from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.command import ConfigError
from tests.tokenization.documents.inputs import COMPRESS, read, read_pieces, source_of, texts, write
from tokenization.documents.transcode import Transcoder, check_encoding

LINES = ["caf\u00e9 \u2019x\u2019", "\u65e5\u672c\u8a9e", "end \U0001f600"]


@pytest.mark.parametrize(
    ("encoding", "lines"),
    [
        ("utf-16", LINES),
        ("utf-16-le", LINES),
        ("utf-16-be", LINES),
        ("utf-32", LINES),
        ("utf-8-sig", LINES),
        ("utf-7", LINES),
        ("gb18030", LINES),
        ("latin-1", ["caf\u00e9", "\u00fc"]),
        ("cp1252", ["caf\u00e9 \u2019x\u2019", "\u20ac"]),
        ("koi8-r", ["\u043f\u0440\u0438\u0432\u0435\u0442"]),
        ("shift_jis", ["\u65e5\u672c\u8a9e", "abc"]),
        ("iso2022_jp", ["\u65e5\u672c\u8a9e", "abc \u65e5"]),
        ("hz", ["\u4e2d\u6587 abc", "\u4e2d"]),
        ("ascii", ["abc"]),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_every_encoding_reads_as_utf_8(tmp_path: Path, encoding: str, lines: list[str], suffix: str) -> None:
    data = COMPRESS[suffix]("\n".join(lines).encode(encoding))
    assert texts(write(tmp_path / f"a.txt{suffix}", data), encoding=encoding) == lines


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le"):
        path = write(tmp_path / "a.jsonl", '\ufeff{"text": "x"}\n'.encode(encoding))
        assert texts(path, encoding=encoding) == ["x"]


@pytest.mark.parametrize(
    ("encoding", "content", "offset", "byte"),
    [
        ("ascii", b"ab\ncd\xe9f\n", 5, 0xE9),
        ("utf-16-le", "ab\n".encode("utf-16-le") + b"\x00\xd8" + "x\n".encode("utf-16-le"), 6, 0),
        ("utf-16", "ab".encode("utf-16") + b"x", 6, 0x78),
        ("gb18030", b"ab\n\xff\xffcd", 3, 0xFF),
        ("shift_jis", b"abc\n\x82", 4, 0x82),
        ("cp1252", b"a\x81", 1, 0x81),
        ("iso2022_jp", b"ab\x1b$Bzz\x1b(B", 5, 0x7A),
    ],
)
def test_bytes_that_cannot_be_decoded_are_named_by_their_own_offset(
    tmp_path: Path, encoding: str, content: bytes, offset: int, byte: int
) -> None:
    path = write(tmp_path / "a.txt", content)
    with pytest.raises(
        ConfigError, match=rf"a\.txt: byte {offset}: is not text in {encoding}: 0x{byte:02X}; .*--encoding"
    ):
        texts(path, encoding=encoding, layout="line")
    documents, faults = read(path, encoding=encoding, layout="line", errors="replace")
    assert "\ufffd" in "".join(document.text for document in documents)
    assert faults.repaired.total() >= 1
    assert faults.places[0]["offset"] == offset
    kept, faults = read(path, encoding=encoding, layout="file", errors="skip") if offset < 0 else ([], faults)
    assert kept == []


def test_the_document_with_bad_bytes_is_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"one\nt\xe9\nthree\n")
    documents, faults = read(path, encoding="ascii", errors="skip")
    assert [document.text for document in documents] == ["one", "three"]
    assert faults.dropped == {"documents with bytes that are not in the encoding": 1}


@pytest.mark.parametrize("encoding", ["utf-16", "UTF16", "utf-32"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "a.csv", "a.txt.gz"])
def test_a_wide_encoding_without_a_byte_order_mark(tmp_path: Path, encoding: str, name: str) -> None:
    wide = encoding.lower().replace("f1", "f-1")
    path = write(tmp_path / name, COMPRESS[name.partition("txt")[2]]("text\nabc\n".encode(f"{wide}-be")))
    with pytest.raises(ConfigError, match=rf"{name}: byte 0: no byte order mark.*--encoding {wide}-le or {wide}-be"):
        read(path, encoding=encoding)
    good = write(tmp_path / "b.txt", "good".encode(wide))
    for policy in ("replace", "skip"):
        documents, faults = read(path, good, encoding=encoding, errors=policy)
        assert [document.text for document in documents] == ["good"]
        assert faults.counts == {"files that cannot be read": 1}
    kind = "csv" if "csv" in name else "line"
    with pytest.raises(ConfigError, match="no byte order mark"):
        read_pieces(source_of(path, kind, encoding=encoding), 1)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_wide_encoding_that_was_not_named_is_guessed(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "a.txt", "Some words.\n\u2019x\u2019".encode(encoding))
    for named in ("utf-8", "latin-1"):
        with pytest.raises(ConfigError, match=rf"not text: .* zeros; .*--encoding {encoding}$"):
            read(path, encoding=named)


@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=50).filter(
        lambda text: not text.startswith("\ufeff")
    ),
    encoding=st.sampled_from(["utf-16", "utf-32-be", "gb18030", "utf-7"]),
    block=st.integers(1, 7),
)
@settings(max_examples=200, deadline=None)
def test_any_text_comes_through_whatever_the_block_edges(text: str, encoding: str, block: int) -> None:
    def refuse(offset: int, byte: int) -> None:
        pytest.fail(f"byte {offset}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenization.documents.transcode._BLOCK_BYTES", block)
        stream = Transcoder(io.BytesIO(text.encode(encoding)), encoding, refuse)
        assert stream.readall().decode("utf-8") == text


def test_pieces_of_a_transcoded_file_give_every_document_once(tmp_path: Path) -> None:
    lines = [f"{number} été {'è' * (number % 50)}" for number in range(60_000)]
    content = "\n".join(lines).encode("latin-1").replace(b"77 ", b"77 \x81")
    source = source_of(write(tmp_path / "a.txt", content), "line", encoding="cp1252", errors="replace")
    whole, whole_faults = read_pieces(source, 1)
    assert len(whole) == len(lines)
    for count in (2, 5, 8):
        parts, faults = read_pieces(source, count)
        assert Counter(parts) == Counter(whole)
        assert faults.counts == whole_faults.counts


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("utf-99", "--encoding utf-99: Python knows no such encoding.*did you mean"),
        ("rot13", "--encoding rot13: not an encoding of text"),
        ("hex", "--encoding hex: not an encoding of text"),
        ("zlib", "--encoding zlib: not an encoding of text"),
        ("", "--encoding : "),
        ("a\0b", "--encoding a"),
        ("punycode", "--encoding punycode: not an encoding"),
        ("undefined", "--encoding undefined: "),
    ],
)
def test_what_is_no_encoding_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_encoding(name)
