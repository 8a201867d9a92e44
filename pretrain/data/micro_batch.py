"""What one forward and backward of one rank works on: a token stream, the counts of its global batch, tensors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pretrain.data.reader import BatchCounts, TokenStream

if TYPE_CHECKING:
    import torch

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MicroBatch:
    """One forward and backward of one rank: pairs laid end to end, the longest first, then padding if asked for.

    The padding is a piece of its own behind the pairs, of [PAD] alone: attention keeps it apart as it does a
    pair. Places to predict are padded with place 0 and a label that the loss leaves out.

    Attributes:
        input_ids: int64 (1, T): `[CLS] A [SEP] B [SEP] [CLS] ... [PAD] [PAD]`, masked.
        token_type_ids: int64 (1, T): 0 to the first [SEP] of a pair, 1 behind it, 0 in the padding.
        position_ids: int64 (1, T): from 0 in each pair, and in the padding.
        cu_seqlens: int32 (P + 1,): offset of each pair's [CLS], and the end of the last. Padded streams have
            (P + 2,), where the last entry is T, though no padding was due.
        masked_positions: int64 (M,): places in the stream to predict, ascending, then those of the padding.
        labels: int64 (M,): the tokens that stood there, then IGNORE_INDEX.
        next_sentence_label: int64 (P,): 0 = B follows A, 1 = random; IGNORE_INDEX without NSP.
        counts: Counts of the global batch, or of the whole validation.
        weight: 1; 0 for a stand-in whose labels are all IGNORE_INDEX, on a rank that has nothing left to
            evaluate.
        page_locked: The arrays as page-locked tensors, where `pinned` has made them.
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
    page_locked: dict[str, torch.Tensor] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, stream: TokenStream, counts: BatchCounts, weight: int = 1) -> MicroBatch:
        """Return a stream as a micro-batch, with Hugging Face's batch dimension."""
        ids, types, positions = (array[np.newaxis] for array in stream[:3])
        return cls(ids, types, positions, *stream[3:], counts, weight)

    @property
    def num_tokens(self) -> int:
        """Tokens of this stream's pairs, 0 for a stand-in."""
        return self.weight * int(self.cu_seqlens[len(self.next_sentence_label)])

    @property
    def num_pairs(self) -> int:
        """Pairs of this stream (P), 0 for a stand-in."""
        return self.weight * len(self.next_sentence_label)

    @property
    def padding_tokens(self) -> int:
        """Tokens of padding behind the pairs."""
        return self.input_ids.size - int(self.cu_seqlens[len(self.next_sentence_label)])

    @property
    def pair_lengths(self) -> list[int]:
        """Tokens of each pair, and of the padding where there is some."""
        lengths: list[int] = np.diff(self.cu_seqlens).tolist()
        return lengths if lengths[-1] else lengths[:-1]

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

    def pinned(self) -> MicroBatch:
        """Return the micro-batch with a page-locked copy of its arrays, which a GPU fetches on its own."""
        return replace(self, page_locked={name: tensor.pin_memory() for name, tensor in self._tensors().items()})

    def to_torch(self, device: torch.device | str) -> dict[str, torch.Tensor]:
        """Return the arrays as tensors on a device.

        Args:
            device: Where to. A CUDA device copies what is `pinned` while the caller goes on.

        Returns:
            The seven arrays by name, with the shapes and dtypes that they have here.
        """
        import torch  # noqa: PLC0415 - the data path works and is tested without it

        tensors = self._tensors() if self.page_locked is None else self.page_locked
        if torch.device(device).type == "cpu":
            return dict(tensors)  # a caller may take some out
        return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}

    def _tensors(self) -> dict[str, torch.Tensor]:
        import torch  # noqa: PLC0415 - see above

        return {name: torch.from_numpy(getattr(self, name)) for name in TokenStream._fields}
