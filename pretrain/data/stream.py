"""What each step gets: the micro-batches of a global batch, found from a cursor alone.

1. A cursor (epoch, pairs consumed) says where the global batch begins (`order.take_batch`).
2. Every rank deals the whole batch alike by the lengths in the plan (`order.deal`), and so knows the counts
   of the whole batch, by which the loss is divided, without communication.
3. Each rank reads the pairs of its own micro-batches (`reader.PairReader`).

What a global batch holds depends on the seed, its size, the shards and the settings alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pretrain.data.masking import Vocabulary
from pretrain.data.order import Cursor, by_length, deal, deal_places, permute, take_batch
from pretrain.data.pairing import PairingSettings
from pretrain.data.prefetch import Prefetcher
from pretrain.data.reader import IGNORE_INDEX, PairReader, TokenStream
from pretrain.data.store import TokenStore
from runtime.command import ConfigError

if TYPE_CHECKING:
    import torch

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


@dataclass(frozen=True)
class BatchCounts:
    """Counts over all ranks and micro-batches, known to every rank from the lengths in the plan.

    Attributes:
        masked_tokens: Predictions.
        pairs: Pairs.
        tokens: Tokens, specials counted.
    """

    masked_tokens: int
    pairs: int
    tokens: int


@dataclass(frozen=True)
class MicroBatch:
    """One forward and backward of one rank: pairs laid end to end, the longest first.

    Attributes:
        input_ids: int64 (1, T): `[CLS] A [SEP] B [SEP] [CLS] ...`, masked.
        token_type_ids: int64 (1, T): 0 to the first [SEP] of a pair, 1 behind it.
        position_ids: int64 (1, T): from 0 in each pair.
        cu_seqlens: int32 (P + 1,): offset of each pair's [CLS], and T.
        masked_positions: int64 (M,): places in the stream to predict, ascending.
        labels: int64 (M,): the tokens that stood there.
        next_sentence_label: int64 (P,): 0 = B follows A, 1 = random; IGNORE_INDEX without NSP.
        counts: Counts of the global batch, or of the whole validation.
        weight: 1; 0 for a stand-in whose labels are all IGNORE_INDEX, on a rank that has nothing left to
            evaluate.
    """

    input_ids: Int64Array
    token_type_ids: Int64Array
    position_ids: Int64Array
    cu_seqlens: npt.NDArray[np.int32]
    masked_positions: Int64Array
    labels: Int64Array
    next_sentence_label: Int64Array
    counts: BatchCounts
    weight: int = 1

    @property
    def num_tokens(self) -> int:
        """Tokens of this stream (T), 0 for a stand-in."""
        return self.weight * self.input_ids.size

    @property
    def num_pairs(self) -> int:
        """Pairs of this stream (P), 0 for a stand-in."""
        return self.weight * (len(self.cu_seqlens) - 1)

    @property
    def global_masked_tokens(self) -> int:
        """Predictions of the global batch: the divisor of the MLM loss."""
        return self.counts.masked_tokens

    @property
    def global_pairs(self) -> int:
        """Pairs of the global batch: the divisor of the NSP loss."""
        return self.counts.pairs

    @property
    def global_tokens(self) -> int:
        """Tokens of the global batch."""
        return self.counts.tokens

    def to_torch(self, device: torch.device | str) -> dict[str, torch.Tensor]:
        """Return the arrays as tensors on a device.

        Args:
            device: Where to. To a CUDA device they are copied from pinned memory without waiting.

        Returns:
            The seven arrays by name, with the shapes and dtypes that they have here.
        """
        import torch  # noqa: PLC0415 - the data path works and is tested without it

        device = torch.device(device)
        is_cuda = device.type == "cuda"
        tensors = {}
        for name in TokenStream._fields:
            tensor = torch.from_numpy(getattr(self, name))
            tensors[name] = (tensor.pin_memory() if is_cuda else tensor).to(device, non_blocking=is_cuda)
        return tensors


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
    """

    reader: PairReader
    train_batch_size: int
    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int
    rank: int
    world_size: int

    def __post_init__(self) -> None:
        """Check the batch arithmetic.

        Raises:
            ConfigError: The sizes do not multiply to the global batch, or the rank is not one of the ranks.
        """
        sizes = (self.train_micro_batch_size_per_gpu, self.gradient_accumulation_steps, self.world_size)
        if min(sizes) < 1 or self.train_batch_size != sizes[0] * sizes[1] * sizes[2]:
            raise ConfigError(
                f"train_batch_size = {self.train_batch_size}: must be train_micro_batch_size_per_gpu x "
                f"gradient_accumulation_steps x world_size = {sizes[0]} x {sizes[1]} x {sizes[2]}"
            )
        _check_rank(self.rank, self.world_size)

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
        counts = _count(self.reader, lengths)
        rows = deal(lengths, self.world_size * self.gradient_accumulation_steps)
        micro_batches = [
            MicroBatch(*_as_rows(self.reader.read(epochs[places], pairs[places])), counts)
            for places in rows[self.rank :: self.world_size]
        ]
        self.reader.close_plans(following.epoch)
        return micro_batches, following

    def batches(self, cursor: Cursor) -> Iterator[tuple[list[MicroBatch], Cursor]]:
        """Yield the global batches from a cursor on, without end, each as `batch` returns it."""
        while True:
            micro_batches, cursor = self.batch(cursor)
            yield micro_batches, cursor

    def iterate(
        self, cursor: Cursor, depth: int = PREFETCH_DEPTH
    ) -> AbstractContextManager[Iterator[tuple[list[MicroBatch], Cursor]]]:
        """Return the same batches, prepared ahead by a background thread.

        Args:
            cursor: Where the first batch begins.
            depth: Batches kept ready; 0: no thread.

        Returns:
            A context manager that gives the iterator and stops the thread at its end.

        Raises:
            ValueError: `depth` is negative.
        """
        if depth == 0:
            return nullcontext(self.batches(cursor))
        return Prefetcher(self.batches(cursor), depth)


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
    counts = _count(reader, lengths)
    for first in range(0, total, micro_batch * world_size):
        chosen = slice(first, first + micro_batch * world_size)
        places = first + by_length(lengths[chosen])
        missing = -len(places) % world_size
        mine = deal_places(np.append(places, np.full(missing, -1)), world_size)[rank]
        mine = mine[mine >= 0]
        if len(mine):
            yield MicroBatch(*_as_rows(reader.read(epochs[mine], pairs[mine])), counts)
        else:
            yield _stand_in(reader.read(epochs[:1], pairs[:1]), counts)


def _stand_in(stream: TokenStream, counts: BatchCounts) -> MicroBatch:
    """Return a micro-batch that takes part in every collective and adds nothing."""
    ignored = stream._replace(
        labels=np.full_like(stream.labels, IGNORE_INDEX),
        next_sentence_label=np.full_like(stream.next_sentence_label, IGNORE_INDEX),
    )
    return MicroBatch(*_as_rows(ignored), counts, weight=0)


def _as_rows(stream: TokenStream) -> TokenStream:
    """Return the stream with Hugging Face's batch dimension, (1, T)."""
    return stream._replace(
        input_ids=stream.input_ids[np.newaxis],
        token_type_ids=stream.token_type_ids[np.newaxis],
        position_ids=stream.position_ids[np.newaxis],
    )


def _count(reader: PairReader, lengths: Int64Array) -> BatchCounts:
    return BatchCounts(int(reader.num_predictions(lengths).sum()), len(lengths), int(lengths.sum()))


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank = {rank}: must be 0 to {world_size - 1}")
