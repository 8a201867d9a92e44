from __future__ import annotations

import gc
import os
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.command import ConfigError
from tests.tokenization.documents.inputs import COMPRESS, read, read_pieces, source_of, texts, write
from tokenization.documents import Faults, Piece, ReadSettings, Source, cut, open_sources, read_documents, read_piece
from tokenization.sentences import split_sentences

ANY_PIECES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Line ends, blank lines of several kinds, characters of 1 to 4 bytes, bad bytes, byte order marks.
FRAGMENTS = [
    b"\n",
    b"\n",
    b"\r\n",
    b"\r",
    b"\n\n",
    b"\n \t\n",
    "\n\u3000\n".encode(),
    b"a",
    b" ",
    "\u2019".encode(),
    "\u00e9x".encode(),
    "\U0001f600".encode(),
    b"\xff",
    b"\xe2\x80",
    b"\xef\xbb\xbf",
    b"\0",
    "\u2028".encode(),
    b"\x1c",
    b"word word word",
]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"A cat sat. It slept. It ran.\nA dog ran. It ate. It hid.\n", id="one a line"),
        pytest.param(b"A cat sat. It slept. It ran.\r\nA dog ran. It ate. It hid.\r\n", id="windows line ends"),
        pytest.param(b"A cat sat. It slept. It ran.\rA dog ran. It ate. It hid.\r", id="old Mac line ends"),
        pytest.param(b"\xef\xbb\xbfA cat sat. It slept. It ran.\nA dog ran. It ate. It hid.", id="byte order mark"),
        pytest.param(b"A cat\tsat. It slept.\tIt ran.\nA dog\tran. It ate. It\thid.\n", id="tabs"),
        pytest.param(b"A cat sat.  It slept.  It ran.\nA dog ran.  It ate.  It hid.\n", id="two spaces"),
        pytest.param(b"A cat sat.\nIt slept.\nIt ran.\n\nA dog ran.\nIt ate.\nIt hid.\n", id="blank line"),
        pytest.param(b"A cat sat.\nIt slept.\nIt ran.\n  \nA dog ran.\nIt ate.\nIt hid.\n", id="line of two spaces"),
        pytest.param(
            b"\xef\xbb\xbf\r\nA cat sat.\r\nIt slept.\r\nIt ran.\r\n\t\r\n\r\nA dog ran.\r\nIt ate.\r\nIt hid.\r\n\r\n",
            id="all at once",
        ),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_two_documents_of_three_sentences_however_written(tmp_path: Path, content: bytes, encoding: str) -> None:
    path = write(tmp_path / "two.txt", content.decode("utf-8").encode(encoding))
    found = [split_sentences(text, "auto", "en") for text in texts(path, encoding=encoding)]
    assert [[" ".join(sentence.split()) for sentence in sentences] for sentences in found] == [
        ["A cat sat.", "It slept.", "It ran."],
        ["A dog ran.", "It ate.", "It hid."],
    ]


def test_layout_can_be_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b" one\r\ntwo\n\n\nthree \n")
    assert texts(path) == ["one\ntwo", "three"]
    assert texts(path, layout="line") == ["one", "two", "three"]
    assert texts(path, layout="file") == ["one\ntwo\n\n\nthree"]


def test_empty_lines_are_empty_documents_of_the_line_layout(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"one\n\n two\n")
    source = open_sources([path], ReadSettings(layout="line"))[0]
    assert [tuple(document) for document in read_documents(source, Faults("fail"))] == [
        ("one", 0, ""),
        ("", 4, ""),
        ("two", 5, ""),
    ]


@pytest.mark.parametrize("layout", ["line", "blank", "file"])
@pytest.mark.parametrize("suffix", COMPRESS)
def test_every_compression_reads_alike(tmp_path: Path, suffix: str, layout: str) -> None:
    content = b"".join(f"text {number} \u2019\n\n".encode() for number in range(500))
    plain = read(write(tmp_path / "a.txt", content), layout=layout)[0]
    assert read(write(tmp_path / f"b.txt{suffix}", COMPRESS[suffix](content)), layout=layout)[0] == plain
    assert len(plain) == (1 if layout == "file" else 500)


@pytest.mark.parametrize("policy", ["replace", "skip"])
@pytest.mark.parametrize("layout", ["line", "blank"])
@given(fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=60), count=st.integers(2, 12))
@ANY_PIECES
def test_pieces_give_every_document_once(
    tmp_path: Path, layout: str, policy: str, fragments: list[bytes], count: int
) -> None:
    source = source_of(write(tmp_path / "a.txt", b"".join(fragments)), layout, errors=policy)
    whole, whole_faults = read_pieces(source, 1)
    parts, part_faults = read_pieces(source, count)
    assert parts == whole
    del whole_faults.counts["files without text"]  # known of whole files alone
    assert part_faults.counts == whole_faults.counts


@given(fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=60), block_bytes=st.integers(1, 9))
@ANY_PIECES
def test_documents_do_not_depend_on_block_edges(tmp_path: Path, fragments: list[bytes], block_bytes: int) -> None:
    path = write(tmp_path / "a.txt", b"".join(fragments))
    expected = [text.strip() for text in _plain_lines(path.read_bytes().decode("utf-8", "replace"))]
    source = source_of(path, "line", errors="replace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenization.documents.streams.read_blocks.__defaults__", (block_bytes,))
        documents = list(read_documents(source, Faults("replace")))
    assert [document.text for document in documents] == expected


