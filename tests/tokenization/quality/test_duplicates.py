"""Exact deduplication against a dictionary, whatever the number of tasks, buckets, runs and parts."""

from __future__ import annotations

import pickle
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.command import ConfigError
from tests.tokenization.duplicate_corpora import as_documents, read_task
from tokenization.documents import Document
from tokenization.quality import duplicates, signatures
from tokenization.quality.duplicates import (
    DUPLICATE_DOCUMENTS,
    ONLY_REPEATED_LINES,
    REPEATED_LINES,
    Drops,
    DuplicateTask,
    drop_lines,
    find_duplicates,
)
from tokenization.quality.signatures import EMPTY, KINDS, DedupPlan, Signatures, SignatureTask, hash_lines, hash_texts

Corpus = Sequence[Sequence[str]]  # texts of each task

_LINES = st.sampled_from(["", " ", "a", "a ", "\ta", "b", "c", "\u00a0é", "é", "long " * 20])
_TEXTS = st.lists(_LINES, max_size=5).map(lambda lines: "\n".join(lines).strip())
_CORPORA = st.lists(st.lists(_TEXTS, max_size=8), min_size=1, max_size=5)


def deduplicate(corpus: Corpus, plan: DedupPlan) -> tuple[list[str], Counter[str]]:
    """Run all three passes, the tasks of each in reverse order."""
    for rank in reversed(range(plan.num_tasks)):
        SignatureTask(plan, partial(read_task, corpus)).run(rank=rank, world_size=plan.num_tasks)
    for bucket in reversed(range(plan.num_buckets)):
        DuplicateTask(plan).run(rank=bucket, world_size=plan.num_buckets)
    dropped: Counter[str] = Counter()
    kept: list[str] = []
    for rank in range(plan.num_tasks):
        kept += (document.text for document in Drops.open(plan, rank).apply(read_task(corpus, rank), dropped))
    return kept, +dropped


def deduplicate_plainly(corpus: Corpus, kinds: Iterable[str]) -> tuple[list[str], Counter[str]]:
    """Do the same with sets, one text after the other."""
    documents: set[str] = set()
    seen_lines: set[str] = set()
    kept: list[str] = []
    dropped: Counter[str] = Counter()
    for text in (text for texts in corpus for text in texts):
        if "documents" in kinds and text in documents:
            dropped[DUPLICATE_DOCUMENTS] += 1
            continue
        if text:
            documents.add(text)
        if "lines" not in kinds:
            kept.append(text)
            continue
        left = []
        for line in text.split("\n"):
            if line.strip() in seen_lines:
                dropped[REPEATED_LINES] += 1
                continue
            left.append(line)
            if line.strip():
                seen_lines.add(line.strip())
        if any(line.strip() for line in left) or not text:
            kept.append("\n".join(left).strip())
        else:
            dropped[ONLY_REPEATED_LINES] += 1
    return kept, dropped


def test_hand_worked_corpus(tmp_path: Path) -> None:
    corpus = [
        ["Home\n\nOne.\nTwo.\n\nTwo.", "", "Three."],
        ["Three.", "Home\n\nFour.\nThree. \n\nFooter", ""],
        ["Two.\n\n  One.", "Home\n\nFour.\nThree. \n\nFooter", "Five."],
    ]
    kept, dropped = deduplicate(corpus, DedupPlan(tmp_path, ("documents", "lines"), num_tasks=3, num_buckets=2))
    assert kept == ["Home\n\nOne.\nTwo.", "", "Three.", "Four.\n\nFooter", "", "Five."]
    # lines: the second "Two."; "Home" and "Three. "; "Two." and "  One."
    assert dropped == {DUPLICATE_DOCUMENTS: 2, REPEATED_LINES: 5, ONLY_REPEATED_LINES: 1}


def test_documents_alone_keep_their_lines(tmp_path: Path) -> None:
    corpus = [["a\nb", "a\nb"], ["a\nb ", "b\na", "a\nb"]]
    kept, dropped = deduplicate(corpus, DedupPlan(tmp_path, ("documents",), num_tasks=2, num_buckets=1))
    assert kept == ["a\nb", "a\nb ", "b\na"]
    assert dropped == {DUPLICATE_DOCUMENTS: 2}


@given(
    corpus=_CORPORA,
    kinds=st.sampled_from([("documents",), ("lines",), KINDS]),
    num_buckets=st.integers(1, 4),
    run_length=st.sampled_from([1, 3, 1 << 20]),
    batch_chars=st.sampled_from([1, 10, 1 << 20]),
    most_entries=st.sampled_from([1, 4, 1 << 20]),
)
@settings(max_examples=150, deadline=None)
def test_same_text_survives_as_with_sets(
    tmp_path_factory: pytest.TempPathFactory,
    corpus: list[list[str]],
    kinds: tuple[str, ...],
    num_buckets: int,
    run_length: int,
    batch_chars: int,
    most_entries: int,
) -> None:
    plan = DedupPlan(tmp_path_factory.mktemp("dedup"), kinds, len(corpus), num_buckets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signatures, "_RUN_LENGTH", run_length)
        patch.setattr(signatures, "_BATCH_CHARS", batch_chars)
        patch.setattr(find_duplicates, "__defaults__", (most_entries,))
        assert deduplicate(corpus, plan) == deduplicate_plainly(corpus, kinds)


