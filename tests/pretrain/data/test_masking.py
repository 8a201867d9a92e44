"""BERT's masks: how many, which, what stands there, and from what they are drawn."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.data.masking import MaskRules, Vocabulary, mask_pair, new_scratch, num_predictions
from runtime.command import ConfigError

CLS, SEP, MASK, UNK = 2, 3, 4, 1


class StreamLayout(NamedTuple):
    """Where the pairs of a stream stand, and which pairs they are."""

    cu_seqlens: np.ndarray
    a_lengths: np.ndarray
    num_predictions: np.ndarray
    epochs: np.ndarray
    pairs: np.ndarray


def stream_of(
    segments: Sequence[Sequence[Sequence[int]]],
    mlm_probability: float = 0.15,
    epoch: int = 0,
    first_pair: int = 0,
) -> tuple[np.ndarray, StreamLayout]:
    """A stream of pairs, each given by one or two segments of ids."""
    pairs = [[CLS, *(token for segment in pair for token in (*segment, SEP))] for pair in segments]
    lengths = np.array([len(pair) for pair in pairs])
    layout = StreamLayout(
        cu_seqlens=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        a_lengths=np.array([len(pair[0]) for pair in segments]),
        num_predictions=np.concatenate(
            [
                num_predictions([len(pair)], mlm_probability, 1 + len(parts))
                for pair, parts in zip(pairs, segments, strict=True)
            ]
        ),
        epochs=np.full(len(pairs), epoch),
        pairs=first_pair + np.arange(len(pairs)),
    )
    return np.concatenate(pairs).astype(np.int64), layout


def masked_stream(
    ids: np.ndarray, layout: StreamLayout, seed: int, vocabulary: Vocabulary
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The masked stream, the places chosen and their tokens."""
    masked = ids.copy()
    positions, labels = np.empty((2, int(layout.num_predictions.sum())), dtype=np.int64)
    rules, done = tuple(MaskRules.of(seed, vocabulary)), 0
    for pair, (first, last) in enumerate(itertools.pairwise(layout.cu_seqlens.tolist())):
        chosen = slice(done, done + layout.num_predictions[pair])
        identity, scratch = (layout.epochs[pair], layout.pairs[pair]), new_scratch(last - first)
        arrays = masked[first:last], layout.a_lengths[pair], identity, rules, scratch
        assert mask_pair(*arrays, positions[chosen], labels[chosen]) == layout.num_predictions[pair]
        positions[chosen] += first
        done = chosen.stop
    return masked, positions, labels


def text(size: int, seed: int = 0, upper: int = 30_522) -> list[int]:
    return np.random.default_rng(seed).integers(5, upper, size).tolist()


@pytest.mark.parametrize(("tokens", "count"), [(128, 19), (512, 77), (10, 2), (3, 1), (5, 1), (64, 10)])
def test_m3_number_of_predictions(tokens: int, count: int) -> None:
    assert num_predictions(tokens, 0.15) == count
    assert num_predictions([tokens, tokens], 0.15).tolist() == [count, count]


@given(st.integers(5, 65_535), st.floats(0.001, 0.999))
def test_number_of_predictions_is_python_s_round(tokens: int, probability: float) -> None:
    assert num_predictions(tokens, probability) == max(1, min(round(probability * tokens), tokens - 3))


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1, float("nan")])
def test_impossible_probabilities_are_refused(probability: float) -> None:
    with pytest.raises(ConfigError, match=r"mlm_probability = .*: must be above 0 and below 1"):
        num_predictions([10], probability)


def test_m1_m2_m5_what_stands_in_the_place_of_chosen_tokens(corpora: Any) -> None:
    # one token, so that a kept one is told from a random one
    segments = [([777] * 60, [777] * 65)] * 11_000
    ids, layout = stream_of(segments)
    masked, positions, labels = masked_stream(ids, layout, 1, corpora.vocabulary)
    assert len(positions) == 11_000 * 19 > 200_000
    assert (labels == 777).all()
    found = masked[positions]
    assert np.mean(found == MASK) == pytest.approx(0.8, abs=0.01)
    assert np.mean(found == 777) == pytest.approx(0.1, abs=0.01)
    replaced = found[(found != MASK) & (found != 777)]
    assert len(replaced) / len(found) == pytest.approx(0.1, abs=0.01)
    assert replaced.min() >= 5
    assert replaced.max() < 30_522
    # about 21,000 draws of 30,517 ids, each as likely as the next
    assert len(np.unique(replaced)) == pytest.approx(30_517 * (1 - np.exp(-len(replaced) / 30_517)), rel=0.03)
    untouched = np.setdiff1d(np.arange(len(ids)), positions)
    assert np.array_equal(masked[untouched], ids[untouched])


