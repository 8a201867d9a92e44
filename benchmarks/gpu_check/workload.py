"""The models and the micro-batches of the stages, at full scale and at one that a CPU can rehearse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from transformers import BertConfig

from benchmarks.models import bert_config
from benchmarks.samples import make_micro_batch, wikipedia_lengths
from pretrain.data.order import deal
from pretrain.data.stream import BatchCounts, MicroBatch
from pretrain.model.loss import IGNORE_INDEX

FULL_128, FULL_512, WIKIPEDIA_512 = "128 full", "512 full", "Wikipedia-512"
TOKEN_MULTIPLE = 128
MASK_MULTIPLE = 64
NUM_MICRO_BATCHES = 4
"""Different ones, taken in turns."""


@dataclass(frozen=True)
class Shape:
    """A BERT."""

    layers: int
    hidden: int

    def config(self, vocab_size: int, dropout: float) -> BertConfig:
        """Return the stock config; heads of 64."""
        return bert_config(self.layers, self.hidden, vocab_size, dropout)


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    large: Shape
    base: Shape
    vocab_size: int
    word_ids: int
    """Ids of the samples stay below, so that their frequencies can be learned in few steps."""
    pairs: dict[str, int]
    """Of a micro-batch, by kind of lengths."""
    warm: int
    timed: int
    accumulation: int
    falling_steps: int
    matrix: int
    """Edge of the square product of `ceilings`."""
    product_tokens: int
    copy_bytes: int
    documents: int
    """Of the loader's corpus."""


SCALES = {
    "full": Scale(
        large=Shape(24, 1024),
        base=Shape(12, 768),
        vocab_size=30_528,
        word_ids=30_522,
        pairs={FULL_128: 256, FULL_512: 64, WIKIPEDIA_512: 128},
        warm=10,
        timed=30,
        accumulation=8,
        falling_steps=200,
        matrix=8192,
        product_tokens=32_768,
        copy_bytes=8 << 30,
        documents=40_000,
    ),
    "tiny": Scale(
        large=Shape(2, 128),
        base=Shape(1, 64),
        vocab_size=1024,
        word_ids=1000,
        pairs={FULL_128: 2, FULL_512: 1, WIKIPEDIA_512: 2},
        warm=1,
        timed=2,
        accumulation=2,
        falling_steps=12,
        matrix=128,
        product_tokens=256,
        copy_bytes=1 << 20,
        documents=2000,
    ),
}


def device_of_run() -> torch.device:
    """Return the first GPU, or the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def seq_len_of(kind: str) -> int:
    """Return the longest pair of a kind of lengths."""
    return 128 if kind == FULL_128 else 512


def micro_batches(
    scale: Scale,
    kind: str,
    number: int = NUM_MICRO_BATCHES,
    word_ids: int | None = None,
    *,
    is_static: bool = False,
) -> list[MicroBatch]:
    """Return micro-batches of as many pairs each, padded as training pads them: to a few sizes.

    Each is a global batch of its own. The pairs are dealt as training deals them.

    Args:
        scale: of the run.
        kind: of lengths.
        number: how many.
        word_ids: ids stay below; default: the scale's.
        is_static: pad all to the largest: one shape.
    """
    num_pairs = scale.pairs[kind]
    if kind == WIKIPEDIA_512:
        lengths = np.array(wikipedia_lengths(num_pairs * number))
    else:
        lengths = np.full(num_pairs * number, seq_len_of(kind))
    drawn = [
        make_micro_batch(lengths[row].tolist(), word_ids or scale.word_ids, seed)
        for seed, row in enumerate(deal(lengths, number))
    ]
    tokens = [_multiple(one.input_ids.size, TOKEN_MULTIPLE) for one in drawn]
    masked = [_multiple(one.labels.size, MASK_MULTIPLE) for one in drawn]
    if is_static:
        tokens, masked = [max(tokens)] * number, [max(masked)] * number
    padded = [pad(one, *sizes) for one, *sizes in zip(drawn, tokens, masked, strict=True)]
    return [one.pinned() for one in padded] if torch.cuda.is_available() else padded


def one_global_batch(parts: Sequence[MicroBatch]) -> list[MicroBatch]:
    """Return micro-batches as parts of one global batch."""
    names = ("masked_tokens", "pairs", "tokens", "squared_tokens")
    counts = BatchCounts(*(sum(getattr(part.counts, name) for part in parts) for name in names))
    return [replace(part, counts=counts) for part in parts]


def pad(micro_batch: MicroBatch, num_tokens: int, num_masked: int) -> MicroBatch:
    """Return a micro-batch with a piece of padding behind its pairs, as `PairStream` pads one.

    Args:
        micro_batch: without padding.
        num_tokens: T wanted.
        num_masked: M wanted.
    """
    padding = num_tokens - micro_batch.input_ids.size
    masked = num_masked - micro_batch.labels.size
    assert padding <= 512, "the padding has positions of its own, as a pair has"

    def behind(values: npt.NDArray[np.int64], filler: Sequence[int]) -> npt.NDArray[np.int64]:
        return np.concatenate([values, np.array(filler, dtype=np.int64)])

    return replace(
        micro_batch,
        input_ids=behind(micro_batch.input_ids[0], [0] * padding)[np.newaxis],
        token_type_ids=behind(micro_batch.token_type_ids[0], [0] * padding)[np.newaxis],
        position_ids=behind(micro_batch.position_ids[0], range(padding))[np.newaxis],
        cu_seqlens=np.append(micro_batch.cu_seqlens, np.int32(num_tokens)),
        masked_positions=behind(micro_batch.masked_positions, [0] * masked),
        labels=behind(micro_batch.labels, [IGNORE_INDEX] * masked),
    )


def _multiple(value: int, of: int) -> int:
    return -(-value // of) * of
