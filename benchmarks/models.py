"""The BERTs of the benchmarks: heads of 64, a feed-forward layer of four widths, 512 positions."""

from __future__ import annotations

from transformers import BertConfig

HEAD_SIZE = 64


def bert_config(layers: int, hidden: int, vocab_size: int, dropout: float) -> BertConfig:
    """Return a stock config.

    Args:
        layers: encoder layers.
        hidden: width.
        vocab_size: rows of the word table.
        dropout: of hidden states and of attention.
    """
    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // HEAD_SIZE),
        intermediate_size=4 * hidden,
        max_position_embeddings=512,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