def test_m5_replacements_are_all_the_tokens_of_the_tokenizer() -> None:
    vocabulary = Vocabulary(size=9, pad_id=0, cls_id=7, sep_id=3, mask_id=4, special_ids=(0, 7, 3, 4, 5))
    assert vocabulary.replacement_ids.tolist() == [1, 2, 6, 8]
    ids, layout = stream_of([([1] * 50, [2] * 50)] * 2_000)
    masked, positions, labels = masked_stream(ids, layout, 1, vocabulary)
    replaced = masked[positions][(masked[positions] != 4) & (masked[positions] != labels)]
    assert set(replaced.tolist()) == {1, 2, 6, 8}


def test_m2_special_tokens_are_never_chosen(corpora: Any) -> None:
    generator = np.random.default_rng(0)
    for draw in range(1_000):
        segments = [
            ([*generator.integers(0, 9, 20).tolist(), 9, 9, 9], generator.integers(0, 9, 9).tolist()) for _ in range(3)
        ]
        ids, layout = stream_of(segments, first_pair=10 * draw)
        _, positions, labels = masked_stream(ids, layout, draw, corpora.vocabulary)
        assert labels.min() >= 5
        assert np.array_equal(ids[positions], labels)


def test_every_place_is_chosen_alike(corpora: Any) -> None:
    ids, layout = stream_of([([50] * 7, [60] * 5)] * 20_000, mlm_probability=0.3)
    _, positions, _ = masked_stream(ids, layout, 3, corpora.vocabulary)
    counts = np.bincount(positions % 15, minlength=15) / 20_000
    own = [0, 8, 14]
    assert counts[own].tolist() == [0, 0, 0]
    np.testing.assert_allclose(np.delete(counts, own), round(0.3 * 15) / 12, atol=0.015)
    # of two places both are chosen as often as drawing without replacement says: 4 x 3 of 12 x 11
    both = np.isin(np.arange(20_000) * 15 + 1, positions) & np.isin(np.arange(20_000) * 15 + 2, positions)
    assert both.mean() == pytest.approx(4 * 3 / (12 * 11), abs=0.01)


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 70), st.integers(0, 70)), min_size=1, max_size=6),
    probability=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**63 - 1),
)
def test_positions_ascend_and_are_as_many_as_told(
    corpora: Any, sizes: list[tuple[int, int]], probability: float, seed: int
) -> None:
    segments = [(text(a, a), text(b, b)) if b else (text(a, a),) for a, b in sizes]
    ids, layout = stream_of(segments, probability)
    masked, positions, labels = masked_stream(ids, layout, seed, corpora.vocabulary)
    assert (np.diff(positions) > 0).all()
    assert np.array_equal(labels, ids[positions])
    assert labels.min() >= 5
    per_pair = np.histogram(positions, bins=layout.cu_seqlens)[0] if len(sizes) > 1 else [len(positions)]
    assert list(per_pair) == layout.num_predictions.tolist()
    assert masked.max() < corpora.vocabulary.size


def test_a_pair_of_unknown_tokens_still_gets_its_number(corpora: Any) -> None:
    ids, layout = stream_of([([UNK] * 30, [UNK] * 7), ([UNK] * 30, [99, UNK, 98, UNK])])
    _, positions, labels = masked_stream(ids, layout, 1, corpora.vocabulary)
    first = positions[positions < 40]
    assert len(first) == layout.num_predictions[0] == 6
    assert not set(first.tolist()) & {0, 31, 39}
    # the second has two ordinary tokens, both are chosen, and four of [UNK]
    assert len(positions) - 6 == layout.num_predictions[1] == 6
    assert sorted(labels[6:].tolist()) == [UNK] * 4 + [98, 99]
    assert SEP not in labels
    assert CLS not in labels


