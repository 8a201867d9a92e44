"""The masks as training would draw them: a few hundred thousand predictions through the real reader, counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pretrain.data.masking import Vocabulary
from pretrain.data.reader import PairReader, TokenStream

_BATCH_PAIRS = 256
_MOST_EPOCHS = 1000


@dataclass(frozen=True)
class MaskFigures:
    """What was drawn.

    Attributes:
        predictions: Tokens chosen.
        tokens: Tokens of the pairs read, specials counted.
        prediction_share: predictions / tokens.
        masked_share: Share of the chosen that became [MASK].
        kept_share: Share that stayed.
        random_share: Share that became another token.
        special_hits: Chosen places that hold the [CLS] or a [SEP] of a pair: none where all is well.
        bad_replacements: Replacements that are special or no token at all: none where all is well.
    """

    predictions: int
    tokens: int
    prediction_share: float
    masked_share: float
    kept_share: float
    random_share: float
    special_hits: int
    bad_replacements: int


def draw_masks(reader: PairReader, num_draws: int) -> MaskFigures:
    """Draw masks of pairs from all over the text, in further epochs where one has too few.

    Args:
        reader: The train split's.
        num_draws: Predictions to draw at least (fewer where 1,000 epochs have not enough).
    """
    counts = np.zeros(6, dtype=np.int64)
    for epoch in range(_MOST_EPOCHS):
        pairs = reader.num_pairs(epoch)
        batches = -(-pairs // _BATCH_PAIRS)
        # each batch takes every batches-th pair, so that few of them see the whole text
        for first in range(batches):
            if counts[0] >= num_draws:
                return _figures(counts)
            numbers = np.arange(first, pairs, batches, dtype=np.int64)
            stream = reader.read(np.full(len(numbers), epoch, dtype=np.int64), numbers)
            counts += count_masks(stream, reader.vocabulary)
        reader.close_plans(epoch + 1)
    return _figures(counts)


def count_masks(stream: TokenStream, vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
    """Return int64 (6,): predictions, tokens, masked, kept, hits of specials, bad replacements."""
    found = stream.input_ids[stream.masked_positions]
    is_masked = found == vocabulary.mask_id
    is_kept = (found == stream.labels) & ~is_masked
    replacements = found[~is_masked & ~is_kept]
    is_known = (replacements >= 0) & (replacements < vocabulary.size)
    bad = int((~is_known).sum()) + int(vocabulary.is_special[replacements[is_known]].sum())
    hits = int(_is_own_special(stream)[stream.masked_positions].sum())
    counts = [len(found), len(stream.input_ids), int(is_masked.sum()), int(is_kept.sum()), hits, bad]
    return np.array(counts, dtype=np.int64)


def _is_own_special(stream: TokenStream) -> npt.NDArray[np.bool_]:
    """Return where the [CLS] and the [SEP]s of the pairs stand: bool (T,), from the layout alone."""
    is_special = np.zeros(len(stream.input_ids), dtype=np.bool_)
    is_special[stream.cu_seqlens[:-1]] = True
    is_special[stream.cu_seqlens[1:] - 1] = True
    is_special[:-1] |= (stream.token_type_ids[:-1] == 0) & (stream.token_type_ids[1:] == 1)
    return is_special


def _figures(counts: npt.NDArray[np.int64]) -> MaskFigures:
    predictions, tokens, masked, kept, hits, bad = (int(count) for count in counts)
    drawn = max(predictions, 1)
    return MaskFigures(
        predictions=predictions,
        tokens=tokens,
        prediction_share=predictions / max(tokens, 1),
        masked_share=masked / drawn,
        kept_share=kept / drawn,
        random_share=(predictions - masked - kept) / drawn,
        special_hits=hits,
        bad_replacements=bad,
    )
