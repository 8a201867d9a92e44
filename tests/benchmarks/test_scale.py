"""The corpus of `scale`, its measure of memory, and the command on a tiny text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import scale
from benchmarks.harness import UnequalError

TEXT = "\n\n".join("\n".join(f"word{number} says {line} ok." for line in range(40)) for number in range(60))


def test_a_copy_has_new_words_and_as_many():
    first, again, other = scale.vary(TEXT, 1), scale.vary(TEXT, 1), scale.vary(TEXT, 2)
    assert first == again != other
    assert len(first.split()) == len(TEXT.split())
    assert first.count("\n") == TEXT.count("\n")
    new = set(first.split()) - set(TEXT.split())
    assert len(new) == round(0.05 * len(set(TEXT.split())))


def test_a_corpus_has_the_size_asked(tmp_path: Path):
    scale.write_corpus(TEXT, 0.2, tmp_path / "corpus.txt")
    assert 0.19e6 < (tmp_path / "corpus.txt").stat().st_size <= 0.2e6
    assert (tmp_path / "corpus.txt").read_text().endswith("ok.\n\n")


@pytest.mark.timeout(60)
def test_memory_of_a_child_of_the_command_counts(tmp_path: Path):
    child = "bytearray(200_000_000)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    peak = scale.run_with_peak([sys.executable, "-c", program], tmp_path / "log.txt")
    assert 200e6 < peak < 300e6


@pytest.mark.timeout(60)
def test_a_failure_shows_what_was_said(tmp_path: Path):
    with pytest.raises(RuntimeError, match=r"exit code 3: (?s:.*)because"):
        scale.run_with_peak([sys.executable, "-c", "import sys; print('because'); sys.exit(3)"], tmp_path / "log.txt")


@pytest.mark.timeout(120)
@pytest.mark.distributed
def test_one_and_two_workers_write_the_same(tmp_path: Path, tokenizer_dir: Path):
    scale.write_corpus(TEXT, 0.1, tmp_path / "corpus.txt")
    command = scale.Command(tmp_path / "corpus.txt", tokenizer_dir, tmp_path)
    one, two = command.run(1), command.run(2)
    assert scale.check_same(two, one).startswith("the bytes of ")
    assert len(command.peaks) == 2
    assert min(command.peaks) > 10
    manifest = two / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"sha256": "', '"sha256": "f', 1))
    with pytest.raises(UnequalError, match="manifests differ"):
        scale.check_same(two, one)