def test_single_segments_leave_their_last_sep_alone(corpora: Any) -> None:
    ids, layout = stream_of([([UNK] * 5,)] * 300, mlm_probability=0.9)
    _, positions, labels = masked_stream(ids, layout, 1, corpora.vocabulary)
    assert (labels == UNK).all()
    assert set((positions % 7).tolist()) == {1, 2, 3, 4, 5}


def test_no_more_is_chosen_than_there_is(corpora: Any) -> None:
    ids, _ = stream_of([([9] * 5, [UNK] * 5)])
    positions, labels = np.zeros((2, 11), dtype=np.int64)
    rules = tuple(MaskRules.of(1, corpora.vocabulary))
    assert mask_pair(ids, np.int64(5), (np.int64(0), np.int64(0)), rules, new_scratch(13), positions, labels) == 10
    assert positions.tolist() == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 0]


def test_m6_masks_depend_on_seed_epoch_and_pair_alone(corpora: Any) -> None:
    segments = [(text(60, number), text(40, 100 + number)) for number in range(8)]

    def masks(seed: int = 1, epoch: int = 0, first_pair: int = 0, chosen: slice = slice(None)) -> list[int]:
        ids, layout = stream_of(segments[chosen], epoch=epoch, first_pair=first_pair)
        return masked_stream(ids, layout, seed, corpora.vocabulary)[0].tolist()

    everything = masks()
    assert masks() == everything
    assert masks(chosen=slice(0, 4)) + masks(chosen=slice(4, 8), first_pair=4) == everything
    assert masks(seed=2) != everything
    assert masks(epoch=1) != everything
    assert masks(first_pair=8) != everything


def test_the_place_of_the_specials_in_the_vocabulary_changes_no_choice() -> None:
    segments = [(text(60, number, 30_000), text(3 + number, 100 + number, 30_000)) for number in range(30)]
    segments += [(text(20, 500, 30_000),)]
    ids, layout = stream_of(segments)
    first = Vocabulary(size=30_522, pad_id=0, cls_id=2, sep_id=3, mask_id=4, special_ids=(0, 1, 2, 3, 4))
    # with one at the end no pair is seen at a glance to have none
    both_ends = Vocabulary(size=30_522, pad_id=0, cls_id=2, sep_id=3, mask_id=30_521, special_ids=(0, 2, 3, 30_521))
    chosen = [masked_stream(ids, layout, 7, vocabulary)[1:] for vocabulary in (first, both_ends)]
    assert np.array_equal(chosen[0], chosen[1])


def test_the_masks_of_a_pair_stay_what_they_were(corpora: Any) -> None:
    # runs that are resumed with a newer program must see the masks of the older one
    ids, layout = stream_of([(list(range(10, 40)), [50, UNK, 51, 52])], 0.4, epoch=3, first_pair=5)
    masked, positions, labels = masked_stream(ids, layout, 1234, corpora.vocabulary)
    assert positions.tolist() == [3, 6, 7, 9, 10, 12, 14, 16, 19, 21, 22, 23, 25, 28, 34]
    assert labels.tolist() == ids[positions].tolist()
    assert masked[positions].tolist() == [30423, 4, 4, 22101, 4, 4, 4, 27101, 4, 30, 7401, 1463, 34, 4, 4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"special_ids": (0, 2, 3, 4, 10)}, r"special ids \[10\]: must be 0 to 9"),
        ({"cls_id": 6}, r"cls_id = 6: must be one of special_ids"),
        ({"cls_id": 3}, "must be different ids"),
        ({"size": 5, "special_ids": (0, 1, 2, 3, 4)}, "all 5 tokens are special"),
    ],
)
def test_impossible_vocabularies_are_refused(changes: dict[str, Any], message: str) -> None:
    fields = {"size": 10, "pad_id": 0, "cls_id": 2, "sep_id": 3, "mask_id": 4, "special_ids": (0, 2, 3, 4)}
    with pytest.raises(ConfigError, match=message):
        Vocabulary(**{**fields, **changes})
