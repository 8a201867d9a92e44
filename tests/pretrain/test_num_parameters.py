from __future__ import annotations

import pytest
import torch
from transformers import BertConfig

from pretrain.model.bert import StreamBert
from pretrain.parameters import num_parameters_of
from pretrain.recipe import ModelSettings

LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
TINY = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 40}


@pytest.mark.parametrize(("shape", "size"), [({}, 30522), (LARGE, 30522), (TINY, 61)], ids=["base", "large", "tiny"])
def test_the_formula_counts_what_the_model_has(shape, size):
    """Case O1: BERT-base has 110 million parameters, a fifth of DeepSpeed's default bucket."""
    with torch.device("meta"):
        model = StreamBert(BertConfig(vocab_size=-(-size // 64) * 64, **shape), size)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert num_parameters_of(ModelSettings(**shape), size) == counted


def test_vocab_size_of_the_recipe_makes_the_table_larger():
    small, large = ModelSettings(**TINY), ModelSettings(**TINY, vocab_size=640)
    rows = 640 - 64
    assert num_parameters_of(large, 61) - num_parameters_of(small, 61) == rows * 16 + rows
