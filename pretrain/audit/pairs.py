"""The pairs of an epoch against the text they were cut from: does each label tell the truth?

Documents and sentences are looked up for every pair from the shards' index, without the code that made the
pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pretrain.audit.lengths import Lengths, summarize_values
from pretrain.data.pairing import IS_NEXT, IS_RANDOM, Columns, PairingSettings
from pretrain.data.plan import EpochPlan
from pretrain.data.store import SentenceIndex

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_PIECE_PAIRS = 1 << 18


@dataclass(frozen=True)
class PairFigures:
    """What the pairs of one epoch are like.

    Attributes:
        pairs: How many there are.
        tokens: Their tokens, specials counted.
        mean_tokens: Tokens a pair, specials counted.
        fill: mean_tokens / seq_len.
        padding_share: 1 - fill: what an ordinary pipeline computes for nothing.
        full_share: Share of pairs of exactly seq_len tokens.
        over_seq_len: Pairs of more than seq_len tokens: none where all is well.
        random_pairs: Pairs with the label "random".
        random_share: Their share.
        wrong_random: Of these, those whose B is from A's own document: none where all is well.
        wrong_next: Pairs with the label "next" whose B does not follow A: none where all is well.
        lengths: Tokens a pair, specials counted.
    """

    pairs: int
    tokens: int
    mean_tokens: float
    fill: float
    padding_share: float
    full_share: float
    over_seq_len: int
    random_pairs: int
    random_share: float
    wrong_random: int
    wrong_next: int
    lengths: Lengths


def measure_pairs(index: SentenceIndex, plan: EpochPlan, settings: PairingSettings) -> PairFigures:
    """Compare the pairs of an epoch with the text.

    Args:
        index: The split's sentences.
        plan: The split's pairs.
        settings: What the pairs should look like.
    """
    counts = np.zeros(settings.seq_len + 2, dtype=np.int64)
    random_pairs = wrong_random = wrong_next = 0
    for first in range(0, plan.num_pairs, _PIECE_PAIRS):
        columns = Columns._make(column[first : first + _PIECE_PAIRS] for column in plan.columns)
        tokens = plan.pair_tokens(slice(first, first + _PIECE_PAIRS))
        counts += np.bincount(np.minimum(tokens, settings.seq_len + 1), minlength=len(counts))
        if settings.nsp:
            is_same, is_next = _facts(index, columns, settings.seq_len - settings.num_specials)
            random_pairs += int((columns.next_sentence_label == IS_RANDOM).sum())
            wrong_random += int((is_same & (columns.next_sentence_label == IS_RANDOM)).sum())
            wrong_next += int((~is_next & (columns.next_sentence_label == IS_NEXT)).sum())
    pairs = plan.num_pairs
    sizes = np.arange(len(counts), dtype=np.int64)
    total = int((sizes * counts).sum())
    mean = total / pairs if pairs else 0.0
    return PairFigures(
        pairs=pairs,
        tokens=total,
        mean_tokens=mean,
        fill=mean / settings.seq_len,
        padding_share=1 - mean / settings.seq_len,
        full_share=int(counts[settings.seq_len]) / max(pairs, 1),
        over_seq_len=int(counts[-1]),
        random_pairs=random_pairs,
        random_share=random_pairs / max(pairs, 1),
        wrong_random=wrong_random,
        wrong_next=wrong_next,
        lengths=summarize_values(sizes, counts),
    )


def _facts(index: SentenceIndex, columns: Columns, max_tokens: int) -> tuple[BoolArray, BoolArray]:
    """Return whether A and B (P,) are from one document, and whether B follows A there.

    B follows A where it starts behind A in the same document, in a later sentence. Tokens may be missing
    between them only in a pair that was cut to its full length, and fewer than the last sentence of B has:
    without that sentence there was nothing to cut.
    """
    a_end = columns.a_start + columns.a_length
    b_last = columns.b_start + columns.b_length.astype(np.int64) - 1
    a_sentence, b_sentence, last_sentence = (
        _sentence_of(index, places) for places in (a_end - 1, columns.b_start, b_last)
    )
    is_same: BoolArray = _document_of(index, a_sentence) == _document_of(index, b_sentence)
    gap = columns.b_start - a_end
    last_tokens = index.sentence_offsets[last_sentence + 1] - index.sentence_offsets[last_sentence]
    is_full = columns.a_length.astype(np.int64) + columns.b_length == max_tokens
    is_near = (gap == 0) | ((gap > 0) & is_full & (gap < last_tokens))
    return is_same, is_same & (a_sentence < b_sentence) & is_near


def _sentence_of(index: SentenceIndex, tokens: Int64Array) -> Int64Array:
    return np.searchsorted(index.sentence_offsets, tokens, side="right") - 1


def _document_of(index: SentenceIndex, sentences: Int64Array) -> Int64Array:
    return np.searchsorted(index.document_starts, sentences, side="right") - 1
