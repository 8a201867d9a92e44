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
from torch.nn.functional import linear
from transformers import BertConfig, BertForPreTraining

from pretrain.model.attention import ATTENTION_NAME, StreamLayout
from pretrain.model.cpu import encoder
from pretrain.model.cpu.functions import TwoUses, call
from pretrain.model.cuda_attention import choose_attention

VOCAB_MULTIPLE = 64
"""The vocabulary is padded inside to a multiple of this, for the matrix units; the padding is never predicted."""


class StreamOutput(NamedTuple):
    """What the model says of a stream."""

    padded_mlm_logits: Tensor
    """(M, V'): at the masked positions, over the vocabulary and its padding."""
    vocab_size: int
    """V, without the padding."""
    nsp_logits: Tensor | None
    """(P, 2): 0 = B follows A, 1 = random; None without NSP."""

    @property
    def mlm_logits(self) -> Tensor:
        """Return the logits (M, V) over the real vocabulary."""
        return self.padded_mlm_logits[:, : self.vocab_size]


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
        num_pairs: int | None = None,
    ) -> StreamOutput:
        """Run the pairs of one micro-batch.

        Args:
            input_ids: int64 (1, T), the pairs end to end, masked.
            token_type_ids: int64 (1, T), 0 in [CLS] A [SEP], 1 in B [SEP].
            position_ids: int64 (1, T), from 0 in each pair.
            cu_seqlens: int32 (P + 1,), offsets of the pairs; one more where the stream ends with padding.
            masked_positions: int64 (M,), where in the stream to predict.
            pair_lengths: tokens of each of the P pairs, and of the padding if there is some; on the host.
            num_pairs: P; None: there is no padding.

        Returns:
            Logits at the masked positions and for the pairs.
        """
        layout = StreamLayout.from_lengths(pair_lengths, cu_seqlens)
        layout.way = self._cuda_attention(layout.longest)
        # (M, H) -> (M, V'): never (T, V'), which would dominate the memory of a step.
        if encoder.is_supported(self.bert):
            ids = (input_ids[0], token_type_ids[0], position_ids[0])
            hidden, mlm_logits = self._run_fused(ids, masked_positions, layout)
        else:
            hidden = self._encode(input_ids, token_type_ids, position_ids, layout)
            mlm_logits = self.cls.predictions(hidden.index_select(0, masked_positions))
        if not self.nsp:
            return StreamOutput(mlm_logits, self.real_vocab_size, None)
        num_pairs = len(cu_seqlens) - 1 if num_pairs is None else num_pairs
        cls_states = hidden.index_select(0, cu_seqlens[:num_pairs].long())
        # The pooler takes the first token of each row: rows of one token here.
        pooled = self.bert.pooler(cls_states.unsqueeze(1))
        return StreamOutput(mlm_logits, self.real_vocab_size, self.cls.seq_relationship(pooled))

    def _cuda_attention(self, longest: int) -> str | None:
        """Return the way of attending that is fastest on this GPU, or None on a CPU."""
        weight = self.bert.embeddings.LayerNorm.weight
        if weight.device.type != "cuda":
            return None
        config = self.config
        heads = config.num_attention_heads
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else weight.dtype
        dropout = config.attention_probs_dropout_prob if self.training else 0.0
        return choose_attention(weight.device, dtype, heads, config.hidden_size // heads, dropout, longest)

    def _encode(self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor, layout: StreamLayout) -> Tensor:
        """Return the last hidden states, (T, H), by the layers' own calls."""
        bert = self.bert
        hidden = bert.embeddings(input_ids=input_ids, token_type_ids=token_type_ids, position_ids=position_ids)
        last: Tensor = bert.encoder(hidden, layout=layout).last_hidden_state[0]
        return last

    def _run_fused(
        self, ids: tuple[Tensor, Tensor, Tensor], masked_positions: Tensor, layout: StreamLayout
    ) -> tuple[Tensor, Tensor]:
        """Return the last hidden states, (T, H), and the MLM logits, (M, V'), by the functions made for a CPU."""
        bert, predictions = self.bert, self.cls.predictions
        words, head = call(TwoUses, bert.embeddings.word_embeddings.weight)
        hidden = encoder.embed(bert.embeddings, words, ids, self.config)
        hidden = encoder.encode(bert.encoder, hidden, layout, self.config)
        masked = predictions.transform(hidden.index_select(0, masked_positions))
        return hidden, linear(masked, head, predictions.decoder.bias)


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
