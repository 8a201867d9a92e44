"""bert-pytorch 0.0.1a4 as published, with the losses of its own trainer."""

from __future__ import annotations

import importlib
import sys

import torch
from torch import Tensor, nn
from transformers import BertConfig

from benchmarks import fetch, harness
from pretrain.data.stream import IGNORE_INDEX, MicroBatch

_NO_LOSS = 0
"""Its label of tokens that take no loss."""


class CodertimoStep:
    """Forward and backward of its BERTLM on padded rows.

    Args:
        config: size of the model; its position table is a formula, its layers are pre-normed.
        rows: padded rows as `benchmarks.samples.padded` gives them.
    """

    def __init__(self, config: BertConfig, rows: dict[str, Tensor]) -> None:
        package = fetch.peer("bert-pytorch")
        sys.path.insert(0, str(package))
        try:
            model = importlib.import_module("bert_pytorch.model")
        finally:
            sys.path.remove(str(package))
        self.name = f"bert-pytorch {fetch.PEERS['bert-pytorch']} with its losses"
        torch.manual_seed(0)
        bert = model.BERT(
            config.vocab_size,
            hidden=config.hidden_size,
            n_layers=config.num_hidden_layers,
            attn_heads=config.num_attention_heads,
            dropout=config.hidden_dropout_prob,
        )
        self.model: nn.Module = model.BERTLM(bert, config.vocab_size).train()
        # One loss for both heads, as its trainer has it.
        self._loss = nn.NLLLoss(ignore_index=_NO_LOSS)
        mask = rows["attention_mask"]
        self._ids = rows["input_ids"]
        self._segments = (rows["token_type_ids"] + 1) * mask
        self._labels = torch.where(rows["labels"] == IGNORE_INDEX, _NO_LOSS, rows["labels"])
        self._is_next = 1 - rows["next_sentence_label"]

    def run(self) -> Tensor:
        """Return the loss of one forward and backward."""
        self.model.zero_grad(set_to_none=True)
        is_next, words = self.model(self._ids, self._segments)
        loss: Tensor = self._loss(is_next, self._is_next) + self._loss(words.transpose(1, 2), self._labels)
        torch.autograd.backward(loss)
        return loss.detach()

    def equality(self, micro_batch: MicroBatch) -> str:
        """Say what is equal: the samples and what is predicted of them.

        Raises:
            UnequalError: they are not.
        """
        masked = int((self._labels != _NO_LOSS).sum())
        tokens = int((self._segments > 0).sum())
        if masked != len(micro_batch.labels) or tokens != micro_batch.num_tokens:
            raise harness.UnequalError(f"bert-pytorch: {tokens} tokens, {masked} masked")
        return f"{tokens:,} tokens, {masked:,} of them predicted (another model of this size)"