def test_files_are_the_same_bytes_in_any_order_of_tasks(tmp_path: Path) -> None:
    corpus = [[f"{number % 7}\n{number}\n{number % 5}" for number in range(start, start + 20)] for start in (0, 9, 4)]
    for name, order in (("a", [0, 1, 2]), ("b", [2, 0, 1])):
        plan = DedupPlan(tmp_path / name, KINDS, 3, 3)
        for rank in order:
            SignatureTask(plan, partial(read_task, corpus)).run(rank=rank)
        for bucket in order:
            DuplicateTask(plan).run(rank=bucket)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(files) == 2 * (3 + 3)
    for path in files:
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()


def test_a_task_cut_short_leaves_no_file(tmp_path: Path) -> None:
    def read(rank: int) -> Iterable[Document]:
        yield from as_documents(["a", "b"])
        raise OSError("gone")

    plan = DedupPlan(tmp_path, KINDS, 1, 1)
    with pytest.raises(OSError, match="gone"):
        SignatureTask(plan, read).run(rank=0)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_signature_file_is_sorted_and_has_each_hash_once(tmp_path: Path) -> None:
    plan = DedupPlan(tmp_path, ("lines",), 1, 1)
    SignatureTask(plan, lambda rank: as_documents(["b\n\na\n b", "c\na"])).run(rank=0)
    found = Signatures(plan.signature_path("lines", 0))
    assert found.num_items == 6
    assert found.repeats.tolist() == [3, 5]
    [(hashes, ordinals)] = found.runs
    assert dict(zip(ordinals.tolist(), hashes.tolist(), strict=True)) == dict(
        zip([0, 2, 4], hash_texts(["b", "a", "c"]).tolist(), strict=True)
    )
    assert (np.diff(hashes) > 0).all()


def test_hashes_are_blake2b() -> None:
    # b2sum -l 64 of nothing and of "abc", read as little-endian numbers
    assert hash_texts(["", "abc"]).tolist() == [
        int.from_bytes(bytes.fromhex("e4a6a0577479b2b4"), "little"),
        int.from_bytes(bytes.fromhex("d8bb14d833d59559"), "little"),
    ]
    assert hash_lines([" abc", "", "x\n\u3000abc\t"]).tolist() == [*hash_texts(["abc", "", "x", "abc"]).tolist()]
    assert hash_lines(["\n "]).tolist() == [EMPTY, EMPTY]


def test_lines_dropped_from_a_text() -> None:
    text = "one\ntwo\n\nthree"
    assert drop_lines(text, np.array([False, False, False, False])) == (text, 0)
    assert drop_lines(text, np.array([False, True, False, False])) == ("one\n\nthree", 1)
    assert drop_lines(text, np.array([True, False, False, True])) == ("two", 2)
    assert drop_lines(text, np.array([True, True, False, True])) == (None, 3)


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (["a", "b"], "--input: 2 documents where there were 3"),
        (["a", "b", "c", "d"], "--input: more than 3 documents where there were 3"),
        (["a", "b\nb", "c"], "--input: more than 3 lines where there were 3"),
    ],
)
def test_input_that_changed_meanwhile_is_refused(tmp_path: Path, now: list[str], message: str) -> None:
    plan = DedupPlan(tmp_path, KINDS, 1, 1)
    deduplicate([["a", "b", "c"]], plan)
    with pytest.raises(ConfigError, match=message):
        list(Drops.open(plan, 0).apply(as_documents(now), Counter()))


def test_drops_of_another_plan_are_refused(tmp_path: Path) -> None:
    corpus = [["a"], ["a"]]
    deduplicate(corpus, DedupPlan(tmp_path, ("lines",), 2, 3))
    with pytest.raises(ValueError, match="is of 2 tasks and 3 buckets, not of 2 and 2"):
        Drops.open(DedupPlan(tmp_path, ("lines",), 2, 2), 0)


def test_steps_travel_to_workers(tmp_path: Path) -> None:
    plan = DedupPlan(tmp_path, KINDS, 1, 1)
    step = pickle.loads(pickle.dumps(SignatureTask(plan, partial(read_task, [["a", "a"]]))))
    step.run(rank=0)
    pickle.loads(pickle.dumps(DuplicateTask(plan))).run(rank=0)
    dropped: Counter[str] = Counter()
    assert len(list(Drops.open(plan, 0).apply(as_documents(["a", "a"]), dropped))) == 1


def test_number_of_buckets_follows_the_text_alone() -> None:
    assert DedupPlan.of(Path(), KINDS, 1, 0).num_buckets == 1
    assert DedupPlan.of(Path(), ["lines"], 1, 300_000_000).num_buckets == 1
    assert DedupPlan.of(Path(), ["lines"], 9, 20_000_000_000).num_buckets == 67
    assert DedupPlan.of(Path(), ["documents"], 9, 20_000_000_000).num_buckets == 7


def test_memory_of_a_bucket_is_bounded(tmp_path: Path) -> None:
    entries = 400_000
    plan = DedupPlan(tmp_path, ("lines",), num_tasks=2, num_buckets=1)
    for rank in range(2):
        SignatureTask(plan, lambda rank: as_documents(["\n".join(map(str, range(entries)))])).run(rank=rank)
    peaks = []
    for most in (2 * entries, entries // 4):
        tracemalloc.start()
        places = find_duplicates(plan, "lines", 0, most)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        np.testing.assert_array_equal(places, (1 << 32) + np.arange(entries, dtype=np.uint64))
    assert peaks[0] < 40 * 2 * entries
    # In parts: what was found, 8 bytes each and sorted, and an eighth of the work.
    assert peaks[1] < 40 * entries // 4 + 17 * entries
    assert duplicates.BUCKET_ENTRIES * 40 < 300e6
