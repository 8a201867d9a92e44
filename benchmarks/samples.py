"""Micro-batches of made-up tokens with the lengths of real pairs, as our stream and as the padded rows of others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pretrain.data.masking import num_predictions
from pretrain.data.stream import IGNORE_INDEX, BatchCounts, MicroBatch
from runtime.files import read_json

HISTOGRAM = Path(__file__).parent / "wikipedia_pair_lengths_512.json"
MLM_PROBABILITY = 0.15
CLS_ID, SEP_ID, MASK_ID, FIRST_WORD_ID = 2, 3, 4, 5
SHORTEST = 8


def wikipedia_lengths(num_pairs: int) -> list[int]:
    """Return lengths that stand for BERT's pairs over English Wikipedia at seq_len 512, the longest first.

    They are the quantiles (i + 0.5) / num_pairs of the published histogram, so no chance is in them.

    Args:
        num_pairs: how many.
    """
    histogram = read_json(HISTOGRAM)
    # pairs of 16 i + 1 to 16 i + 16 tokens, and those of 512 apart; within a bin all lengths alike
    counts = np.repeat(np.array(histogram["bins_of_16"], dtype=np.float64) / 16, 16)
    counts[-1] += histogram["exactly_512"]
    shares = np.cumsum(counts) / counts.sum()
    quantiles = (np.arange(num_pairs) + 0.5) / num_pairs
    lengths = np.searchsorted(shares, quantiles) + 1
    return [max(SHORTEST, int(length)) for length in lengths[::-1]]


def make_micro_batch(lengths: Sequence[int], vocab_size: int, seed: int = 0) -> MicroBatch:
    """Return a micro-batch that is a whole global batch: random words, half of each pair in A, 15 % masked.

    Args:
        lengths: tokens of each pair, specials counted, at least `SHORTEST`.
        vocab_size: tokens; the first ids are special.
        seed: of the random numbers.
    """
    draw = np.random.default_rng(seed)
    sizes = np.asarray(lengths, dtype=np.int64)
    cu_seqlens = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    input_ids = draw.integers(FIRST_WORD_ID, vocab_size, int(sizes.sum()))
    token_type_ids = np.zeros_like(input_ids)
    positions = []
    predictions = num_predictions(sizes, MLM_PROBABILITY)
    for first, length, wanted in zip(cu_seqlens[:-1].tolist(), sizes.tolist(), predictions.tolist(), strict=True):
        half = length // 2
        input_ids[[first, first + half, first + length - 1]] = CLS_ID, SEP_ID, SEP_ID
        token_type_ids[first + half + 1 : first + length] = 1
        words = np.setdiff1d(np.arange(1, length - 1), [half])
        positions.append(first + np.sort(draw.choice(words, wanted, replace=False)))
    masked_positions = np.concatenate(positions)
    labels = input_ids[masked_positions]
    input_ids[masked_positions] = MASK_ID
    return MicroBatch(
        input_ids=input_ids[np.newaxis],
        token_type_ids=token_type_ids[np.newaxis],
        position_ids=_from_zero(cu_seqlens)[np.newaxis],
        cu_seqlens=cu_seqlens,
        masked_positions=masked_positions,
        labels=labels,
        next_sentence_label=draw.integers(0, 2, len(sizes)),
        counts=BatchCounts(len(labels), len(sizes), int(sizes.sum()), int((sizes**2).sum())),
    )


def padded(micro_batch: MicroBatch, seq_len: int) -> dict[str, Tensor]:
    """Return the same pairs as Hugging Face's padded rows.

    Args:
        micro_batch: P pairs, none longer than seq_len.
        seq_len: S.

    Returns:
        input_ids, token_type_ids, attention_mask and labels, int64 (P, S); next_sentence_label, int64 (P,).
    """
    cu_seqlens = micro_batch.cu_seqlens.astype(np.int64)
    lengths = np.diff(cu_seqlens)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    columns = _from_zero(micro_batch.cu_seqlens)

    def lay_out(values: npt.NDArray[np.int64], filler: int) -> Tensor:
        table = np.full((len(lengths), seq_len), filler, dtype=np.int64)
        table[rows, columns] = values
        return torch.from_numpy(table)

    labels = np.full(len(rows), IGNORE_INDEX, dtype=np.int64)
    labels[micro_batch.masked_positions] = micro_batch.labels
    return {
        "input_ids": lay_out(micro_batch.input_ids[0], 0),
        "token_type_ids": lay_out(micro_batch.token_type_ids[0], 0),
        "attention_mask": lay_out(np.ones_like(labels), 0),
        "labels": lay_out(labels, IGNORE_INDEX),
        "next_sentence_label": torch.tensor(micro_batch.next_sentence_label),
    }


def _from_zero(cu_seqlens: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return the place of each token in its pair."""
    starts = np.repeat(cu_seqlens[:-1], np.diff(cu_seqlens))
    return (np.arange(cu_seqlens[-1], dtype=np.int64) - starts).astype(np.int64)
