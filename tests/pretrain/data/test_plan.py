"""Epoch plans on disk: equal bytes, whole or not there, shared by processes, bounded in memory, removed."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.data import arrays
from pretrain.data.arrays import ArrayWriter, map_arrays, provide_folder
from pretrain.data.pairing import PairingSettings
from pretrain.data.plan import PlanKey, build_epoch_plan, open_epoch_plan, prune_plans
from pretrain.data.store import SentenceIndex
from runtime.command import ConfigError
from runtime.files import read_json
from tokenization.manifest import Manifest, load_manifest

RULES = PairingSettings(seed=7, seq_len=48, short_seq_prob=0.1, nsp=True)


def key_of(manifest: Manifest, epoch: int = 0, **changes: Any) -> PlanKey:
    return replace(PlanKey(manifest.fingerprint, "train", RULES, epoch), **changes)


def opener(manifest: Manifest) -> Callable[[], SentenceIndex]:
    return lambda: SentenceIndex.open(manifest, "train")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_plan_on_disk_equals_the_one_in_memory(manifest: Manifest, tmp_path: Path) -> None:
    index = SentenceIndex.open(manifest, "train")
    in_memory = build_epoch_plan(index, RULES, 3)
    on_disk = open_epoch_plan(tmp_path, key_of(manifest, 3), lambda: index, piece_sentences=17)
    for name in in_memory.columns._fields:
        found, expected = getattr(on_disk.columns, name), getattr(in_memory.columns, name)
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
        assert not found.flags.writeable
        assert not expected.flags.writeable
    assert on_disk.num_pairs == in_memory.num_pairs > 100
    chosen = np.array([5, 3, 99])
    a_length, b_length = on_disk.columns.a_length[chosen], on_disk.columns.b_length[chosen]
    assert on_disk.pair_tokens(chosen).tolist() == (3 + a_length.astype(int) + b_length).tolist()
    assert on_disk.take(chosen).a_length.tolist() == a_length.tolist()


def test_two_builds_give_the_same_bytes(manifest: Manifest, tmp_path: Path) -> None:
    for name, piece_sentences in {"a": 23, "b": 100_000}.items():
        open_epoch_plan(tmp_path / name, key_of(manifest), opener(manifest), piece_sentences=piece_sentences)
    folder = key_of(manifest).folder_name
    assert contents(tmp_path / "a" / folder) == contents(tmp_path / "b" / folder)


def test_description_on_disk(manifest: Manifest, tmp_path: Path) -> None:
    plan = open_epoch_plan(tmp_path, key_of(manifest, 2), opener(manifest))
    description = read_json(tmp_path / key_of(manifest, 2).folder_name / "plan.json")
    assert description["pairs"] == plan.num_pairs
    assert description["tokens"] == plan.pair_tokens().sum()
    assert description["random_pairs"] == plan.columns.next_sentence_label.sum()
    assert description["epoch"] == 2
    assert description["settings"] == {"seed": 7, "seq_len": 48, "short_seq_prob": 0.1, "nsp": True}
    assert description["manifest_fingerprint"] == manifest.fingerprint


def test_every_input_is_in_the_name(manifest: Manifest) -> None:
    keys = [
        key_of(manifest),
        key_of(manifest, 1),
        key_of(manifest, split="validation"),
        key_of(manifest, manifest_fingerprint="0" * 64),
        *(
            key_of(manifest, settings=replace(RULES, **change))
            for change in ({"seed": 8}, {"seq_len": 47}, {"short_seq_prob": 0.2}, {"nsp": False})
        ),
    ]
    assert len({key.folder_name for key in keys}) == len(keys)


def test_a_plan_is_built_once(manifest: Manifest, tmp_path: Path) -> None:
    open_epoch_plan(tmp_path, key_of(manifest), opener(manifest))

    def refuse() -> SentenceIndex:
        raise AssertionError("built again")

    assert open_epoch_plan(tmp_path, key_of(manifest), refuse).num_pairs > 0


def build_in_process(shards: Path, cache: Path, start: Any) -> None:
    manifest = load_manifest(shards)
    start.wait(60)
    open_epoch_plan(cache, key_of(manifest), opener(manifest))


@pytest.mark.timeout(120)
def test_processes_that_build_at_once_leave_one_plan(manifest: Manifest, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start = context.Barrier(4)
    workers = [context.Process(target=build_in_process, args=(manifest.directory, tmp_path, start)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert [path.name for path in tmp_path.iterdir()] == [key_of(manifest).folder_name]
    plan = open_epoch_plan(tmp_path, key_of(manifest), None)
    assert plan.num_pairs == build_epoch_plan(SentenceIndex.open(manifest, "train"), RULES, 0).num_pairs


def test_the_slower_builder_takes_what_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "plan"

    def build(partial: Path) -> None:
        (partial / "mine").touch()
        folder.mkdir()  # another process renames its own folder here meanwhile
        (folder / "theirs").touch()

    with caplog.at_level(logging.INFO):
        assert provide_folder(folder, build, may_build=True, wait_seconds=0) == folder
    assert "was built by another process" in caplog.text
    assert [path.name for path in folder.iterdir()] == ["theirs"]
    assert list(tmp_path.iterdir()) == [folder]


def test_the_folder_appears_as_a_whole(tmp_path: Path) -> None:
    built = []

    def build(partial: Path) -> None:
        assert not (tmp_path / "plan").exists()
        built.append(partial.stat().st_ino)

    folder = provide_folder(tmp_path / "plan", build, may_build=True, wait_seconds=0)
    assert folder.stat().st_ino == built[0], "renamed, not copied"


def test_a_rename_that_fails_is_not_hidden(tmp_path: Path) -> None:
    def build(partial: Path) -> None:
        (tmp_path / "plan").touch()  # a file where the folder should come

    with pytest.raises(OSError, match="plan"):
        provide_folder(tmp_path / "plan", build, may_build=True, wait_seconds=0)


def test_a_build_that_fails_leaves_nothing(manifest: Manifest, tmp_path: Path) -> None:
    def fail() -> SentenceIndex:
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        open_epoch_plan(tmp_path, key_of(manifest), fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(60)
def test_a_process_that_may_not_build_waits(
    manifest: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "_SILENT_SECONDS", 0.1)

    def build_later() -> None:
        time.sleep(0.5)
        open_epoch_plan(tmp_path, key_of(manifest), opener(manifest))

    builder = threading.Thread(target=build_later)
    builder.start()
    with caplog.at_level(logging.INFO):
        plan = open_epoch_plan(tmp_path, key_of(manifest), None, wait_seconds=30)
    builder.join(30)
    assert plan.num_pairs > 0
    assert f"waiting for {tmp_path / key_of(manifest).folder_name}" in caplog.text


@pytest.mark.timeout(60)
def test_waiting_ends(manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"waited 0.3 s for .*plan-train-.*, which another process builds"):
        open_epoch_plan(tmp_path, key_of(manifest), None, wait_seconds=0.3)


def test_two_hosts_may_remove_the_same_plan(tmp_path: Path) -> None:
    arrays.remove_folder(tmp_path / "removed-by-another-host")
    assert not list(tmp_path.iterdir())


def test_damaged_plans_are_named(manifest: Manifest, tmp_path: Path) -> None:
    def damaged(change: Callable[[Path], object]) -> None:
        key = key_of(manifest)
        open_epoch_plan(tmp_path, key, opener(manifest))
        change(tmp_path / key.folder_name / "b_length.npy")
        try:
            open_epoch_plan(tmp_path, key, opener(manifest))
        finally:
            prune_plans(tmp_path, keep=())

    with pytest.raises(ConfigError, match=r"b_length.npy: cannot be read as a .npy array .*remove"):
        damaged(Path.unlink)
    with pytest.raises(ConfigError, match=r"b_length.npy: cannot be read as a .npy array"):
        damaged(lambda path: os.truncate(path, 200))
    with pytest.raises(ConfigError, match=r"b_length.npy: holds int64 \(5,\), not a row of uint16"):
        damaged(lambda path: np.save(path, np.arange(5)))
    with pytest.raises(ConfigError, match="its arrays differ in length; remove the folder"):
        damaged(lambda path: np.save(path, np.arange(5, dtype=np.uint16)))


def test_n1_one_document(corpora: Any, tmp_path: Path) -> None:
    manifest = corpora.write(tmp_path / "shards", [corpora.random(1, 1)])
    with pytest.raises(ConfigError, match="split 'train': next-sentence prediction needs 2 documents"):
        open_epoch_plan(tmp_path / "cache", key_of(manifest), opener(manifest))
    assert list((tmp_path / "cache").iterdir()) == []


def peak_bytes(manifest: Manifest, cache: Path) -> int:
    tracemalloc.start()
    try:
        open_epoch_plan(
            cache,
            key_of(manifest),
            lambda: SentenceIndex.open(manifest, "train", cache, piece_sentences=500),
            piece_sentences=500,
        )
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_s6_memory_does_not_grow_with_the_corpus(corpora: Any, tmp_path: Path) -> None:
    corpus = corpora.random(1, 150, tokens=(3, 6))
    small = corpora.write(tmp_path / "small", [corpus] * 2)
    large = corpora.write(tmp_path / "large", [corpus] * 8)
    peak_bytes(small, tmp_path / "warm")
    once, fourfold = peak_bytes(small, tmp_path / "a"), peak_bytes(large, tmp_path / "b")
    assert fourfold <= 1.2 * once


def test_prune_keeps_what_it_is_told(manifest: Manifest, tmp_path: Path) -> None:
    other = replace(RULES, seed=8)
    keys = [
        *(key_of(manifest, epoch) for epoch in range(4)),
        *(key_of(manifest, epoch, settings=other) for epoch in range(2)),
        key_of(manifest, 0, split="validation"),
    ]
    for key in keys:
        open_epoch_plan(tmp_path, key, opener(manifest))
    removed = prune_plans(tmp_path, keep={2, 3}, like=keys[0])
    assert {path.name for path in removed} == {key.folder_name for key in keys[:2]}
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {key.folder_name for key in keys[2:]}
    prune_plans(tmp_path, keep={3})
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {keys[3].folder_name, keys[-1].folder_name}


def test_prune_removes_what_killed_builders_left(manifest: Manifest, tmp_path: Path) -> None:
    stale, fresh = (tmp_path / f"{key_of(manifest).folder_name}.partial-{name}" for name in ("old", "new"))
    for folder in (stale, fresh):
        folder.mkdir()
        (folder / "a_start.npy").touch()
    long_ago = time.time() - arrays.STALE_SECONDS - 60
    for path in (stale / "a_start.npy", stale, fresh):
        os.utime(path, (long_ago, long_ago))
    assert prune_plans(tmp_path, keep={0}) == [stale]
    assert list(tmp_path.iterdir()) == [fresh]


def test_a_builder_that_finishes_meanwhile_is_not_stale(tmp_path: Path) -> None:
    assert arrays._last_change(tmp_path / "gone") == pytest.approx(time.time(), abs=60)


def test_array_writer_gives_numpy_s_own_file(tmp_path: Path) -> None:
    values = np.arange(1_000, dtype=np.int64)
    for number, pieces in enumerate(([values], np.array_split(values, 7), [values[:0], values])):
        with ArrayWriter(tmp_path / f"{number}.npy", np.uint16) as writer:
            for piece in pieces:
                writer.append(piece)
        assert writer.size == 1_000
    np.save(tmp_path / "numpy.npy", values.astype(np.uint16))
    files = {path.read_bytes() for path in tmp_path.iterdir()}
    assert len(files) == 1
    mapped = map_arrays(tmp_path, {"0": np.uint16})["0"]
    assert np.array_equal(mapped, values)
    assert not mapped.flags.writeable
