"""A small sparse store, opened in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import sparse_store
from benchmarks.harness import UnequalError
from tokenization.indexed import IndexedReader


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sparse") / "shards"
    directory.mkdir()
    assert sparse_store.make_store(directory, 1.0, num_shards=3) == 510_000_000
    return directory


def test_the_store_takes_no_room(store: Path):
    files = [path.stat() for path in store.glob("*.bin")]
    assert sum(file.st_size for file in files) == 1_020_000_000
    assert sum(file.st_blocks * 512 for file in files) < 1_000_000


def test_its_index_is_whole(store: Path):
    reader = IndexedReader(store / "train-00000")
    assert len(reader.document_indices) - 1 == 17
    assert reader.tokens[len(reader.tokens) // 2] == 1234


@pytest.mark.timeout(120)
def test_a_fresh_process_opens_it_and_finds_the_marks(store: Path):
    opened = sparse_store.open_in_fresh_process(store)
    assert sparse_store.check(opened, 3) == "124,186 tokens of 1,000 pairs and the marks of 3 shards are right"
    assert 0 < opened.seconds < 60
    assert opened.megabytes < 50


def test_lost_tokens_are_refused():
    opened = sparse_store.Opened(0.1, 1.0, 0.1, 1.0, 124_186, 2 * 1234)
    with pytest.raises(UnequalError, match="wanted"):
        sparse_store.check(opened, 3)
