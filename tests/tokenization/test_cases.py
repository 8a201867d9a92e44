"""Faults that people have met with raw text, through both commands: nothing lost, nothing silent, the place named.

The number behind each is that of the report in the tracker it comes from.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from runtime.command import ConfigError
from tests.tokenization.corpora import make_documents, write_jsonl
from tests.tokenization.test_shard import expected_documents, read_documents, run
from tokenization.manifest import load_manifest
from tokenization.train import main as train

WHOLE = ("--validation-share", "0")


def learn(source: Path, output: Path, *flags: str) -> Path:
    assert train(["--input", str(source), "--output", str(output), "--vocab-size", "200", *flags]) == 0
    return output


Command = Callable[[Path, Path, Path], object]
COMMANDS: list[Command] = [
    lambda source, output, tokenizer_dir: run(source, tokenizer_dir, output, *WHOLE),
    lambda source, output, tokenizer_dir: learn(source, output),
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"the fox sees\nthe dog \xff\xfe hears\n", r"a\.txt: byte 21 \(line 2\): .*FF.*--encoding.*--errors"),
        ("the fox\n".encode("utf-16"), r"a\.txt: byte 0: FF FE begins a text in utf-16; .*--encoding utf-16"),
        ("the caf\u00e9 of the fox\n".encode("latin-1"), r"a\.txt: byte 7 \(line 1\): .*E9.*--encoding"),
    ],
)
def test_tokenizers_282_bytes_of_another_encoding(
    tokenizer_dir: Path, tmp_path: Path, command: Command, content: bytes, message: str
) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        command(source, tmp_path / "out", tokenizer_dir)
    assert not (tmp_path / "out").exists()


def test_tokenizers_282_the_policy_is_counted_and_the_same_for_both_commands(
    tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(b"the fox sees\nthe dog \xff\xfe hears\nthe cat\n")
    kept = load_manifest(run(source, tokenizer_dir, tmp_path / "replaced", *WHOLE, "--errors", "replace"))
    assert kept.splits["train"].documents == 3
    assert kept.repaired == {"bytes that are not in the encoding": 2}
    assert [(place["path"], place["offset"]) for place in kept.places] == [(str(source), 21)]
    left_out = load_manifest(run(source, tokenizer_dir, tmp_path / "skipped", *WHOLE, "--errors", "skip"))
    assert left_out.splits["train"].documents == 2
    assert left_out.dropped == {"documents with bytes that are not in the encoding": 1}
    capsys.readouterr()
    learn(source, tmp_path / "tokenizer", "--errors", "skip")
    assert "2 documents" in capsys.readouterr().out
    latin = tmp_path / "latin.txt"
    latin.write_bytes("the caf\u00e9\n".encode("latin-1"))
    output = run(latin, tokenizer_dir, tmp_path / "latin", *WHOLE, "--encoding", "latin-1")
    assert Counter(read_documents(output, "train")) == expected_documents(tokenizer_dir, [["the caf\u00e9"]])


@pytest.mark.parametrize("layout", ["line", "blank"])
def test_pytorchic_bert_1_a_file_cut_in_the_middle_of_a_character(
    tokenizer_dir: Path, tmp_path: Path, layout: str
) -> None:
    documents = [["\u2019\u2019\u2019 doesn\u2019t the fox\u2019s"] * (1 + number % 3) for number in range(400)]
    source = tmp_path / "a.txt"
    if layout == "line":
        documents = [[" ".join(sentences)] for sentences in documents]
    source.write_text(("\n" if layout == "line" else "\n\n").join("\n".join(lines) for lines in documents) + "\n")
    flags = ("--sentences", "line", "--txt-layout", layout, *WHOLE)
    for tasks in ("2", "3", "17"):
        output = run(source, tokenizer_dir, tmp_path / f"out{tasks}", *flags, "--tasks", tasks)
        assert Counter(read_documents(output, "train")) == expected_documents(tokenizer_dir, documents)


@pytest.mark.parametrize(
    "content",
    [
        b"The fox sees. The dog hears. The cat sleeps.\nA fox. A dog. A cat.\n",
        b"The fox sees. The dog hears. The cat sleeps.\r\nA fox. A dog. A cat.\r\n",
        b"The fox sees.  The dog hears.  The cat sleeps.\nA fox.  A dog.  A cat.",
        b"\xef\xbb\xbfThe fox sees. The dog hears. The cat sleeps.\nA fox. A dog. A cat.\n",
        b"The fox\tsees. The\tdog hears. The cat\tsleeps.\nA\tfox. A\tdog. A\tcat.\n",
    ],
)
def test_bert_125_line_ends_spaces_marks_and_tabs(tokenizer_dir: Path, tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(content)
    output = run(source, tokenizer_dir, tmp_path / "out", *WHOLE)
    documents = [["The fox sees.", "The dog hears.", "The cat sleeps."], ["A fox.", "A dog.", "A cat."]]
    assert Counter(read_documents(output, "train")) == expected_documents(tokenizer_dir, documents)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", r"empty\.txt: .*"),
        ("blank.txt", b"\n \n\t\n", r"blank\.txt: .*"),
        ("short.txt.gz", gzip.compress(b"the fox\n" * 9000, mtime=0)[:-20], r"short\.txt\.gz: byte \d+ .*ends early"),
        ("a.jsonl", b'{"text": "a"}\n{"body": "b"}\n', r"a\.jsonl: byte 14 \(line 2\): no field 'text'"),
        ("folder", None, r"--input .*folder: .*"),
        ("none-*.txt", None, r"--input .*none-\*\.txt: .*"),
    ],
)
def test_input_that_holds_nothing_is_refused(
    tokenizer_dir: Path, tmp_path: Path, command: Command, name: str, content: bytes | None, message: str
) -> None:
    source = tmp_path / name
    if content is not None:
        source.write_bytes(content)
    elif name == "folder":
        source.mkdir()
    with pytest.raises(ConfigError, match=message):
        command(source, tmp_path / "out", tokenizer_dir)
    assert not (tmp_path / "out").exists()


def test_input_that_holds_nothing_is_counted_where_it_may_be_skipped(tokenizer_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("the fox\n\nthe dog\n")
    (folder / "b.txt").write_bytes(b"")
    (folder / "c.txt").write_bytes(b"\n\n")
    (folder / "d.txt.gz").write_bytes(gzip.compress(b"the cat\n" * 9000)[:-20])
    (folder / "e.jsonl").write_bytes(b'{"text": "a fox"}\n{"body": "b"}\n')
    manifest = load_manifest(run(folder, tokenizer_dir, tmp_path / "out", *WHOLE, "--errors", "skip"))
    assert manifest.dropped["files without text"] == 2
    assert manifest.dropped["files cut short"] == 1
    assert manifest.dropped["records without the text field"] == 1
    assert {Path(place["path"]).name for place in manifest.places} == {"b.txt", "c.txt", "d.txt.gz", "e.jsonl"}


def test_training_results_10_every_kind_of_file_gives_its_documents_once(tokenizer_dir: Path, tmp_path: Path) -> None:
    documents = make_documents(120)
    texts = [" ".join(sentences) for sentences in documents]
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    write_jsonl(folder / "a.jsonl", documents[:20])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("".join(lines[20:40]).encode()))
    (folder / "c.txt.bz2").write_bytes(bz2.compress("\n".join(texts[40:60]).encode()))
    (folder / "d.txt.xz").write_bytes(lzma.compress("\n".join(texts[60:70]).encode()))
    (folder / "e.txt.zst").write_bytes(zstandard.compress("\n".join(texts[70:80]).encode()))
    pq.write_table(pa.table({"id": list(range(20)), "text": texts[80:100]}), folder / "f.parquet", row_group_size=7)
    (folder / "g.csv").write_text("id,text\n" + "".join(f'1,"{text}"\n' for text in texts[100:110]))
    (folder / "wiki_00").write_text("".join(f'<doc id="1" url="" title="">\n{text}\n</doc>\n' for text in texts[110:]))
    for tasks in ("1", "9"):
        output = run(folder, tokenizer_dir, tmp_path / f"out{tasks}", "--tasks", tasks, "--validation-share", "0.2")
        found = Counter(read_documents(output, "train")) + Counter(read_documents(output, "validation"))
        assert found == expected_documents(tokenizer_dir, documents)
