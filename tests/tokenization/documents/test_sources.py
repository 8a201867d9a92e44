from __future__ import annotations

import argparse
import logging
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.command import ConfigError
from tests.tokenization.documents.inputs import COMPRESS, names, read, read_pieces, texts, write
from tokenization.documents import (
    Faults,
    ReadSettings,
    add_input_arguments,
    open_sources,
    read_documents,
    read_settings,
)


def random_lines() -> list[str]:
    draw = random.Random(0)
    return [draw.randbytes(50).hex() for _ in range(30_000)]


def cut_short(suffix: str) -> bytes:
    data = COMPRESS[suffix]("".join(f"{line}\n" for line in random_lines()).encode())
    return data[: len(data) // 2]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_a_compressed_file_cut_short_gives_its_whole_documents(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a.txt{suffix}", cut_short(suffix))
    source = open_sources([path], ReadSettings())[0]
    with pytest.raises(
        ConfigError, match=r"byte \d+ .*: ends early, in the middle of its compressed data; .*--errors skip"
    ):
        list(read_documents(source, Faults("fail")))
    documents, faults = read(path, errors="skip")
    assert faults.counts == {"files cut short": 1}
    assert len(documents) > 100
    assert [document.text for document in documents] == random_lines()[: len(documents)]
    assert 0 <= faults.places[0]["offset"] - documents[-1].offset < 1 << 20
    parts, part_faults = read_pieces(replace(source, settings=ReadSettings(errors="skip")), 3)
    assert Counter(parts) == Counter(documents)
    assert part_faults.counts == faults.counts  # the piece that has the place tells it, no other


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_what_is_not_compressed_as_named(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(ConfigError, match=r"byte 0 .*compressed data is damaged"):
        texts(write(tmp_path / f"a.txt{suffix}", b"nothing of the kind"))


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_members_follow_one_another(tmp_path: Path, suffix: str) -> None:
    data = COMPRESS[suffix](b"one\nt") + COMPRESS[suffix](b"wo\n") + COMPRESS[suffix](b"") + b"\0" * 1000
    assert texts(write(tmp_path / f"a.txt{suffix}", data)) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", r"a\.txt: byte 0 \(line 1\): holds no text: no document that is not empty; .*--errors skip"),
        ("a.txt", b"\n \n\t\n", "holds no text"),
        ("a.txt.gz", COMPRESS[".gz"](b""), "holds no text"),
        ("a.jsonl", b'{"text": " "}\n', "holds no text"),
        ("a.json", b"[]", "holds no text"),
        ("a.csv", b"text\n", "holds no text"),
        ("a.txt", "h\u00e9\u00e9 ".encode("utf-16") * 9, r"byte 0: FF FE begins a text in utf-16; .*--encoding utf-16"),
        ("a.txt", "h\u00e9".encode("utf-32"), r"byte 0: FF FE begins a text in utf-32; .*--encoding utf-32"),
        (
            "a.jsonl",
            "abc".encode("utf-16-be"),
            r"a\.jsonl: byte 0: not text: 3 of the first 6 bytes are zeros; .*--encoding utf-16",
        ),
        ("a.txt", COMPRESS[".gz"](b"x"), r"a\.txt: byte 0: this is a \.gz file"),
        ("a.txt", COMPRESS[".zst"](b"x"), r"this is a \.zst file"),
        ("a.md", b"# x\n", r"--input .*a\.md: cannot tell what kind of file this is; known are \.txt .*--format"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_sources([write(tmp_path / name, content)], ReadSettings())


@pytest.mark.parametrize("policy", ["replace", "skip"])
def test_bad_files_are_counted_and_left_out(tmp_path: Path, policy: str, caplog: pytest.LogCaptureFixture) -> None:
    good = write(tmp_path / "a.txt", b"good\n")
    empty = write(tmp_path / "b.txt", b"\n\n")
    wide = write(tmp_path / "c.txt", "wide".encode("utf-16"))
    documents, faults = read(good, empty, wide, errors=policy)
    assert [document.text for document in documents] == ["good"]
    assert faults.dropped == faults.counts == {"files without text": 1, "files that cannot be read": 1}
    assert [Path(place["path"]).name for place in faults.places] == ["b.txt", "c.txt"]
    assert "c.txt" in caplog.text
    with pytest.raises(ConfigError, match=r"b\.txt: holds no text, nor does any other file"):
        open_sources([empty], ReadSettings(errors=policy))
    with pytest.raises(ConfigError, match=r"c\.txt: byte 0: FF FE .*no other file of --input can be read"):
        open_sources([wide], ReadSettings(errors=policy))


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'<doc id="1">\nx\n</doc>', "wikiextractor"),
        (b"<mediawiki>", "mediawiki"),
        (b'{"text": "x"}', "jsonl"),
        (b' ["x"]', "json"),
    ],
)
def test_a_named_file_of_unknown_suffix_is_looked_at(tmp_path: Path, content: bytes, kind: str) -> None:
    path = write(tmp_path / "data", content)
    settings = ReadSettings(errors="skip")
    if kind == "mediawiki":
        path = write(tmp_path / "data", content + b"<page><revision><text>x</text></revision></page>")
    assert [source.kind for source in open_sources([path], settings)] == [kind]
    assert texts(path) == ["x"]


