"""Token streams and the stock model that each of their pairs is run through alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForPreTraining

from pretrain.model.bert import StreamBert, StreamOutput

REAL_VOCAB = 90
PADDED_VOCAB = 128
MASK_ID = 4


@dataclass
class Pairs:
    """Pairs of random tokens, with what is to be predicted."""

    input_ids: list[Tensor]
    """int64 (length,) each, masked."""
    token_type_ids: list[Tensor]
    labels: list[Tensor]
    """int64 (length,): the token that was there, -100 elsewhere."""
    next_sentence_label: Tensor

    def __getitem__(self, which: slice) -> Pairs:
        return Pairs(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def lengths(self) -> list[int]:
        return [len(ids) for ids in self.input_ids]

    @property
    def masked_positions(self) -> Tensor:
        return (self._labels() != -100).nonzero().squeeze(1)

    @property
    def masked_labels(self) -> Tensor:
        return self._labels()[self.masked_positions]

    def _labels(self) -> Tensor:
        return torch.cat(self.labels) if self.labels else torch.zeros(0, dtype=torch.long)

    def stream(self) -> dict[str, Any]:
        """Return the arguments of StreamBert.forward."""
        return {
            "input_ids": torch.cat(self.input_ids)[None],
            "token_type_ids": torch.cat(self.token_type_ids)[None],
            "position_ids": torch.cat([torch.arange(length) for length in self.lengths])[None],
            "cu_seqlens": torch.tensor([0, *self.lengths]).cumsum(0).int(),
            "masked_positions": self.masked_positions,
            "pair_lengths": self.lengths,
        }

    def padded(self) -> dict[str, Tensor]:
        """Return the arguments of the stock model: rows padded to the longest pair."""
        pad = torch.nn.utils.rnn.pad_sequence
        return {
            "input_ids": pad(self.input_ids, batch_first=True),
            "token_type_ids": pad(self.token_type_ids, batch_first=True),
            "attention_mask": pad([torch.ones_like(ids) for ids in self.input_ids], batch_first=True),
        }


class Bench:
    """Makes tiny models and their input."""

    real_vocab = REAL_VOCAB
    padded_vocab = PADDED_VOCAB

    def config(self, **changes: Any) -> BertConfig:
        settings = {
            "vocab_size": PADDED_VOCAB,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            # Weights far from 0: attention and labels matter, so a leak between pairs is not lost in rounding.
            "initializer_range": 0.2,
        }
        return BertConfig(**{**settings, **changes})

    def model(
        self, *, seed: int = 0, nsp: bool = True, vocab_size: int | None = REAL_VOCAB, **changes: Any
    ) -> StreamBert:
        torch.manual_seed(seed)
        model = StreamBert(self.config(**changes), vocab_size, nsp=nsp)
        with torch.no_grad():  # biases and LayerNorm start at 0 and 1, where mistakes would not show
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        return model

    def stock(self, model: StreamBert) -> BertForPreTraining:
        """Return transformers' own class with the same weights."""
        config = type(model.config)(**model.config.to_diff_dict())
        config._attn_implementation = "eager"
        stock = BertForPreTraining(config)
        stock.load_state_dict(model.state_dict())
        return stock.train(model.training)

    def pairs(self, lengths: Sequence[int], *, seed: int = 0, masked: int = 2) -> Pairs:
        """Draw pairs; `masked` tokens of each are hidden."""
        generator = torch.Generator().manual_seed(seed)
        pairs = Pairs([], [], [], torch.randint(0, 2, (len(lengths),), generator=generator))
        for length in lengths:
            ids = torch.randint(5, REAL_VOCAB, (length,), generator=generator)
            first = int(torch.randint(1, length, (), generator=generator))
            labels = torch.full((length,), -100)
            hidden = torch.randperm(length, generator=generator)[:masked]
            labels[hidden] = ids[hidden]
            ids = ids.clone()
            ids[hidden] = MASK_ID
            pairs.input_ids.append(ids)
            pairs.token_type_ids.append((torch.arange(length) >= first).long())
            pairs.labels.append(labels)
        return pairs

    def run(self, model: Any, pairs: Pairs) -> StreamOutput:
        return model(**pairs.stream())


@pytest.fixture(scope="session")
def bench() -> Bench:
    torch.set_num_threads(1)  # on tensors this small, threads wait for each other
    return Bench()
