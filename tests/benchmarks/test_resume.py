"""A plan of a few thousand pairs, resumed; skipping; the whole benchmark at that size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import resume
from benchmarks.harness import UnequalError
from benchmarks.sparse_store import make_store

PAIRS = 5_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resume")
    (path / "shards").mkdir()
    num_tokens = make_store(path / "shards", 0.04, num_shards=1)
    resume.write_plan(resume.open_reader(path / "shards", path / "plans"), num_tokens, PAIRS)
    return path


def test_the_plan_is_one_that_the_reader_takes(folder: Path):
    reader = resume.open_reader(folder / "shards", folder / "plans")
    assert reader.num_pairs(0) == PAIRS
    columns = reader.plan(0).columns
    assert (reader.plan(0).pair_tokens() == 128).all()
    assert np.diff(columns.a_start).min() > 125
    assert columns.a_start[-1] + 125 < reader.manifest.splits["train"].tokens


def test_first_batches(folder: Path):
    first, again, later = (
        resume.first_batch(folder / "shards", folder / "plans", position) for position in (0, 0, 4500)
    )
    assert np.array_equal(first.input_ids, again.input_ids)
    assert resume.check(first, later) == "64 pairs of 128 tokens each"
    with pytest.raises(UnequalError, match="the same pairs"):
        resume.check(first, again)


def test_skipping_goes_through_what_is_skipped():
    taken = []

    def batches():
        for number in range(100):
            taken.append(number)
            yield number

    assert resume.seconds_a_pair(batches(), 10 * resume.BATCH_PAIRS) > 0
    assert taken == list(range(11))
    assert 0 < resume.skip_indices(2000) < resume.skip_items(2000)


def test_starts_are_timed_in_turns(folder: Path, monkeypatch: pytest.MonkeyPatch):
    order = []
    monkeypatch.setattr(resume, "first_batch", lambda _, __, position: order.append(position))
    assert len(resume.time_starts(folder, folder, (0, 4500), 3)) == 2
    assert order == [0, 4500] * 3


@pytest.mark.timeout(120)
def test_the_benchmark_at_a_tiny_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(resume, "_SKIPPED_ITEMS", 2000)
    monkeypatch.setattr(resume, "_SKIPPED_INDICES", 2000)
    report = tmp_path / "report.json"
    assert resume.main(["--pairs", str(PAIRS), "--goal", "0", "--json", str(report)]) in (0, 1)
    assert '"DataLoader skipped by islice at 4,500 of 5,000 pairs' in report.read_text()