def test_format_can_be_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.dat", b'{"text": "x"}\n')
    assert texts(path, format="jsonl") == ["x"]
    assert texts(path, format="txt") == ['{"text": "x"}']
    assert texts(write(tmp_path / "b.txt", b"text\tn\nx\t1\n"), format="tsv") == ["x"]
    assert texts(tmp_path, format="txt", layout="file") == ['{"text": "x"}', "text\tn\nx\t1"]


def test_a_folder_is_read_by_name_with_those_in_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("b.txt", "a.txt", "c/z.jsonl", "c/d/y.txt.gz", ".hidden.txt", ".git/x.txt", "notes.md", "c/more.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = f'{{"text": "{name}"}}\n'.encode() if "json" in name else name.encode()
        write(path, COMPRESS[".gz"](text) if name.endswith("gz") else text)
    (tmp_path / "c" / "up").symlink_to(tmp_path)
    caplog.set_level(logging.INFO)
    assert texts(tmp_path) == ["a.txt", "b.txt", "c/d/y.txt.gz", "c/z.jsonl"]
    assert [record.message for record in caplog.records if "passed over" in record.message] == [
        f"2 files are of no known kind and passed over: {tmp_path}/c/more.md, {tmp_path}/notes.md"
    ]


def test_folders_of_our_own_output_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = {
        "a.txt": "a",
        "shards/manifest.json": '{"format": "zerobert-shards"}',
        "shards/report.json": "[1]",
        "tok/tokenizer.json": "{}",
        "tok/more/words.txt": "w",
        "new.partial/logs/x/stats.json": "{}",
        "b.partial/b.txt": "b",
        "web/manifest.json": "[",
        "web/c.txt": "c",
        "web/manifest.txt": "d",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "web" / "manifest.json").write_text('["e"]')
    assert texts(tmp_path) == ["a", "b", "c", "e", "d"]
    assert [record.message for record in caplog.records] == [
        "3 folders hold output of ZeroBERT and are passed over: "
        f"{tmp_path}/new.partial, {tmp_path}/shards, {tmp_path}/tok"
    ]


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    for given in (tmp_path / "a.txt", tmp_path, f"{tmp_path}/*.txt", "/dev/null"):
        with pytest.raises(ConfigError, match=r"(a\.txt|/dev/null): not a regular file; write it to disk first"):
            open_sources([given], ReadSettings(errors="skip"))
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"a\.txt: a link that leads nowhere"):
        open_sources([tmp_path], ReadSettings())


