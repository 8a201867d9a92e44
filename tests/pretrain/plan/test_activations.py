from __future__ import annotations

import pytest
import torch
from transformers import BertConfig

from benchmarks.samples import make_micro_batch
from pretrain.forward import forward_sums
from pretrain.model.bert import StreamBert
from pretrain.model.cpu import encoder
from pretrain.plan.activations import Stream, activations, mean_stream, upper_stream
from pretrain.recipe import Recipe

LAYERS, HIDDEN, HEADS, VOCAB = 4, 64, 4, 128


def recipe(**model):
    values = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    return Recipe.model_validate(
        {
            "name": "x",
            "tokenizer": "t",
            "shards": "s",
            "model": values | {"intermediate_size": 4 * HIDDEN, "attention_probs_dropout_prob": 0.0} | model,
            "data": {"seq_len": 128},
            "training": {"steps": 1},
        }
    )


def test_34_bytes_a_token_layer_and_element_in_half_precision():
    found = activations(recipe(), VOCAB, Stream(1000, 150, ""), 2, checkpointing=False)
    assert found.layers == LAYERS * (34 * 1000 * HIDDEN + 4 * 1000 * HEADS)
    without = activations(recipe(hidden_dropout_prob=0.0), VOCAB, Stream(1000, 150, ""), 2, checkpointing=False)
    assert without.layers == LAYERS * (32 * 1000 * HIDDEN + 4 * 1000 * HEADS)


def test_checkpointing_keeps_the_inputs_and_one_layer():
    found = activations(recipe(), VOCAB, Stream(1000, 150, ""), 2, checkpointing=True)
    assert found.layers == LAYERS * 2 * 1000 * HIDDEN + 34 * 1000 * HIDDEN + 4 * 1000 * HEADS


def test_streams():
    # case M3: 128 tokens have 19 predictions
    upper = upper_stream(recipe(), 10)
    assert (upper.tokens, upper.masked_tokens) == (1280, 190)
    assert mean_stream(recipe(), 10, 100.0, "counted").tokens == 1000


def saved_bytes(model, micro_batch) -> int:
    """Return the bytes that autograd keeps for the backward, parameters not counted."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = tensor  # alive, or its address would come again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        sums = forward_sums(model, micro_batch, torch.device("cpu"))
    del sums
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_estimate_is_what_autograd_keeps(dtype, monkeypatch):
    """No dropout: on a CPU its mask is as wide as its input, on a GPU a byte. The fused CPU way keeps less."""
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * HIDDEN,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = StreamBert(config).to(dtype).train()
    micro_batch = make_micro_batch([128] * 8, VOCAB)
    stream = Stream(1024, len(micro_batch.labels), "")
    planned = activations(recipe(hidden_dropout_prob=0.0), VOCAB, stream, dtype.itemsize, checkpointing=False)
    assert saved_bytes(model, micro_batch) <= planned.total
    monkeypatch.setattr(encoder, "is_supported", lambda _: False)
    assert saved_bytes(model, micro_batch) == pytest.approx(planned.total, rel=0.15)
