"""`zerobert shard` with --dedup, --min-chars and --filter: what is left, and what the manifest counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from runtime.command import ConfigError
from tests.tokenization.corpora import make_documents, write_jsonl
from tests.tokenization.test_shard import contents, expected_documents, read_documents, run
from tokenization.manifest import load_manifest


def all_documents(output: Path) -> Counter[tuple[tuple[int, ...], ...]]:
    return Counter(read_documents(output, "train")) + Counter(read_documents(output, "validation"))


@pytest.mark.parametrize("tasks", ["1", "5"])
def test_equal_documents_are_kept_once(tokenizer_dir: Path, tmp_path: Path, tasks: str) -> None:
    documents = make_documents(40)
    source = write_jsonl(tmp_path / "a.jsonl", documents + documents[:30] + documents[:10])
    flags = ("--dedup", "documents", "--tasks", tasks, "--validation-share", "0.3")
    output = run(source, tokenizer_dir, tmp_path / "out", *flags)
    assert all_documents(output) == expected_documents(tokenizer_dir, documents)
    assert load_manifest(output).dropped == {"duplicate documents": 40}


def test_repeated_lines_are_kept_once(tokenizer_dir: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    pages = [f"Home | About\nThe fox {page}.\nAll rights reserved." for page in range(20)]
    source.write_text("\n\n".join([*pages, "Home | About"]) + "\n", encoding="utf-8")
    flags = ("--dedup", "lines", "--sentences", "line", "--validation-share", "0")
    output = run(source, tokenizer_dir, tmp_path / "out", *flags)
    first = ["Home | About", "The fox 0.", "All rights reserved."]
    expected = expected_documents(tokenizer_dir, [first, *([f"The fox {page}."] for page in range(1, 20))])
    assert all_documents(output) == expected
    assert load_manifest(output).dropped == {"documents of repeated lines alone": 1, "repeated lines": 39}


def test_deduplication_writes_the_same_bytes_with_any_workers(tokenizer_dir: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", make_documents(60) + make_documents(30))
    flags = ("--dedup", "documents", "lines", "--tasks", "4", "--validation-share", "0.2")
    one = run(source, tokenizer_dir, tmp_path / "one", *flags)
    two = run(source, tokenizer_dir, tmp_path / "two", *flags, "--workers", "2")
    assert contents(one) == contents(two)


def test_no_equal_document_is_in_both_splits(tokenizer_dir: Path, tmp_path: Path) -> None:
    """Lines that are taken out can make documents equal: the split is chosen by what is left of them."""
    documents = [[f"Only here {number}.", "The fox sees the dog."] for number in range(200)]
    source = tmp_path / "a.txt"
    twice = [["\n".join(sentences)] * 2 for sentences in documents]
    source.write_text("\n\n".join(text for pair in twice for text in pair) + "\n", encoding="utf-8")
    output = run(source, tokenizer_dir, tmp_path / "out", "--validation-share", "0.4", "--sentences", "line")
    train, validation = (Counter(read_documents(output, split)) for split in ("train", "validation"))
    assert train.total() + validation.total() == 400
    assert validation
    assert not train & validation


def test_short_documents_and_filtered_ones_are_counted_by_reason(tokenizer_dir: Path, tmp_path: Path) -> None:
    documents = [["Short."], *make_documents(10), ["The whale sees the word forbidden, and the mouse, and the cat."]]
    source = write_jsonl(tmp_path / "a.jsonl", documents)
    flags = ("--min-chars", "20", "--filter", "RegexFilter:regex_exp=forbidden", "--validation-share", "0")
    output = run(source, tokenizer_dir, tmp_path / "out", *flags)
    assert all_documents(output) == expected_documents(tokenizer_dir, documents[1:-1])
    dropped = load_manifest(output).dropped
    assert sum(dropped.values()) == 2
    assert dropped["shorter than 20 characters"] == 1
    assert any(reason.startswith("filter RegexFilter") for reason in dropped)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--filter", "GopherQualtyFilter"), "did you mean 'GopherQualityFilter'"),
        (("--min-chars", "-1"), "--min-chars -1: must be 0 or more"),
    ],
)
def test_bad_quality_flags_are_refused(
    corpus: Path, tokenizer_dir: Path, tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(corpus, tokenizer_dir, tmp_path / "out", *flags)
    assert not list(tmp_path.iterdir())
