"""BERT on a token stream: the stock model's weights and names, another way to run them.

`StreamBert` is transformers' `BertForPreTraining`, so its keys, its initial weights and its config.json are stock.
Only `forward` differs: it takes a stream instead of padded rows, runs the MLM head at the masked positions alone, and
NSP from each pair's own [CLS].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import BertConfig, BertForPreTraining

from pretrain.model.attention import ATTENTION_NAME, StreamLayout

VOCAB_MULTIPLE = 64
"""The vocabulary is padded inside to a multiple of this, for the matrix units; the padding is never predicted."""


class StreamOutput(NamedTuple):
    """What the model says of a stream."""

    mlm_logits: Tensor
    """(M, V): at the masked positions, over the real vocabulary (no padding)."""
    nsp_logits: Tensor | None
    """(P, 2): 0 = B follows A, 1 = random; None without NSP."""


def padded_vocab_size(vocab_size: int) -> int:
    """Return the smallest multiple of VOCAB_MULTIPLE that is not below vocab_size."""
    return -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


class StreamBert(BertForPreTraining):  # type: ignore[misc]
    """`BertForPreTraining` that runs on a token stream.

    Args:
        config: a stock BertConfig; its vocab_size counts the padding.
        vocab_size: tokens of the tokenizer; logits beyond are cut off. None: all of config.vocab_size.
        nsp: whether forward computes the NSP head. Its weights are there either way, as in the stock class.

    Raises:
        ValueError: vocab_size is above config.vocab_size.
    """

    def __init__(self, config: BertConfig, vocab_size: int | None = None, *, nsp: bool = True) -> None:
        if vocab_size is not None and vocab_size > config.vocab_size:
            raise ValueError(f"vocab_size = {vocab_size} is above the model's {config.vocab_size}")
        super().__init__(config)
        self.config._attn_implementation = ATTENTION_NAME
        self.real_vocab_size = config.vocab_size if vocab_size is None else vocab_size
        self.nsp = nsp

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        position_ids: Tensor,
        cu_seqlens: Tensor,
        masked_positions: Tensor,
        pair_lengths: Sequence[int],
    ) -> StreamOutput:
        """Run the pairs of one micro-batch.

        Args:
            input_ids: int64 (1, T), the pairs end to end, masked.
            token_type_ids: int64 (1, T), 0 in [CLS] A [SEP], 1 in B [SEP].
            position_ids: int64 (1, T), from 0 in each pair.
            cu_seqlens: int32 (P + 1,), offsets of the pairs.
            masked_positions: int64 (M,), where in the stream to predict.
            pair_lengths: tokens of each of the P pairs, on the host.

        Returns:
            Logits at the masked positions and for the pairs.
        """
        layout = StreamLayout.from_lengths(pair_lengths, cu_seqlens)
        hidden = self.bert.embeddings(input_ids=input_ids, token_type_ids=token_type_ids, position_ids=position_ids)
        hidden = self.bert.encoder(hidden, layout=layout).last_hidden_state[0]
        # (M, H) -> (M, V): never (T, V), which would dominate the memory of a step.
        mlm_logits = self.cls.predictions(hidden.index_select(0, masked_positions))[:, : self.real_vocab_size]
        if not self.nsp:
            return StreamOutput(mlm_logits, None)
        cls_states = hidden.index_select(0, cu_seqlens[:-1].long())
        # The pooler takes the first token of each row: rows of one token here.
        pooled = self.bert.pooler(cls_states.unsqueeze(1))
        return StreamOutput(mlm_logits, self.cls.seq_relationship(pooled))


@torch.no_grad()
def grow_vocabulary(state: dict[str, Tensor], vocab_size: int) -> dict[str, Tensor]:
    """Pad or trim the vocabulary rows of a BertForPreTraining state dict.

    Args:
        state: names of the stock class; the word embeddings are (V, H), both decoder biases (V,).
        vocab_size: rows wanted; new ones are 0.

    Returns:
        A new dict; tensors of other names are the same objects.
    """
    grown = dict(state)
    for name in (
        "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
        "cls.predictions.bias",
    ):
        if name not in state:
            continue
        rows = state[name]
        fitted = rows.new_zeros((vocab_size, *rows.shape[1:]))
        kept = min(vocab_size, rows.shape[0])
        fitted[:kept] = rows[:kept]
        grown[name] = fitted
    return grown
