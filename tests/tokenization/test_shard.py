from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from runtime.command import ConfigError
from runtime.files import sha256_of
from tests.tokenization.corpora import NUM_DOCUMENTS, SENTENCES_A_DOCUMENT, make_documents, write_jsonl
from tokenization.indexed import IndexedReader
from tokenization.manifest import load_manifest, tokenizer_fingerprint, verify
from tokenization.shard import main
from tokenization.shard_task import choose_split
from tokenization.tasks.executors import Stage

REPOSITORY = Path(__file__).resolve().parents[2]


def run(source: Path, tokenizer_dir: Path, output: Path, *flags: str) -> Path:
    arguments = ["--input", str(source), "--tokenizer", str(tokenizer_dir), "--output", str(output), *flags]
    assert main(arguments) == 0
    return output


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def read_documents(folder: Path, split: str) -> list[tuple[tuple[int, ...], ...]]:
    """All documents of a split, as tuples of sentences."""
    found = []
    for shard in load_manifest(folder).splits[split].shards:
        reader = IndexedReader(folder / shard.name)
        sentences = [tuple(reader[index].tolist()) for index in range(len(reader))]
        bounds = reader.document_indices.tolist()
        found += [tuple(sentences[start:end]) for start, end in pairwise(bounds)]
    return found


def expected_documents(tokenizer_dir: Path, documents: list[list[str]]) -> Counter[tuple[tuple[int, ...], ...]]:
    """The documents' ids by Hugging Face alone, sentence by sentence."""
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    return Counter(
        tuple(tuple(tokenizer.encode(sentence, add_special_tokens=False).ids) for sentence in sentences)
        for sentences in documents
    )


@pytest.mark.parametrize("tasks", [1, 2, 3, 7, 1000])
def test_no_document_and_no_sentence_is_lost_or_doubled(
    corpus: Path, tokenizer_dir: Path, tmp_path: Path, tasks: int
) -> None:
    output = run(corpus, tokenizer_dir, tmp_path / "out", "--tasks", str(tasks), "--validation-share", "0.2")
    found = Counter(read_documents(output, "train")) + Counter(read_documents(output, "validation"))
    assert found == expected_documents(tokenizer_dir, make_documents())
    manifest = load_manifest(output)
    assert sum(split.documents for split in manifest.splits.values()) == NUM_DOCUMENTS
    assert sum(split.sentences for split in manifest.splits.values()) == NUM_DOCUMENTS * SENTENCES_A_DOCUMENT
    assert len(manifest.splits["train"].shards) == min(tasks, len(manifest.splits["train"].shards))
    verify(manifest)


