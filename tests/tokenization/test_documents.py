from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from runtime.command import ConfigError
from tokenization.documents import open_sources, read_documents
from tokenization.sentences import check_language, split_sentences
from tokenization.survey import read_part, survey

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def read_texts(*paths: Path, layout: str = "auto") -> list[str]:
    sources = open_sources(list(paths), "text", layout)
    return [document.text for source in sources for document in read_documents(source) if document.text]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"A cat sat. It slept. It ran.\nA dog ran. It ate. It hid.\n", id="one a line"),
        pytest.param(b"A cat sat. It slept. It ran.\r\nA dog ran. It ate. It hid.\r\n", id="windows line ends"),
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
def test_two_documents_of_three_sentences_however_written(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "two.txt"
    path.write_bytes(content)
    texts = read_texts(path)
    cut = [split_sentences(text, "auto", "en") for text in texts]
    assert [[" ".join(sentence.split()) for sentence in sentences] for sentences in cut] == [
        ["A cat sat.", "It slept.", "It ran."],
        ["A dog ran.", "It ate.", "It hid."],
    ]


def test_line_mode_takes_each_line_for_a_sentence() -> None:
    assert split_sentences("no full stop\nMr. A. went. He left\n\n x ", "line", "en") == [
        "no full stop",
        "Mr. A. went. He left",
        "x",
    ]


def test_language_is_checked() -> None:
    with pytest.raises(ConfigError, match="--language 'english!'"):
        check_language("english!")


def test_layout_can_be_told(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n\nthree\n", encoding="utf-8")
    assert read_texts(path) == ["one\ntwo", "three"]
    assert read_texts(path, layout="line") == ["one", "two", "three"]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_every_compression_reads_alike_from_any_mark(tmp_path: Path, suffix: str) -> None:
    texts = [f"document {index} é" + "é" * index for index in range(300)]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(COMPRESS[suffix]("".join(json.dumps({"text": text}) + "\n" for text in texts).encode()))
    found = survey(open_sources([path], "text", "auto"))
    assert found.num_documents == 300
    for num_parts in (1, 2, 7, 1000):
        parts = found.cut(num_parts)
        assert len(parts) <= num_parts
        read = [document.text for part in parts for document in read_part(found.sources, part)]
        assert read == texts


def test_zstd_of_several_frames(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(COMPRESS[".zst"](b"one\nt") + COMPRESS[".zst"](b"wo\n"))
    assert read_texts(path) == ["one", "two"]


def test_a_folder_is_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("b\n")
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "notes.md").write_text("no\n")
    assert read_texts(tmp_path) == ["a", "b"]


def test_parts_go_on_from_file_to_file_and_lose_nothing(tmp_path: Path) -> None:
    texts = [[f"file {file} line {line}" for line in range(17)] for file in range(5)]
    for file, lines in enumerate(texts):
        (tmp_path / f"{file}.txt").write_text("\n".join(lines))
    found = survey(open_sources([tmp_path], "text", "auto"))
    for num_parts in range(1, 90):
        parts = found.cut(num_parts)
        read = [document.text for part in parts for document in read_part(found.sources, part)]
        assert read == [line for lines in texts for line in lines]


def cut_short(suffix: str) -> bytes:
    data = COMPRESS[suffix](b"".join(b"a line of text %d\n" % (index * 7919 % 10007) for index in range(5000)))
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "a.txt: holds no text"),
        ("a.txt", b"\n \n\t\n", "a.txt: holds no text"),
        ("a.jsonl", b'{"text": " "}\n', "a.jsonl: holds no text"),
        ("a.txt", b"ok\nab\xff\xfe\n", r"a.txt: byte 5 \(line 2\) is not UTF-8 text: 0xFF"),
        ("a.txt", "\ufeffhé".encode("utf-16"), r"a.txt: byte 0 \(line 1\) is not UTF-8"),
        ("a.txt", b"\xef\xbb\xbfab\xe9 \n", r"a.txt: byte 5 \(line 1\) is not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"texts": "b"}\n', "a.jsonl:2: no field 'text'.*did you mean 'texts'"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": "b"\n', "a.jsonl:3: not a line of JSON"),
        ("a.jsonl", b'{"text": 1}\n', "a.jsonl:1: field 'text' is int, not a string"),
        ("a.jsonl", b'["a"]\n', "a.jsonl:1: a JSON object is wanted, this is list"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "a.jsonl:1: field 'text' holds half a surrogate"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl:1: "),
        ("a.txt.gz", cut_short(".gz"), "a.txt.gz: damaged or cut short"),
        ("a.txt.bz2", cut_short(".bz2"), "a.txt.bz2: damaged or cut short"),
        ("a.txt.xz", cut_short(".xz"), "a.txt.xz: damaged or cut short"),
        ("a.txt.zst", cut_short(".zst"), "a.txt.zst: damaged or cut short"),
        ("a.txt.gz", b"not gzip", "a.txt.gz: damaged"),
        ("a.txt.bz2", b"not bzip2", "a.txt.bz2: damaged"),
        ("a.txt.xz", b"not xz", "a.txt.xz: damaged"),
        ("a.txt.zst", b"not zstd", "a.txt.zst: damaged"),
        ("a.csv", b"a,b\n", "cannot read this kind of file|not a kind"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        survey(open_sources([tmp_path / name], "text", "auto"))


def test_bad_paths_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.txt: no such file"):
        open_sources([tmp_path / "none.txt"], "text", "auto")
    with pytest.raises(ConfigError, match="the folder holds no"):
        open_sources([tmp_path], "text", "auto")
    (tmp_path / "a.txt").write_text("a\n")
    with pytest.raises(ConfigError, match="the same file is there already"):
        open_sources([tmp_path / "a.txt", tmp_path], "text", "auto")


def test_one_bad_file_among_good_ones_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "b.txt").write_text("")
    with pytest.raises(ConfigError, match=r"b\.txt: holds no text"):
        survey(open_sources([tmp_path], "text", "auto"))
