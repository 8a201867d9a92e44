"""Global batches: every pair once for any ranks, micro-batches and threads; resumed by index; counts."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretrain.data.masking import num_predictions
from pretrain.data.reader import PairReader
from pretrain.data.stream import IGNORE_INDEX, BatchCounts, Cursor, MicroBatch, PairStream
from runtime.command import ConfigError
from tokenization.manifest import Manifest

ARRAYS = (
    "input_ids",
    "token_type_ids",
    "position_ids",
    "cu_seqlens",
    "masked_positions",
    "labels",
    "next_sentence_label",
)
SPLITS = [
    (1, 24, 1),
    (1, 4, 6),
    (2, 12, 1),
    (3, 2, 4),
    (24, 1, 1),
]  # world size, micro-batch, accumulation: 24 pairs


@pytest.fixture(scope="module")
def reader(corpora: Any, manifest: Manifest) -> PairReader:
    return corpora.reader(manifest)


def stream_of(
    reader: PairReader, rank: int, world_size: int, micro_batch: int, accumulation: int, **options: Any
) -> PairStream:
    return PairStream(
        reader=reader,
        train_batch_size=world_size * micro_batch * accumulation,
        train_micro_batch_size_per_gpu=micro_batch,
        gradient_accumulation_steps=accumulation,
        rank=rank,
        world_size=world_size,
        **options,
    )


def pairs_of(batch: MicroBatch) -> list[tuple[Any, ...]]:
    """Each pair of a stream: its masked ids, types, positions, masked places, labels and NSP label."""
    pairs = []
    ends = batch.cu_seqlens[: len(batch.next_sentence_label) + 1].tolist()
    is_padding = batch.labels == IGNORE_INDEX
    for number, (first, last) in enumerate(itertools.pairwise(ends)):
        chosen = (batch.masked_positions >= first) & (batch.masked_positions < last) & ~is_padding
        pairs.append(
            (
                tuple(batch.input_ids[0, first:last].tolist()),
                tuple(batch.token_type_ids[0, first:last].tolist()),
                tuple(batch.position_ids[0, first:last].tolist()),
                tuple((batch.masked_positions[chosen] - first).tolist()),
                tuple(batch.labels[chosen].tolist()),
                int(batch.next_sentence_label[number]),
            )
        )
    return pairs


def unmasked(pair: tuple[Any, ...]) -> tuple[int, ...]:
    ids = list(pair[0])
    for place, label in zip(pair[3], pair[4], strict=True):
        ids[place] = label
    return tuple(ids)


def all_ranks(
    reader: PairReader, split: tuple[int, int, int], cursor: Cursor, **options: Any
) -> tuple[list[list[MicroBatch]], Cursor]:
    """The micro-batches of a global batch, by rank."""
    streams = (stream_of(reader, rank, *split, **options) for rank in range(split[0]))
    batches, cursors = zip(*(stream.batch(cursor) for stream in streams), strict=True)
    assert len(set(cursors)) == 1
    return list(batches), cursors[0]


def pairs_in_text(reader: PairReader, epoch: int) -> Counter[tuple[int, ...]]:
    """The unmasked ids of all pairs of an epoch, in the order of the plan, one pair at a time."""
    return Counter(
        unmasked(pairs_of(MicroBatch.of(stream, BatchCounts(0, 1, 0, 0)))[0])
        for stream in (reader.read(np.array([epoch]), np.array([pair])) for pair in range(reader.num_pairs(epoch)))
    )


@pytest.mark.parametrize("split", SPLITS)
def test_every_pair_of_an_epoch_is_seen_once(reader: PairReader, split: tuple[int, int, int]) -> None:
    world_size, micro_batch, accumulation = split
    seen: Counter[tuple[int, ...]] = Counter()
    total, cursor, steps = reader.num_pairs(0), Cursor(), 0
    assert total % 24, "the last batch shall go on into the next epoch"
    while cursor.epoch == 0:
        ranks, cursor = all_ranks(reader, split, cursor)
        assert [len(batches) for batches in ranks] == [accumulation] * world_size
        assert all(batch.num_pairs == micro_batch for batches in ranks for batch in batches)
        seen.update(unmasked(pair) for batches in ranks for batch in batches for pair in pairs_of(batch))
        steps += 1
    assert steps == -(-total // 24)
    assert cursor == Cursor(1, steps * 24 - total)
    epoch_0, epoch_1 = pairs_in_text(reader, 0), pairs_in_text(reader, 1)
    assert not epoch_0 - seen, "a pair is missing"
    rest = seen - epoch_0
    assert rest.total() == cursor.consumed
    assert not rest - epoch_1, "what is left belongs to the next epoch, each pair once"


@pytest.mark.parametrize("cursor", [Cursor(), Cursor(0, 48), Cursor(3, 7)])
def test_content_depends_on_the_batch_size_alone(reader: PairReader, cursor: Cursor) -> None:
    contents = []
    for split in SPLITS:
        ranks, _ = all_ranks(reader, split, cursor)
        contents.append(Counter(pair for batches in ranks for batch in batches for pair in pairs_of(batch)))
    assert contents[0].total() == 24
    assert contents == [contents[0]] * len(SPLITS)


def test_micro_batches_are_dealt_to_ranks_in_turn(reader: PairReader) -> None:
    (whole,), _ = all_ranks(reader, (1, 4, 6), Cursor())
    ranks, _ = all_ranks(reader, (3, 4, 2), Cursor())
    for number, batch in enumerate(whole):
        assert pairs_of(ranks[number % 3][number // 3]) == pairs_of(batch)


def test_a_batch_may_be_larger_than_an_epoch(corpora: Any, tmp_path: Path) -> None:
    reader = corpora.reader(corpora.write(tmp_path, [corpora.random(1, 2, sentences=(2, 3), tokens=(9, 14))]))
    sizes = [reader.num_pairs(epoch) for epoch in range(40)]
    assert max(sizes) < 12
    ranks, cursor = all_ranks(reader, (2, 8, 4), Cursor())
    seen = Counter(unmasked(pair) for batches in ranks for batch in batches for pair in pairs_of(batch))
    expected: Counter[tuple[int, ...]] = Counter()
    for epoch in range(cursor.epoch):
        expected += pairs_in_text(reader, epoch)
    assert cursor.epoch > 4
    assert expected.total() + cursor.consumed == 64
    assert not expected - seen
    assert not (seen - expected) - pairs_in_text(reader, cursor.epoch)


def test_s1_all_ranks_do_the_same_number_of_micro_steps(corpora: Any, tmp_path: Path) -> None:
    shards = [corpora.random(1, 3), corpora.random(2, 11)]
    reader = corpora.reader(corpora.write(tmp_path, shards))
    for rank in range(2):
        cursor = Cursor()
        steps = 0
        while cursor.epoch < 2:
            batches, cursor = stream_of(reader, rank, 2, 8, 1).batch(cursor)
            steps += len(batches)
        assert steps == -(-(reader.num_pairs(0) + reader.num_pairs(1)) // 16)


def test_s2_resuming_gives_the_pairs_of_an_uninterrupted_run(corpora: Any, manifest: Manifest) -> None:
    stream = stream_of(corpora.reader(manifest), 0, 1, 8, 1)
    per_epoch = stream.reader.num_pairs(0)
    saved_at = per_epoch // 8  # resumed in the step that goes on into the second epoch
    cursor, steps, cursors = Cursor(), [], []
    for _ in range(saved_at + 5):
        cursors.append(cursor)
        batches, cursor = stream.batch(cursor)
        steps.append([pairs_of(batch) for batch in batches])
    assert cursor.epoch == 1
    resumed = stream_of(corpora.reader(manifest), 0, 1, 8, 1)
    for step in range(saved_at, saved_at + 5):
        batches, _ = resumed.batch(cursors[step])
        assert [pairs_of(batch) for batch in batches] == steps[step]


def test_s2_only_the_plans_needed_are_opened(corpora: Any, manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = corpora.reader(manifest)
    opened = []
    open_plan = PairReader._open_plan

    def counted(self: PairReader, epoch: int) -> Any:
        opened.append(epoch)
        return open_plan(self, epoch)

    monkeypatch.setattr(PairReader, "_open_plan", counted)
    stream = stream_of(reader, 0, 1, 8, 1)
    _, cursor = stream.batch(Cursor(90, 5))
    assert opened == [90]
    stream.batch(Cursor(91, 0))
    assert list(reader._plans) == [91], "plans of epochs that are over are let go"
    stream.batch(cursor)
    assert opened == [90, 91, 90]


def test_s3_m6_epochs_ranks_and_seeds_differ(corpora: Any, manifest: Manifest) -> None:
    def streams(seed: int) -> Iterator[list[Any]]:
        reader = corpora.reader(manifest, seed=seed)
        for rank, epoch in itertools.product(range(2), range(2)):
            batches, _ = stream_of(reader, rank, 2, 8, 1).batch(Cursor(epoch, 0))
            yield pairs_of(batches[0])

    first = [*streams(1), *streams(2)]
    assert all(a != b for a, b in itertools.combinations(first, 2))
    assert [*streams(1), *streams(2)] == first


@pytest.mark.timeout(60)
@pytest.mark.parametrize("depth", [1, 3])
def test_prefetching_changes_nothing(reader: PairReader, depth: int) -> None:
    stream = stream_of(reader, 1, 2, 8, 2)
    cursor, expected = Cursor(0, 400), []
    for _ in range(12):
        batches, cursor = stream.batch(cursor)
        expected.append(([pairs_of(batch) for batch in batches], cursor))
    with stream.iterate(Cursor(0, 400), depth) as batches_ahead:
        found = [
            ([pairs_of(batch) for batch in batches], following)
            for batches, following in itertools.islice(batches_ahead, 12)
        ]
    assert found == expected


@pytest.mark.timeout(60)
def test_errors_of_the_thread_reach_the_consumer(reader: PairReader) -> None:
    with (
        stream_of(reader, 0, 1, 8, 1).iterate(Cursor(0, 10**6)) as batches,
        pytest.raises(ValueError, match="of which 1000000 are said to be consumed"),
    ):
        next(batches)
    with pytest.raises(ValueError, match="prefetch depth = -1"):
        stream_of(reader, 0, 1, 8, 1).iterate(Cursor(), -1)


def test_counts_of_the_global_batch(reader: PairReader) -> None:
    for split in SPLITS:
        ranks, _ = all_ranks(reader, split, Cursor(0, 24))
        batches = [batch for rank in ranks for batch in rank]
        lengths = np.concatenate([np.diff(batch.cu_seqlens) for batch in batches])
        predictions = sum(len(batch.masked_positions) for batch in batches)
        for batch in batches:
            assert batch.global_masked_tokens == predictions == num_predictions(lengths, 0.15).sum()
            assert batch.global_pairs == sum(other.num_pairs for other in batches) == 24
            assert batch.global_tokens == sum(other.num_tokens for other in batches) == lengths.sum()
            assert batch.counts.squared_tokens == sum(length**2 for length in lengths.tolist())
            assert batch.pair_lengths == np.diff(batch.cu_seqlens).tolist()
            assert batch.padding_tokens == 0


def test_layout_of_a_stream(corpora: Any, reader: PairReader) -> None:
    (batch,), _ = stream_of(reader, 0, 1, 24, 1).batch(Cursor())
    vocabulary = corpora.vocabulary
    lengths = np.diff(batch.cu_seqlens)
    assert batch.input_ids.shape == batch.token_type_ids.shape == batch.position_ids.shape
    assert batch.input_ids.shape == (1, lengths.sum())
    assert (np.diff(lengths) <= 0).all(), "longest first, so that equal lengths are neighbours"
    assert lengths[0] == max(lengths) <= 32
    assert (np.diff(batch.masked_positions) > 0).all()
    for pair in pairs_of(batch):
        ids, types, positions = unmasked(pair), pair[1], pair[2]
        seps = [place for place, token in enumerate(ids) if token == vocabulary.sep_id]
        assert ids[0] == vocabulary.cls_id
        assert len(seps) == 2
        assert seps[1] == len(ids) - 1
        assert types == (0,) * (seps[0] + 1) + (1,) * (seps[1] - seps[0])
        assert positions == tuple(range(len(ids)))
        assert not {0, *seps} & set(pair[3])


def test_without_nsp_there_is_one_segment_and_no_label(corpora: Any, manifest: Manifest) -> None:
    reader = corpora.reader(manifest, nsp=False)
    (batch,), _ = stream_of(reader, 0, 1, 24, 1).batch(Cursor())
    assert (batch.token_type_ids == 0).all()
    assert (batch.next_sentence_label == IGNORE_INDEX).all()
    assert np.diff(batch.cu_seqlens).max() == 32
    for pair in pairs_of(batch):
        ids = unmasked(pair)
        assert (ids[0], ids[-1]) == (2, 3)
        assert min(ids[1:-1]) >= 5
    lengths = np.diff(batch.cu_seqlens)
    assert len(batch.labels) == batch.global_masked_tokens == num_predictions(lengths, 0.15, 2).sum()


def test_tensors(reader: PairReader) -> None:
    (batch,), _ = stream_of(reader, 0, 1, 8, 1).batch(Cursor())
    tensors = batch.to_torch("cpu")
    assert tuple(tensors) == ARRAYS
    for name, tensor in tensors.items():
        array = getattr(batch, name)
        assert tensor.shape == array.shape
        assert tensor.dtype == (torch.int32 if name == "cu_seqlens" else torch.int64)
        assert np.array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("split", SPLITS)
def test_padding_changes_no_pair(corpora: Any, reader: PairReader, split: tuple[int, int, int]) -> None:
    vocabulary, cursor = corpora.vocabulary, Cursor(0, 48)
    plain_ranks, following = all_ranks(reader, split, cursor)
    padded_ranks, also_following = all_ranks(reader, split, cursor, pad_to_multiple=32, mask_multiple=8)
    assert also_following == following
    for plain, padded in zip(itertools.chain(*plain_ranks), itertools.chain(*padded_ranks), strict=True):
        assert pairs_of(padded) == pairs_of(plain)
        assert padded.counts == plain.counts
        assert (padded.num_tokens, padded.num_pairs) == (plain.num_tokens, plain.num_pairs)
        total, size = plain.num_tokens, padded.input_ids.size
        assert size == -(-total // 32) * 32
        assert padded.input_ids.shape == padded.token_type_ids.shape == padded.position_ids.shape == (1, size)
        assert padded.padding_tokens == size - total
        assert padded.cu_seqlens.tolist() == [*plain.cu_seqlens.tolist(), size]
        assert padded.cu_seqlens.dtype == np.int32
        assert padded.pair_lengths == plain.pair_lengths + [size - total] * (size > total)
        assert (padded.input_ids[0, total:] == vocabulary.pad_id).all()
        assert (padded.token_type_ids[0, total:] == 0).all()
        assert padded.position_ids[0, total:].tolist() == list(range(size - total))
        count = len(plain.labels)
        assert len(padded.labels) == len(padded.masked_positions) == -(-count // 8) * 8
        assert (padded.masked_positions[count:] == 0).all()
        assert (padded.labels[count:] == IGNORE_INDEX).all()


def test_a_stream_that_comes_out_even_has_an_empty_piece(reader: PairReader) -> None:
    # one pair that is as long as can be, alone in its micro-batch
    streams = [stream_of(reader, 0, 24, 1, 1, **options) for options in ({}, {"pad_to_multiple": 32})]
    (plain,), (padded,) = (stream.batch(Cursor())[0] for stream in streams)
    assert plain.cu_seqlens.tolist() == [0, 32]
    assert padded.cu_seqlens.tolist() == [0, 32, 32]
    assert padded.pair_lengths == [32]
    assert padded.padding_tokens == 0


@pytest.mark.timeout(60)
def test_pages_are_locked_by_the_thread(reader: PairReader, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        threads.append(threading.current_thread().name)
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    (plain, *_), _ = stream_of(reader, 0, 1, 8, 2).batch(Cursor())
    assert plain.page_locked is None
    assert threads == []
    with stream_of(reader, 0, 1, 8, 2, pin_memory=True).iterate(Cursor()) as batches:
        (batch, *_), _ = next(batches)
        assert tuple(batch.page_locked or ()) == ARRAYS
        first, second = batch.to_torch("cpu"), batch.to_torch("cpu")
    assert set(threads) == {"prefetch"}, "not by the one that trains"
    for name in ARRAYS:
        assert first[name] is batch.page_locked[name] is second[name]
        assert np.array_equal(first[name].numpy(), getattr(plain, name))
    assert first is not second, "a caller may take tensors out"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad_to_multiple": 0}, "pad_to_multiple = 0: must be 1 to seq_len, 32"),
        ({"pad_to_multiple": 33}, "pad_to_multiple = 33: must be 1 to seq_len, 32"),
        ({"mask_multiple": 0}, "mask_multiple = 0: must be 1 or more"),
    ],
)
def test_impossible_multiples_are_refused(reader: PairReader, options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stream_of(reader, 0, 1, 8, 1, **options)


@pytest.mark.parametrize("build_plans", [True, False])
def test_plans_on_disk_give_the_same_pairs(
    corpora: Any, manifest: Manifest, reader: PairReader, tmp_path: Path, build_plans: bool
) -> None:
    if not build_plans:
        corpora.reader(manifest, cache_dir=tmp_path).num_pairs(0)
    on_disk = corpora.reader(manifest, cache_dir=tmp_path, build_plans=build_plans, wait_seconds=1.0)
    found, _ = stream_of(on_disk, 0, 1, 24, 1).batch(Cursor())
    expected, _ = stream_of(reader, 0, 1, 24, 1).batch(Cursor())
    assert pairs_of(found[0]) == pairs_of(expected[0])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((8, 3, 2, 0, 1), "train_batch_size = 8: must be .* = 3 x 2 x 1"),
        ((0, 0, 2, 0, 1), "train_batch_size = 0: must be"),
        ((8, 2, 2, 2, 2), "rank = 2: must be 0 to 1"),
        ((8, 2, 2, -1, 2), "rank = -1: must be 0 to 1"),
    ],
)
def test_impossible_batch_sizes_are_refused(reader: PairReader, sizes: tuple[int, ...], message: str) -> None:
    train, micro_batch, accumulation, rank, world_size = sizes
    with pytest.raises(ConfigError, match=message):
        PairStream(
            reader=reader,
            train_batch_size=train,
            train_micro_batch_size_per_gpu=micro_batch,
            gradient_accumulation_steps=accumulation,
            rank=rank,
            world_size=world_size,
        )