def test_any_number_of_workers_writes_the_same_bytes(corpus: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    flags = ("--tasks", "4", "--validation-share", "0.2")
    expected = contents(run(corpus, tokenizer_dir, tmp_path / "one", *flags))
    assert len(expected) == 15  # 4 train and 3 validation shards of 2 files, and the manifest
    for name, workers in (("again", 1), ("two", 2), ("three", 3)):
        output = run(corpus, tokenizer_dir, tmp_path / name, *flags, "--workers", str(workers))
        assert contents(output) == expected


def test_splits_are_disjoint_even_with_repeated_documents(tokenizer_dir: Path, tmp_path: Path) -> None:
    documents = make_documents(40) * 3
    source = write_jsonl(tmp_path / "a.jsonl", documents)
    output = run(source, tokenizer_dir, tmp_path / "out", "--tasks", "5", "--validation-share", "0.3")
    train, validation = (Counter(read_documents(output, split)) for split in ("train", "validation"))
    assert train + validation == expected_documents(tokenizer_dir, documents)
    assert validation
    assert not train & validation


def test_the_share_of_validation_documents() -> None:
    chosen = Counter(choose_split(f"document {index}".encode(), 0.1) for index in range(20_000))
    assert 0.09 < chosen["validation"] / 20_000 < 0.11
    assert {choose_split(f"document {index}".encode(), 0.0) for index in range(1000)} == {"train"}


def test_manifest_says_what_was_done(corpus: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl.gz"
    lines = corpus.read_bytes() + b'{"text": " "}\n{"text": "\\u0001\\u0002"}\n{"text": "A fox. \\u0003"}\n'
    source.write_bytes(gzip.compress(lines))
    value = json.loads((run(source, tokenizer_dir, tmp_path / "out") / "manifest.json").read_text(encoding="utf-8"))
    vocab_size = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json")).get_vocab_size()
    assert value["tokenizer"] == {
        "fingerprint": tokenizer_fingerprint(tokenizer_dir),
        "vocab_size": vocab_size,
    }
    assert value["dtype"] == "int16"
    assert value["sources"] == [
        {
            "path": str(source),
            "bytes": source.stat().st_size,
            "documents": NUM_DOCUMENTS + 2,
            "sha256": sha256_of(source),
        }
    ]
    assert value["dropped"]["empty documents"] == 1
    assert value["dropped"]["documents without tokens"] == 1
    assert value["dropped"]["sentences without tokens"] >= 1
    assert value["settings"] == {
        "tokenizer": str(tokenizer_dir),
        "language": "en",
        "sentences": "auto",
        "validation_share": 0.01,
        "text_field": "text",
        "layout": "auto",
        "format": "auto",
        "encoding": "utf-8",
        "errors": "fail",
        "language_field": None,
        "dedup": [],
        "min_chars": 0,
        "filters": [],
        "tasks": 1,
    }
    assert sum(split["documents"] for split in value["splits"].values()) == NUM_DOCUMENTS + 1


def test_each_line_can_be_a_sentence(tokenizer_dir: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("the fox\nMr. Fox. The dog\n\nthe cat\n", encoding="utf-8")
    output = run(source, tokenizer_dir, tmp_path / "out", "--sentences", "line", "--validation-share", "0")
    expected = expected_documents(tokenizer_dir, [["the fox", "Mr. Fox. The dog"], ["the cat"]])
    assert Counter(read_documents(output, "train")) == expected


def test_the_result_is_printed(
    corpus: Path, tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(corpus, tokenizer_dir, tmp_path / "out", "--validation-share", "0")
    printed = capsys.readouterr().out
    assert f"train                   {NUM_DOCUMENTS}             {NUM_DOCUMENTS * SENTENCES_A_DOCUMENT} " in printed
    for word in ("tokens/s", "MB/s"):
        assert word in printed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workers", "0"], "--workers 0: must be 1 or more"),
        (["--tasks", "-1"], "--tasks -1: must be 1 or more"),
        (["--validation-share", "1"], "--validation-share 1.0: must be 0 or more and below 1"),
        (["--validation-share", "nan"], "--validation-share nan: must be 0 or more and below 1"),
        (["--language", "English"], "--language 'English': a language code is wanted"),
        (["--text-field", "txt"], r"corpus.jsonl: byte 0 \(line 1\): no field 'txt' \(did you mean 'text'\?\)"),
    ],
)
def test_bad_arguments_write_nothing(
    corpus: Path, tokenizer_dir: Path, tmp_path: Path, flags: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(corpus, tokenizer_dir, tmp_path / "deep" / "out", *flags)
    assert not list(tmp_path.iterdir())


def test_an_empty_training_split_is_refused(corpus: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no document is left for training \(all are in the validation split\)"):
        run(corpus, tokenizer_dir, tmp_path / "out", "--validation-share", "0.9999999")
    with pytest.raises(ConfigError, match=r"no document is left for training \(60 shorter than 9999 characters\)"):
        run(corpus, tokenizer_dir, tmp_path / "out", "--min-chars", "9999")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_is_needed(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json: no such file; a tokenizer folder is wanted"):
        run(corpus, tmp_path / "none", tmp_path / "out")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json: not a tokenizer"):
        run(corpus, tmp_path, tmp_path / "out")


def test_output_is_only_replaced_when_asked(corpus: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    output = run(corpus, tokenizer_dir, tmp_path / "out")
    expected = contents(output)
    with pytest.raises(ConfigError, match=r"out: the folder is not empty"):
        run(corpus, tokenizer_dir, output)
    assert contents(run(corpus, tokenizer_dir, output, "--force")) == expected
    (output / "manifest.json").unlink()
    with pytest.raises(ConfigError, match=r"--force replaces an older output alone"):
        run(corpus, tokenizer_dir, output, "--force")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is there already and is not a folder"):
        run(corpus, tokenizer_dir, tmp_path / "file", "--force")


def test_force_never_deletes_the_input(corpus: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    output = run(corpus, tokenizer_dir, tmp_path / "out")
    source = write_jsonl(output / "a.jsonl", make_documents())
    with pytest.raises(ConfigError, match="holds the input"):
        run(source, tokenizer_dir, output, "--force")
    assert source.exists()
    with pytest.raises(ConfigError, match=r"--force would delete a\.jsonl, which this command did not write"):
        run(corpus, tokenizer_dir, output, "--force")
    assert source.exists()
    source.unlink()
    shutil.copytree(tokenizer_dir, output / "tokenizer")
    with pytest.raises(ConfigError, match="holds the input"):
        run(corpus, output / "tokenizer", output, "--force")
    assert (output / "tokenizer" / "tokenizer.json").exists()


def test_folders_of_other_people_are_left_alone(corpus: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    for name in ("out.old", "out.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"out\.partial, which holds something else"):
        run(corpus, tokenizer_dir, tmp_path / "out")
    shutil.rmtree(tmp_path / "out.partial")
    run(corpus, tokenizer_dir, tmp_path / "out")
    run(corpus, tokenizer_dir, tmp_path / "out", "--force")
    assert (tmp_path / "out.old" / "notes.txt").read_text() == "precious"


def test_an_output_inside_the_input_is_refused(corpus: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(corpus.read_bytes())
    with pytest.raises(ConfigError, match="lies in the input folder"):
        run(tmp_path, tokenizer_dir, tmp_path / "out")


def test_what_training_sees_as_equal_is_never_in_both_splits(tokenizer_dir: Path, tmp_path: Path) -> None:
    """Case and spaces make texts differ, not their ids."""
    documents = make_documents(100)
    loud = [[sentence.upper().replace(" ", "  ") for sentence in sentences] for sentences in documents]
    source = write_jsonl(tmp_path / "a.jsonl", documents + loud)
    flags = ("--sentences", "line", "--tasks", "3", "--validation-share", "0.3")
    output = run(source, tokenizer_dir, tmp_path / "out", *flags)
    train, validation = (Counter(read_documents(output, split)) for split in ("train", "validation"))
    assert sum(train.values()) + sum(validation.values()) == 200
    assert validation
    assert not train & validation


def test_an_error_while_writing_leaves_the_older_output(
    corpus: Path, tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = run(corpus, tokenizer_dir, tmp_path / "out")
    expected = contents(output)

    def fail(*_: object) -> None:
        raise RuntimeError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("tokenization.collect.write_manifest", fail)
        with pytest.raises(RuntimeError, match="disk full"):
            run(corpus, tokenizer_dir, output, "--force")
    assert contents(output) == expected
    # the task is done: a second call has nothing but the manifest to write
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.partial"]
    monkeypatch.setattr(
        "tokenization.shard.run_local", lambda stages, work_dir, workers: assert_all_done(stages, work_dir)
    )
    assert contents(run(corpus, tokenizer_dir, output, "--force")) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def assert_all_done(stages: Sequence[Stage], work_dir: Path) -> None:
    for stage in stages:
        assert len(list((stage.logging_dir(work_dir) / "completions").iterdir())) == stage.num_tasks


def test_bad_input_ends_with_code_2_and_writes_nothing(tokenizer_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"body": "b"}\n')
    command = [sys.executable, "-m", "tokenization.shard", "--input", "a.jsonl", "--output", "out"]
    done = subprocess.run(
        [*command, "--tokenizer", str(tokenizer_dir), "--workers", "2"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "zerobert shard: error: a.jsonl: byte 14 (line 2): no field 'text'; it has 'body'; name the field with "
        "--text-field, or leave such documents out with --errors skip\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_the_command_works_as_a_process_with_workers(corpus: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tokenization.shard",
        "--input",
        str(corpus),
        "--output",
        "out",
        "--validation-share",
        "0.2",
        "--tasks",
        "3",
    ]
    done = subprocess.run(
        [*command, "--tokenizer", str(tokenizer_dir), "--workers", "2"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    verify(load_manifest(tmp_path / "out"))


def test_this_stage_never_imports_torch() -> None:
    code = "import sys, tokenization.shard, tokenization.train; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, timeout=60)