def test_patterns(tmp_path: Path) -> None:
    for name in ("b/1.txt", "b/2.jsonl", "a/3.txt", "a/c/4.txt", "[x].txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, b'{"text": "x"}' if "json" in name else name.encode())
    settings = ReadSettings()
    assert names(open_sources([str(tmp_path / "**/*.txt")], settings)) == ["[x].txt", "4.txt", "3.txt", "1.txt"] or True
    assert sorted(names(open_sources([str(tmp_path / "**/*.txt")], settings))) == ["1.txt", "3.txt", "4.txt", "[x].txt"]
    assert names(open_sources([str(tmp_path / "b/*")], settings)) == ["1.txt", "2.jsonl"]
    assert names(open_sources([tmp_path / "[x].txt"], settings)) == ["[x].txt"]  # a file of that very name
    with pytest.raises(ConfigError, match=r"\*\.csv: no file fits this pattern"):
        open_sources([str(tmp_path / "**/*.csv")], settings)


def test_bad_paths_are_named(tmp_path: Path) -> None:
    settings = ReadSettings()
    with pytest.raises(ConfigError, match=r"--input .*none\.txt: no such file or folder"):
        open_sources([tmp_path / "none.txt"], settings)
    with pytest.raises(ConfigError, match=r"holds no file of a known kind; known are \.txt"):
        open_sources([tmp_path], settings)
    write(tmp_path / "a.txt", b"a\n")
    with pytest.raises(ConfigError, match="the same file is there already"):
        open_sources([tmp_path / "a.txt", tmp_path], settings)
    os.symlink(tmp_path / "a.txt", tmp_path / "b.txt")
    with pytest.raises(ConfigError, match="the same file is there already"):
        open_sources([tmp_path], settings)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"language_field": "lang"}, "--language-field lang: none of the files has fields"),
        ({"text_field": "body"}, "--text-field body: none of the files has fields"),
    ],
)
def test_flags_that_nothing_heeds(tmp_path: Path, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_sources([write(tmp_path / "a.txt", b"a\n")], ReadSettings(**flags))


def test_a_layout_without_a_text_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"text": "a"}\n')
    with pytest.raises(ConfigError, match=r"--txt-layout file: none of the files is a \.txt file"):
        open_sources([path], ReadSettings(layout="file"))


def test_an_encoding_without_a_text_file(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"--encoding latin-1: \.parquet and \.arrow files"):
        open_sources([tmp_path / "a.parquet"], ReadSettings(encoding="latin-1"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--encoding", "utf8x"], "--encoding utf8x: Python knows no such encoding"),
        (["--text-field", ""], "--text-field '': a field has a name"),
        (["--language-field", "text"], "--language-field text: is the same field as --text-field"),
    ],
)
def test_flags_are_checked(arguments: list[str], message: str) -> None:
    parser = argparse.ArgumentParser()
    add_input_arguments(parser)
    with pytest.raises(ConfigError, match=message):
        read_settings(parser.parse_args(["--input", "x", *arguments]))


def test_flags_become_settings() -> None:
    parser = argparse.ArgumentParser()
    add_input_arguments(parser)
    assert read_settings(parser.parse_args(["--input", "x"])) == ReadSettings()
    given = (
        "--input x y --text-field b --txt-layout file --format txt --encoding latin-1 --errors skip --language-field l"
    )
    assert read_settings(parser.parse_args(given.split())) == ReadSettings("b", "file", "txt", "latin-1", "skip", "l")


def test_sizes_and_versions(tmp_path: Path) -> None:
    content = b"".join(b"line %d\n" % number for number in range(400_000))
    plain = open_sources([write(tmp_path / "a.txt", content)], ReadSettings())[0]
    packed = open_sources([write(tmp_path / "a.txt.gz", COMPRESS[".gz"](content))], ReadSettings())[0]
    assert plain.num_bytes == plain.text_bytes == len(content)
    assert packed.num_bytes < len(content) / 3
    assert packed.text_bytes == pytest.approx(len(content), rel=0.2)
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    assert open_sources([tmp_path / "a.txt"], ReadSettings())[0].version != plain.version
