"""BERT's masks: how many, which, what stands there, and from what they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.data.masking import StreamLayout, Vocabulary, mask_stream, num_predictions
from runtime.command import ConfigError

CLS, SEP, MASK, UNK = 2, 3, 4, 1


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
    masked, positions, labels = mask_stream(ids, layout, 1, corpora.vocabulary)
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
    masked, positions, labels = mask_stream(ids, layout, 1, vocabulary)
    replaced = masked[positions][(masked[positions] != 4) & (masked[positions] != labels)]
    assert set(replaced.tolist()) == {1, 2, 6, 8}


def test_m2_special_tokens_are_never_chosen(corpora: Any) -> None:
    generator = np.random.default_rng(0)
    for draw in range(1_000):
        segments = [
            ([*generator.integers(0, 9, 20).tolist(), 9, 9, 9], generator.integers(0, 9, 9).tolist()) for _ in range(3)
        ]
        ids, layout = stream_of(segments, first_pair=10 * draw)
        _, positions, labels = mask_stream(ids, layout, draw, corpora.vocabulary)
        assert labels.min() >= 5
        assert np.array_equal(ids[positions], labels)


def test_every_place_is_chosen_alike(corpora: Any) -> None:
    ids, layout = stream_of([([50] * 7, [60] * 5)] * 20_000, mlm_probability=0.3)
    _, positions, _ = mask_stream(ids, layout, 3, corpora.vocabulary)
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
    before = ids.copy()
    masked, positions, labels = mask_stream(ids, layout, seed, corpora.vocabulary)
    assert np.array_equal(ids, before)
    assert (np.diff(positions) > 0).all()
    assert np.array_equal(labels, ids[positions])
    assert labels.min() >= 5
    per_pair = np.histogram(positions, bins=layout.cu_seqlens)[0] if len(sizes) > 1 else [len(positions)]
    assert list(per_pair) == layout.num_predictions.tolist()
    assert masked.max() < corpora.vocabulary.size


def test_a_pair_of_unknown_tokens_still_gets_its_number(corpora: Any) -> None:
    ids, layout = stream_of([([UNK] * 30, [UNK] * 7), ([UNK] * 30, [99, UNK, 98, UNK])])
    _, positions, labels = mask_stream(ids, layout, 1, corpora.vocabulary)
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
    _, positions, labels = mask_stream(ids, layout, 1, corpora.vocabulary)
    assert (labels == UNK).all()
    assert set((positions % 7).tolist()) == {1, 2, 3, 4, 5}


def test_more_predictions_than_tokens_are_a_fault_of_ours(corpora: Any) -> None:
    ids, layout = stream_of([([9] * 5, [9] * 5)])
    with pytest.raises(AssertionError, match="fewer tokens than predictions"):
        mask_stream(ids, layout._replace(num_predictions=np.array([11])), 1, corpora.vocabulary)


def test_m6_masks_depend_on_seed_epoch_and_pair_alone(corpora: Any) -> None:
    segments = [(text(60, number), text(40, 100 + number)) for number in range(8)]

    def masks(seed: int = 1, epoch: int = 0, first_pair: int = 0, chosen: slice = slice(None)) -> list[int]:
        ids, layout = stream_of(segments[chosen], epoch=epoch, first_pair=first_pair)
        return mask_stream(ids, layout, seed, corpora.vocabulary)[0].tolist()

    everything = masks()
    assert masks() == everything
    assert masks(chosen=slice(0, 4)) + masks(chosen=slice(4, 8), first_pair=4) == everything
    assert masks(seed=2) != everything
    assert masks(epoch=1) != everything
    assert masks(first_pair=8) != everything


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
