"""What each step gets: the micro-batches of a global batch, found from a cursor alone.

1. A cursor (epoch, pairs consumed) says where the global batch begins (`order.take_batch`).
2. Every rank deals the whole batch alike by the lengths in the plan (`order.deal`), and so knows the counts
   of the whole batch, by which the loss is divided, without communication.
3. Each rank reads the pairs of its own micro-batches (`reader.PairReader`).
4. A background thread does all this ahead of training, and locks the pages where a GPU fetches them
   (`PairStream.iterate`).

What a global batch holds depends on the seed, its size, the shards and the settings alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pretrain.data.masking import Vocabulary
from pretrain.data.micro_batch import MicroBatch
from pretrain.data.order import Cursor, by_length, deal, deal_places, permute, take_batch
from pretrain.data.pairing import PairingSettings
from pretrain.data.prefetch import Prefetcher
from pretrain.data.reader import IGNORE_INDEX, BatchCounts, PairReader, TokenStream
from pretrain.data.store import TokenStore
from runtime.command import ConfigError

__all__ = [
    "IGNORE_INDEX",
    "BatchCounts",
    "Cursor",
    "MicroBatch",
    "PairReader",
    "PairStream",
    "PairingSettings",
    "TokenStore",
    "Vocabulary",
    "validation_batches",
]

Int64Array = npt.NDArray[np.int64]

PREFETCH_DEPTH = 2


@dataclass(frozen=True, kw_only=True)
class PairStream:
    """The global batches of a run, one rank's share of them.

    Attributes:
        reader: Gives the pairs.
        train_batch_size: Pairs of a global batch.
        train_micro_batch_size_per_gpu: Pairs of a micro-batch.
        gradient_accumulation_steps: Micro-batches of a rank in a global batch.
        rank: This rank, 0 to world_size - 1.
        world_size: Number of ranks.
        pad_to_multiple: Tokens of a micro-batch are padded to a multiple of this, 1 (none) to seq_len.
        mask_multiple: Places to predict are padded to a multiple of this, 1 (none) or more.
        pin_memory: Page-lock the micro-batches: for training on a GPU.
    """

    reader: PairReader
    train_batch_size: int
    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int
    rank: int
    world_size: int
    pad_to_multiple: int = 1
    mask_multiple: int = 1
    pin_memory: bool = False

    def __post_init__(self) -> None:
        """Check the batch arithmetic.

        Raises:
            ConfigError: The sizes do not multiply to the global batch, the rank is not one of the ranks, or a
                multiple is out of its range.
        """
        sizes = (self.train_micro_batch_size_per_gpu, self.gradient_accumulation_steps, self.world_size)
        if min(sizes) < 1 or self.train_batch_size != sizes[0] * sizes[1] * sizes[2]:
            raise ConfigError(
                f"train_batch_size = {self.train_batch_size}: must be train_micro_batch_size_per_gpu x "
                f"gradient_accumulation_steps x world_size = {sizes[0]} x {sizes[1]} x {sizes[2]}"
            )
        _check_rank(self.rank, self.world_size)
        # so that the padding, a piece of its own, is no longer than a pair, and has positions like one
        seq_len = self.reader.pairing.seq_len
        if not 1 <= self.pad_to_multiple <= seq_len:
            raise ConfigError(f"pad_to_multiple = {self.pad_to_multiple}: must be 1 to seq_len, {seq_len}")
        if self.mask_multiple < 1:
            raise ConfigError(f"mask_multiple = {self.mask_multiple}: must be 1 or more")

    def batch(self, cursor: Cursor) -> tuple[list[MicroBatch], Cursor]:
        """Return this rank's part of the global batch that begins at a cursor.

        Args:
            cursor: Where the batch begins.

        Returns:
            The micro-batches in the order of the micro-steps; the cursor behind the batch.

        Raises:
            ValueError: The cursor lies behind the end of its epoch.
        """
        epochs, pairs, following = take_batch(cursor, self.train_batch_size, self.reader.num_pairs, self.reader.seed)
        lengths = self.reader.pair_tokens(epochs, pairs)
        counts = self.reader.count(lengths)
        rows = deal(lengths, self.world_size * self.gradient_accumulation_steps)
        micro_batches = [
            self._read(epochs[places], pairs[places], counts) for places in rows[self.rank :: self.world_size]
        ]
        self.reader.close_plans(following.epoch)
        return micro_batches, following

    def batches(self, cursor: Cursor) -> Iterator[tuple[list[MicroBatch], Cursor]]:
        """Yield the global batches from a cursor on, without end, each as `batch` returns it."""
        while True:
            micro_batches, cursor = self.batch(cursor)
            yield micro_batches, cursor

    def iterate(self, cursor: Cursor, depth: int = PREFETCH_DEPTH) -> Prefetcher[tuple[list[MicroBatch], Cursor]]:
        """Return the same batches, prepared ahead by a background thread.

        Args:
            cursor: Where the first batch begins.
            depth: Batches kept ready, 1 or more.

        Returns:
            The iterator, to be used in a `with` block, at whose end the thread stops.

        Raises:
            ValueError: `depth` is below 1.
        """
        return Prefetcher(self.batches(cursor), depth)

    def _read(self, epochs: Int64Array, pairs: Int64Array, counts: BatchCounts) -> MicroBatch:
        stream = self.reader.read(epochs, pairs, pad_to_multiple=self.pad_to_multiple, mask_multiple=self.mask_multiple)
        micro_batch = MicroBatch.of(stream, counts)
        return micro_batch.pinned() if self.pin_memory else micro_batch


def validation_batches(
    reader: PairReader, *, micro_batch: int, rank: int, world_size: int, max_pairs: int | None = None
) -> Iterator[MicroBatch]:
    """Yield one rank's share of an evaluation, in which every pair of the split's plan comes once.

    The plan is that of epoch 0, always. All ranks get the same number of micro-batches. Those of the last
    round may hold fewer pairs; a rank with none gets one of weight 0. The masks are the same in every
    evaluation. Counts are those of the whole
    evaluation: sums over ranks and micro-batches divided by them are exact means.

    Args:
        reader: Gives the pairs of the split.
        micro_batch: Most pairs of a micro-batch.
        rank: This rank, 0 to world_size - 1.
        world_size: Number of ranks.
        max_pairs: Evaluate no more than so many pairs, the first of the permuted order; None: all.

    Yields:
        Micro-batches.

    Raises:
        ConfigError: A size is below 1, or the rank is not one of the ranks.
    """
    for name, value in {"micro_batch": micro_batch, "world_size": world_size, "max_pairs": max_pairs}.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} = {value}: must be 1 or more")
    _check_rank(rank, world_size)
    num_pairs = reader.num_pairs(0)
    total = num_pairs if max_pairs is None else min(num_pairs, max_pairs)
    pairs = permute(np.arange(total), num_pairs, reader.seed, 0)
    epochs = np.zeros_like(pairs)
    lengths = reader.pair_tokens(epochs, pairs)
    counts = reader.count(lengths)
    for first in range(0, total, micro_batch * world_size):
        chosen = slice(first, first + micro_batch * world_size)
        places = first + by_length(lengths[chosen])
        missing = -len(places) % world_size
        mine = deal_places(np.append(places, np.full(missing, -1)), world_size)[rank]
        mine = mine[mine >= 0]
        if len(mine):
            yield MicroBatch.of(reader.read(epochs[mine], pairs[mine]), counts)
        else:
            yield _stand_in(reader.read(epochs[:1], pairs[:1]), counts)


def _stand_in(stream: TokenStream, counts: BatchCounts) -> MicroBatch:
    """Return a micro-batch that takes part in every collective and adds nothing."""
    ignored = stream._replace(
        labels=np.full_like(stream.labels, IGNORE_INDEX),
        next_sentence_label=np.full_like(stream.next_sentence_label, IGNORE_INDEX),
    )
    return MicroBatch.of(ignored, counts, weight=0)


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank = {rank}: must be 0 to {world_size - 1}")
