from __future__ import annotations

import pytest
import torch
from transformers import BertConfig

from pretrain.engine.optim import named_groups
from pretrain.model.bert import StreamBert
from pretrain.parameters import PARTS, bert_parameters, count_by_part, groups_of
from pretrain.recipe import ModelSettings


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "intermediate", "positions", "vocab"),
    [(1, 8, 2, 12, 16, 64), (3, 36, 4, 52, 40, 128), (12, 768, 12, 3072, 512, 30528), (24, 1024, 16, 4096, 512, 30528)],
)
def test_names_shapes_and_order_are_the_models(layers, hidden, heads, intermediate, positions, vocab):
    settings = ModelSettings(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=intermediate,
        max_position_embeddings=positions,
    )
    with torch.device("meta"):
        model = StreamBert(
            BertConfig(
                vocab_size=vocab,
                hidden_size=hidden,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                intermediate_size=intermediate,
                max_position_embeddings=positions,
            )
        )
    parameters = bert_parameters(settings, vocab)
    real = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    assert [(p.name, p.shape) for p in parameters] == real
    assert [[p.name for p in group] for group in groups_of(parameters)] == [
        [name for name, _ in group] for group in named_groups(model)
    ]
    modules = [model.bert.embeddings, model.bert.encoder, model.bert.pooler, None, model.cls.seq_relationship]
    for part, module in zip(PARTS, modules, strict=True):
        if module is not None:
            assert count_by_part(parameters)[part] == sum(p.numel() for p in module.parameters())


def test_bert_base_has_the_published_size():
    # Devlin et al. 2018: 110M. 30,522 rows: 109,482,240 of the encoder with its pooler; the MLM head adds 622,650 and
    # NSP 1,538.
    counts = count_by_part(bert_parameters(ModelSettings(), 30_522))
    assert counts["embeddings"] + counts["encoder"] + counts["pooler"] == 109_482_240
    assert counts["MLM head"] == 768 * 768 + 768 + 2 * 768 + 30_522
    assert counts["NSP head"] == 1_538
