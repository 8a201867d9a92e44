"""A corpus four times as large takes no more memory: each of the two commands, its workers counted."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

import pytest

from benchmarks.scale import run_with_peak, write_corpus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "demo" / "corpus" / "state_of_the_union.jsonl.xz"
MOST_GROWTH = 1.2


@pytest.mark.parametrize("flags", [(), ("--dedup", "documents", "lines")])
def test_four_times_the_corpus_takes_the_memory_of_one(tokenizer_dir: Path, tmp_path: Path, flags) -> None:
    with lzma.open(CORPUS, "rt", encoding="utf-8") as lines:
        text = "\n\n".join(json.loads(line)["text"] for line in lines)
    peaks = []
    for name, megabytes in (("one", 16.0), ("four", 64.0)):
        write_corpus(text, megabytes, tmp_path / f"{name}.txt")
        command = [sys.executable, "-m", "tokenization.shard", "--input", str(tmp_path / f"{name}.txt")]
        command += ["--tokenizer", str(tokenizer_dir), "--output", str(tmp_path / name), "--workers", "2", *flags]
        peaks.append(run_with_peak(command, tmp_path / f"{name}.log"))
    assert peaks[1] <= MOST_GROWTH * peaks[0]


def test_learning_from_four_times_the_corpus_takes_the_memory_of_one(tmp_path: Path) -> None:
    with lzma.open(CORPUS, "rt", encoding="utf-8") as lines:
        text = "\n\n".join(json.loads(line)["text"] for line in lines)
    peaks = []
    for name, megabytes in (("one", 16.0), ("four", 64.0)):
        write_corpus(text, megabytes, tmp_path / f"{name}.txt")
        command = [sys.executable, "-m", "tokenization.train", "--input", str(tmp_path / f"{name}.txt")]
        command += ["--output", str(tmp_path / name), "--vocab-size", "8000", "--sample-bytes", "12000000"]
        peaks.append(run_with_peak(command, tmp_path / f"{name}.log"))
    assert peaks[1] <= MOST_GROWTH * peaks[0]
