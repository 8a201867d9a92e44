"""How many parameters a recipe's model has, without building it."""

from __future__ import annotations

from pretrain.model.bert import padded_vocab_size
from pretrain.recipe import ModelSettings

TOKEN_TYPES = 2


def num_parameters_of(model: ModelSettings, tokenizer_size: int) -> int:
    """Return the elements of a `StreamBert`, the decoder tied to the embedding counted once.

    Args:
        model: its shape.
        tokenizer_size: tokens; the table is at least model.vocab_size and padded to a multiple.
    """
    hidden, wide = model.hidden_size, model.intermediate_size
    rows = padded_vocab_size(max(model.vocab_size or 0, tokenizer_size))
    norm, square = 2 * hidden, hidden * hidden + hidden
    embeddings = (rows + model.max_position_embeddings + TOKEN_TYPES) * hidden + norm
    layer = 4 * square + norm + (hidden * wide + wide) + (wide * hidden + hidden) + norm
    mlm_head = square + norm + rows
    nsp_head = square + 2 * hidden + 2  # pooler and classifier, there whether NSP is trained or not
    return embeddings + model.num_hidden_layers * layer + mlm_head + nsp_head
