"""The tiny recipe's model and its first global batch, beside transformers' own class on padded rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import BertForPreTraining

from pretrain.data.order import Cursor
from pretrain.data.pairing import PairingSettings
from pretrain.data.reader import TRAIN_SPLIT, PairReader
from pretrain.data.stream import MicroBatch, PairStream
from pretrain.initial import build_model
from pretrain.model.bert import StreamBert, grow_vocabulary
from pretrain.recipe import load_recipe
from pretrain.tokenizer import load_tokenizer_info
from tokenization.manifest import load_manifest

PAIRS = 24
# far from 0, so that a leak between pairs or a wrong weight is not lost in rounding
WEIGHTS = "model.initializer_range=0.2"


def model_maker(recipe_path: Path) -> Callable[..., StreamBert]:
    """Return a maker of the tiny recipe's model, the same weights each time."""

    def make(*settings: str) -> StreamBert:
        recipe = load_recipe(recipe_path, [WEIGHTS, *settings])
        made = build_model(recipe, load_tokenizer_info(recipe.tokenizer)).train()
        torch.manual_seed(1)
        with torch.no_grad():  # biases and LayerNorm start at 0 and 1, where mistakes would not show
            for parameter in made.parameters():
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        return made

    return make


def micro_batch_maker(recipe_path: Path) -> Callable[[int, int], list[list[MicroBatch]]]:
    """Return what gives the first global batch as every rank gets it: (world size, accumulation) -> by rank."""
    recipe = load_recipe(recipe_path)
    reader = PairReader(
        manifest=load_manifest(recipe.shards),
        split=TRAIN_SPLIT,
        pairing=PairingSettings(seed=3, seq_len=48, short_seq_prob=0.5, nsp=True),
        mlm_probability=0.15,
        vocabulary=load_tokenizer_info(recipe.tokenizer).vocabulary,
    )

    def make(world_size: int, accumulation: int) -> list[list[MicroBatch]]:
        streams = [
            PairStream(
                reader=reader,
                train_batch_size=PAIRS,
                train_micro_batch_size_per_gpu=PAIRS // (world_size * accumulation),
                gradient_accumulation_steps=accumulation,
                rank=rank,
                world_size=world_size,
            )
            for rank in range(world_size)
        ]
        return [stream.batch(Cursor())[0] for stream in streams]

    return make


def stock(model: StreamBert, dtype: torch.dtype = torch.float32) -> BertForPreTraining:
    """Return transformers' own class with the same weights, its vocabulary not padded."""
    config = type(model.config)(**model.config.to_diff_dict() | {"vocab_size": model.real_vocab_size})
    config._attn_implementation = "eager"
    plain = BertForPreTraining(config)
    plain.load_state_dict(grow_vocabulary(model.state_dict(), model.real_vocab_size))
    return plain.to(dtype).train(model.training)


def rows(batch: MicroBatch) -> dict[str, Tensor]:
    """Return a stream's pairs as padded rows with labels at every position, in Hugging Face's names."""
    tensors = batch.to_torch("cpu")
    lengths = batch.pair_lengths
    labels = torch.full_like(tensors["input_ids"][0], -100)
    labels[tensors["masked_positions"]] = tensors["labels"]

    def padded(stream: Tensor, value: int) -> Tensor:
        return pad_sequence(torch.split(stream, lengths), batch_first=True, padding_value=value)

    return {
        "input_ids": padded(tensors["input_ids"][0], 0),
        "token_type_ids": padded(tensors["token_type_ids"][0], 0),
        "attention_mask": padded(torch.ones_like(labels), 0),
        "labels": padded(labels, -100),
        "next_sentence_label": tensors["next_sentence_label"],
    }


def cut(whole: MicroBatch, first: int, last: int) -> MicroBatch:
    """Return some of a stream's pairs as a micro-batch of the same global batch."""
    begin, end = whole.cu_seqlens[[first, last]].tolist()
    inside = (whole.masked_positions >= begin) & (whole.masked_positions < end)
    return replace(
        whole,
        input_ids=whole.input_ids[:, begin:end],
        token_type_ids=whole.token_type_ids[:, begin:end],
        position_ids=whole.position_ids[:, begin:end],
        cu_seqlens=whole.cu_seqlens[first : last + 1] - whole.cu_seqlens[first],
        masked_positions=whole.masked_positions[inside] - begin,
        labels=whole.labels[inside],
        next_sentence_label=whole.next_sentence_label[first:last],
    )


def forward(model: StreamBert, batch: MicroBatch) -> Tensor:
    """Return the MLM logits at every token of a stream, (T, V)."""
    tensors = batch.to_torch("cpu")
    given = {name: tensors[name] for name in ("input_ids", "token_type_ids", "position_ids", "cu_seqlens")}
    every_token = torch.arange(batch.num_tokens)
    output: Tensor = model(**given, masked_positions=every_token, pair_lengths=batch.pair_lengths).mlm_logits
    return output


def showing_hidden_states(model: StreamBert) -> StreamBert:
    """Take the MLM head off: what it would get comes out in the place of its logits."""

    def run(ids: Any, masked_positions: Tensor, layout: Any) -> tuple[Tensor, Tensor]:
        hidden, _ = StreamBert._run_fused(model, ids, masked_positions, layout)
        return hidden, hidden.index_select(0, masked_positions)

    model._run_fused = run  # the functions made for a CPU
    model.cls.predictions.forward = lambda hidden: hidden  # the layers' own calls
    return model
