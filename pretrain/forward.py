"""One micro-batch through the model: where data and model meet."""

from __future__ import annotations

import torch
from torch import nn

from pretrain.data.stream import MicroBatch
from pretrain.model.loss import LossSums, loss_sums


def forward_sums(model: nn.Module, micro_batch: MicroBatch, device: torch.device) -> LossSums:
    """Run a micro-batch and sum its losses.

    Args:
        model: a `StreamBert`, or the engine around it.
        micro_batch: this rank's.
        device: of the model.

    Returns:
        Sums over the micro-batch; the losses carry gradients where the caller's mode allows.
    """
    batch = micro_batch.to_torch(device)
    labels, next_sentence_label = batch.pop("labels"), batch.pop("next_sentence_label")
    # Lengths are taken on the host, so that nothing waits for the device.
    output = model(**batch, pair_lengths=micro_batch.pair_lengths, num_pairs=len(next_sentence_label))
    return loss_sums(
        output.padded_mlm_logits, labels, output.nsp_logits, next_sentence_label, vocab_size=output.vocab_size
    )
