"""A few pairs as training sees them, decoded: `[CLS] the quick [MASK→brown] fox [SEP] ... [SEP]`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pretrain.audit.reading import Piece, TokenReader
from pretrain.data.reader import PairReader, TokenStream

PLAIN = "plain"
SPECIAL = "special"
MASKED = "masked"
KEPT = "kept"
REPLACED = "replaced"
_SPACE = "␣"  # a token that is a space alone


@dataclass(frozen=True)
class Mark:
    """A run of tokens of one kind.

    Attributes:
        kind: "plain", "special" ([CLS], [SEP]), "masked", "kept" or "replaced".
        text: What stands there: "[MASK]" for a masked token.
        original: What has to be predicted; "" for plain and special ones.
        is_joined: Whether it goes on in the word before it.
    """

    kind: str
    text: str
    original: str
    is_joined: bool


@dataclass(frozen=True)
class Sample:
    """One pair.

    Attributes:
        pair: Its number in epoch 0.
        label: "next", "random", or "" without NSP.
        tokens: Its tokens, specials counted.
        marks: The pair, from its [CLS] to its last [SEP].
    """

    pair: int
    label: str
    tokens: int
    marks: tuple[Mark, ...]


def draw_samples(reader: PairReader, tokens: TokenReader, count: int) -> tuple[Sample, ...]:
    """Decode pairs of epoch 0, from all over the text.

    Args:
        reader: The train split's.
        tokens: The tokenizer.
        count: How many.
    """
    pairs = reader.num_pairs(0)
    # in the middle of `count` equal stretches
    numbers = np.unique((2 * np.arange(min(count, pairs)) + 1) * pairs // (2 * max(min(count, pairs), 1)))
    samples = []
    for number in numbers.astype(np.int64):
        stream = reader.read(np.zeros(1, dtype=np.int64), np.array([number]))
        label = {0: "next", 1: "random"}.get(int(stream.next_sentence_label[0]), "")
        samples.append(Sample(int(number), label, len(stream.input_ids), _marks(stream, tokens)))
    return tuple(samples)


def _marks(stream: TokenStream, tokens: TokenReader) -> tuple[Mark, ...]:
    """Return the runs of a stream of one pair."""
    labels = dict(zip(stream.masked_positions.tolist(), stream.labels.tolist(), strict=True))
    types = stream.token_type_ids.tolist()
    ids = stream.input_ids.tolist()
    marks: list[Mark] = []
    plain: list[int] = []

    def close_plain() -> None:
        if plain:
            marks.append(_plain(tokens.piece(plain), marks[-1]))
            plain.clear()

    for place, token_id in enumerate(ids):
        ends_segment = place + 1 == len(ids) or types[place + 1] != types[place]
        if place == 0 or ends_segment:
            close_plain()
            marks.append(Mark(SPECIAL, tokens.token(token_id), "", False))
        elif place in labels:
            close_plain()
            marks.append(_prediction(token_id, labels[place], tokens, marks[-1]))
        else:
            plain.append(token_id)
    return tuple(marks)


def _plain(piece: Piece, before: Mark) -> Mark:
    """Return the mark of a run of tokens that were left alone."""
    if piece.is_joined and before.kind == SPECIAL:
        # the word's beginning was cut off
        return Mark(PLAIN, f"…{piece.text}", "", False)
    return Mark(PLAIN, piece.text, "", piece.is_joined)


def _prediction(found: int, label: int, tokens: TokenReader, before: Mark) -> Mark:
    """Return the mark of a token that was chosen."""
    piece = tokens.piece([label])
    original = piece.text or _SPACE
    is_joined = piece.is_joined and before.kind != SPECIAL
    if found == label:
        return Mark(KEPT, original, original, is_joined)
    kind = MASKED if tokens.token(found) == "[MASK]" else REPLACED
    return Mark(kind, tokens.piece([found]).text or _SPACE, original, is_joined)