def _plain_lines(text: str) -> list[str]:
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


@pytest.mark.parametrize("kind", ["line", "blank"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_streams_and_files_cut_at_any_byte_lose_nothing(tmp_path: Path, kind: str, suffix: str) -> None:
    lines = [f"{number} it’s x{'’' * (number % 97)}" for number in range(30_000)]
    content = ("\n" if kind == "line" else "\n\n").join(lines).encode()
    assert len(content) > 3 << 20
    source = source_of(write(tmp_path / f"a.txt{suffix}", COMPRESS[suffix](content)), kind)
    for count in (1, 2, 3, 8):
        documents = read_pieces(source, count)[0]
        if not suffix:
            assert [document.text for document in documents] == lines
        assert Counter(document.text for document in documents) == Counter(lines)


def test_a_cut_within_a_character_gives_whole_documents(tmp_path: Path) -> None:
    lines = ["\u2019" * 5, "it\u2019s\u2019", "\u2019\u2019", "don\u2019t"]
    content = "\n".join(lines).encode()
    path = write(tmp_path / "a.txt", content)
    assert content[len(content) // 2] & 0xC0 == 0x80  # half of the bytes is within a character
    source = source_of(path, "line")
    parts = [list(read_piece([source], Piece(0, index, 2), Faults("fail"))) for index in (0, 1)]
    assert [[document.text for document in part] for part in parts] == [lines[:2], lines[2:]]


def test_one_line_of_50_mb_takes_a_few_times_its_memory(tmp_path: Path) -> None:
    size = 50_000_000
    path = write(tmp_path / "a.txt", b"word " * (size // 5))
    sources = open_sources([path], ReadSettings())
    tracemalloc.start()
    try:
        documents = [
            document
            for task in cut(sources, 4)
            for piece in task
            for document in read_piece(sources, piece, Faults("fail"))
        ]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [len(document.text) for document in documents] == [size - 1]
    assert peak < 4.5 * size


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_reader_that_stops_early_closes_its_file(tmp_path: Path, name: str) -> None:
    content = b"one\ntwo\n" * 1000
    source = open_sources(
        [write(tmp_path / name, COMPRESS[Path(name).suffix.replace(".txt", "")](content))], ReadSettings()
    )[0]
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    documents = read_documents(source, Faults("fail"))
    next(documents)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    documents.close()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("content", "layout", "message"),
    [
        (
            b"ok\nab\xff\xfe\n",
            "line",
            r"a\.txt: byte 5 \(line 2\): is not UTF-8 text: 0xFF; name .*--encoding.*--errors",
        ),
        (b"\xef\xbb\xbfab\xe9 \n", "line", r"byte 5 \(line 1\): is not UTF-8 text: 0xE9"),
        (b"ok\r\n\r\nab\r\ncd\x80", "blank", r"byte 12 \(line 4\): is not UTF-8 text: 0x80"),
        (b"\n\nab\n\xc3", "file", r"byte 5 \(line 4\): is not UTF-8 text: 0xC3"),
    ],
)
def test_bad_bytes_are_named(tmp_path: Path, content: bytes, layout: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        texts(write(tmp_path / "a.txt", content), layout=layout)


@pytest.mark.parametrize(
    ("layout", "replaced", "num_replaced", "skipped", "num_skipped"),
    [
        ("line", ["one", "a\ufffd\ufffdb", "two", "\ufffd"], 3, ["one", "two"], 2),
        ("blank", ["one\na\ufffd\ufffdb", "two\n\ufffd"], 3, [], 2),
        ("file", ["one\na\ufffd\ufffdb\n\ntwo\n\ufffd"], 3, [], 1),
    ],
)
def test_bad_bytes_are_replaced_or_their_documents_skipped(
    tmp_path: Path, layout: str, replaced: list[str], num_replaced: int, skipped: list[str], num_skipped: int
) -> None:
    reason = "bytes that are not in the encoding"
    source = source_of(write(tmp_path / "a.txt", b"one\na\xff\xfeb\n\ntwo\n\xe2\x80"), layout, errors="replace")
    documents, faults = read_pieces(source, 1)
    assert [document.text for document in documents if document.text] == replaced
    assert faults.counts == faults.repaired == {reason: num_replaced}
    assert not faults.dropped
    assert faults.places[0] == {"path": source.path, "offset": 5, "reason": reason, "detail": "is not UTF-8 text: 0xFF"}
    skipping = source_of(Path(source.path), layout, errors="skip")
    documents, faults = read_pieces(skipping, 1)
    assert [document.text for document in documents if document.text] == skipped
    assert faults.counts == faults.dropped == {f"documents with {reason}": num_skipped}


def test_places_are_the_first_twenty(tmp_path: Path) -> None:
    source: Source = source_of(write(tmp_path / "a.txt", b"\xff\n" * 50), "line", errors="skip")
    faults = read_pieces(source, 1)[1]
    assert faults.counts.total() == 50
    assert [place["offset"] for place in faults.places] == list(range(0, 40, 2))
