"""Held-out MLM and NSP: what the model makes of text that it never trained on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from pretrain.data.stream import MicroBatch
from pretrain.forward import forward_sums
from pretrain.metrics import LossMeter
from pretrain.model.compiling import as_they_are

if TYPE_CHECKING:
    from deepspeed.runtime.engine import DeepSpeedEngine


@torch.no_grad()
def evaluate(engine: DeepSpeedEngine, micro_batches: Iterable[MicroBatch], device: torch.device) -> dict[str, float]:
    """Run the validation pairs through the model, without dropout; every rank must call.

    Args:
        engine: of the run; it is in training mode again afterwards.
        micro_batches: this rank's; the same number on every rank.
        device: of the engine.

    Returns:
        eval/loss, eval/mlm_loss, eval/mlm_accuracy, eval/nsp_loss, eval/nsp_accuracy: means over all masked tokens and
        all pairs of all ranks, not means of micro-batches' means.
    """
    meter = LossMeter(device)
    engine.eval()
    with as_they_are(engine):
        for micro_batch in micro_batches:
            meter.add(forward_sums(engine, micro_batch, device))
    engine.train()
    return meter.reduce("eval")
