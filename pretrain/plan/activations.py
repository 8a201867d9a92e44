"""Memory that a micro-batch takes beside the model states. Estimates, from what autograd keeps for the backward.

Bytes a token, layer and element of width H, with b bytes an element, I = 4H and dropout: 16·b + 2, which is 34 in half
precision, as Megatron's authors count with flash attention (Korthikanti et al. 2022, "Reducing Activation
Recomputation in Large Transformer Models", without the scores of attention). No memory grows with the square of a
pair's length here: attention over the stream recomputes its scores.
"""

from __future__ import annotations

from dataclasses import dataclass

from pretrain.data.masking import num_predictions
from pretrain.recipe import Recipe

_BYTES_OF_ID = 8
_ID_ARRAYS = 3
"""input_ids, token_type_ids and position_ids."""


@dataclass(frozen=True)
class Stream:
    """The largest micro-batch that is reckoned with."""

    tokens: int
    masked_tokens: int
    source: str
    """Where the lengths come from, for people."""


@dataclass(frozen=True)
class Activations:
    """Bytes on a device at the end of the forward pass."""

    layers: int
    embeddings: int
    head: int
    """Logits at the masked positions and what the loss makes of them."""
    stream: int
    """The micro-batch itself."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.layers + self.embeddings + self.head + self.stream


def upper_stream(recipe: Recipe, pairs: int) -> Stream:
    """Return a stream whose pairs are all of seq_len tokens: no micro-batch is larger."""
    tokens = pairs * recipe.data.seq_len
    masked = pairs * _predictions(recipe, recipe.data.seq_len)
    return Stream(tokens, masked, f"upper bound, {pairs} pairs of {recipe.data.seq_len} tokens")


def mean_stream(recipe: Recipe, pairs: int, tokens_of_pair: float, source: str) -> Stream:
    """Return the stream of a micro-batch of average pairs.

    The ranks deal a batch by length, so that its micro-batches hold nearly as many tokens.
    """
    tokens = min(round(pairs * tokens_of_pair), pairs * recipe.data.seq_len)
    return Stream(tokens, max(pairs, round(tokens * recipe.data.mlm_probability)), source)


def _predictions(recipe: Recipe, length: int) -> int:
    specials = 3 if recipe.data.nsp else 2
    return int(num_predictions([length], recipe.data.mlm_probability, specials)[0])


def activations(recipe: Recipe, vocab_size: int, stream: Stream, size: int, *, checkpointing: bool) -> Activations:
    """Return what a micro-batch keeps.

    Args:
        recipe: model and data.
        vocab_size: rows of the word table.
        stream: the micro-batch.
        size: bytes of a parameter.
        checkpointing: whether each layer keeps its input alone and is computed again in the backward pass, one at a
            time.
    """
    model, tokens = recipe.model, stream.tokens
    hidden = tokens * model.hidden_size
    masks = 2 * hidden if model.hidden_dropout_prob else 0
    layer = (8 * hidden + 2 * tokens * model.intermediate_size) * size + masks
    layer += 4 * tokens * model.num_attention_heads  # log-sum-exp of attention, fp32
    layers = model.num_hidden_layers * (hidden * size if checkpointing else layer)
    if checkpointing:
        layers += layer
    # The logits, and in fp32 a copy, the log of the softmax and their gradient; the head's own layers.
    logits = stream.masked_tokens * vocab_size * (size + (8 if size < 4 else 4))
    return Activations(
        layers=layers,
        embeddings=2 * hidden * size + masks // 2,
        head=logits + 4 * stream.masked_tokens * model.hidden_size * size,
        stream=tokens * _BYTES_OF_ID * _ID_ARRAYS + 2 * stream.masked_tokens * _BYTES_OF_ID,
    )
