"""Engines around a tiny BERT, in this process's own group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import BertConfig

from pretrain.model.bert import StreamBert


@pytest.fixture(scope="session")
def tiny_bert() -> Callable[[], StreamBert]:
    """Maker of a StreamBert of 64 tokens, the same each time, without dropout."""

    def make() -> StreamBert:
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=64,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        return StreamBert(config)

    return make


@pytest.fixture
def make_engine(one_rank: torch.device, tiny_bert: Callable[[], StreamBert]) -> Any:
    """Maker of a real engine from a resolved JSON."""
    from pretrain.engine.build import build_engine

    return lambda config: build_engine(tiny_bert(), config)
