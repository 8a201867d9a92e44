"""The stock encoder's weights, run on a CPU by the fused functions.

What differs from transformers' layers is the way, not the result: attention runs over the pairs of the stream, dropout
keeps no mask and is a part of what stands beside it, GELU is computed twice rather than kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, layer_norm, linear
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig

from pretrain.model.attention import StreamLayout
from pretrain.model.cpu.functions import (
    FUSED_DTYPES,
    Attend,
    Drop,
    DropAddNorm,
    GeluLinear,
    Projections,
    WordEmbedding,
    call,
)


def is_supported(model: Any) -> bool:
    """Whether a BertModel can run here: on a CPU, in float32 or bfloat16, with GELU, its weights whole.

    ZeRO stage 3 gathers a layer's weights when the layer is called, so there its layers must be called. Autocast, which
    gives every operator a type of its own, is for the layers of torch.
    """
    if torch.is_autocast_enabled("cpu"):
        return False
    weight = model.embeddings.word_embeddings.weight
    is_whole = not hasattr(weight, "ds_id")
    return (
        weight.device.type == "cpu" and weight.dtype in FUSED_DTYPES and is_whole and model.config.hidden_act == "gelu"
    )


def embed(
    embeddings: Any,
    table: Tensor,
    ids: tuple[Tensor, Tensor, Tensor],
    config: BertConfig,
) -> Tensor:
    """Return the embeddings of a stream.

    Args:
        embeddings: transformers' BertEmbeddings.
        table: its word table (V, H), or one that stands for it.
        ids: int64 (T,) each: tokens, types and positions.
        config: of the model.

    Returns:
        (T, H).
    """
    norm: nn.LayerNorm = embeddings.LayerNorm
    input_ids, token_type_ids, position_ids = ids
    total: Tensor = call(WordEmbedding, input_ids, table)
    total = total + embedding(token_type_ids, embeddings.token_type_embeddings.weight)
    total = total + embedding(position_ids, embeddings.position_embeddings.weight)
    hidden = layer_norm(total, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    if embeddings.training and config.hidden_dropout_prob:
        hidden = call(Drop, hidden, config.hidden_dropout_prob)
    return hidden


def encode(encoder: Any, hidden: Tensor, layout: StreamLayout, config: BertConfig) -> Tensor:
    """Run all layers; a layer is computed again in backward where activations are checkpointed.

    Args:
        encoder: transformers' BertEncoder.
        hidden: (T, H), float32 or bfloat16.
        layout: where the pairs lie.
        config: of the model.

    Returns:
        (T, H).
    """
    for layer in encoder.layer:
        if layer.gradient_checkpointing and layer.training and torch.is_grad_enabled():
            hidden = checkpoint(_run_layer, layer, hidden, layout, config, use_reentrant=False)
        else:
            hidden = _run_layer(layer, hidden, layout, config)
    return hidden


def _run_layer(layer: Any, hidden: Tensor, layout: StreamLayout, config: BertConfig) -> Tensor:
    projections = (layer.attention.self.query, layer.attention.self.key, layer.attention.self.value)
    parameters = [part.weight for part in projections] + [part.bias for part in projections]
    # (3, T, H) -> (3, T, N, D)
    qkv = call(Projections, hidden, *parameters).view(3, len(hidden), config.num_attention_heads, -1)
    context = call(Attend, qkv, layout.fused_runs, config.attention_probs_dropout_prob if layer.training else 0.0)
    dropout = config.hidden_dropout_prob if layer.training else 0.0
    hidden = _end_half(layer.attention.output, _through(layer.attention.output, context.flatten(1)), hidden, dropout)
    wide = _through(layer.intermediate, hidden)
    output = layer.output
    return _end_half(output, call(GeluLinear, wide, output.dense.weight, output.dense.bias), hidden, dropout)


def _through(module: Any, x: Tensor) -> Tensor:
    return linear(x, module.dense.weight, module.dense.bias)


def _end_half(module: Any, x: Tensor, residual: Tensor, dropout: float) -> Tensor:
    norm: nn.LayerNorm = module.LayerNorm
    out: Tensor = call(DropAddNorm, x, residual, norm.weight, norm.bias, norm.eps, dropout)
    return out
