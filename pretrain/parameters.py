"""The parameters of the model by formula: names, sizes and order of `StreamBert`'s, without making one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pretrain.model.bert import padded_vocab_size
from pretrain.recipe import ModelSettings

PARTS = ("embeddings", "encoder", "pooler", "MLM head", "NSP head")
_TOKEN_TYPES = 2


@dataclass(frozen=True)
class Parameter:
    """One tensor of the model."""

    name: str
    shape: tuple[int, ...]
    part: str
    """One of PARTS. The MLM decoder is the word table, which counts once, among the embeddings."""

    @property
    def numel(self) -> int:
        """Its elements."""
        return math.prod(self.shape)


def bert_parameters(model: ModelSettings, vocab_size: int) -> list[Parameter]:
    """Return the parameters in the order of the model's `named_parameters`, tied ones once.

    Args:
        model: of the recipe.
        vocab_size: rows of the word table, padding counted.
    """
    hidden = model.hidden_size
    made = [
        Parameter(f"bert.embeddings.{name}_embeddings.weight", (rows, hidden), "embeddings")
        for name, rows in (
            ("word", vocab_size),
            ("position", model.max_position_embeddings),
            ("token_type", _TOKEN_TYPES),
        )
    ]
    made += _norm("bert.embeddings.LayerNorm", hidden, "embeddings")
    for layer in range(model.num_hidden_layers):
        made += _layer(f"bert.encoder.layer.{layer}", hidden, model.intermediate_size)
    made += _linear("bert.pooler.dense", hidden, hidden, "pooler")
    made.append(Parameter("cls.predictions.bias", (vocab_size,), "MLM head"))
    made += _linear("cls.predictions.transform.dense", hidden, hidden, "MLM head")
    made += _norm("cls.predictions.transform.LayerNorm", hidden, "MLM head")
    made += _linear("cls.seq_relationship", hidden, 2, "NSP head")
    return made


def num_parameters_of(model: ModelSettings, tokenizer_size: int) -> int:
    """Return the elements of a `StreamBert`, the decoder tied to the embedding counted once.

    Args:
        model: its shape.
        tokenizer_size: tokens; the table is at least model.vocab_size and padded to a multiple.
    """
    rows = padded_vocab_size(max(model.vocab_size or 0, tokenizer_size))
    return sum(parameter.numel for parameter in bert_parameters(model, rows))


def count_by_part(parameters: Sequence[Parameter]) -> dict[str, int]:
    """Return the elements of each of PARTS."""
    return {part: sum(p.numel for p in parameters if p.part == part) for part in PARTS}


def groups_of(parameters: Sequence[Parameter]) -> list[list[Parameter]]:
    """Return the optimizer's groups: with weight decay, without (1-D), as `pretrain.engine.optim` makes them."""
    return [[p for p in parameters if len(p.shape) > 1], [p for p in parameters if len(p.shape) <= 1]]


def _linear(name: str, inputs: int, outputs: int, part: str) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (outputs, inputs), part)
    yield Parameter(f"{name}.bias", (outputs,), part)


def _norm(name: str, width: int, part: str) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (width,), part)
    yield Parameter(f"{name}.bias", (width,), part)


def _layer(name: str, hidden: int, intermediate: int) -> Iterator[Parameter]:
    for of in ("query", "key", "value"):
        yield from _linear(f"{name}.attention.self.{of}", hidden, hidden, "encoder")
    yield from _linear(f"{name}.attention.output.dense", hidden, hidden, "encoder")
    yield from _norm(f"{name}.attention.output.LayerNorm", hidden, "encoder")
    yield from _linear(f"{name}.intermediate.dense", hidden, intermediate, "encoder")
    yield from _linear(f"{name}.output.dense", intermediate, hidden, "encoder")
    yield from _norm(f"{name}.output.LayerNorm", hidden, "encoder")
