"""The pretraining loss, exact over the global batch however it is split.

The loss of a step is (mean over all masked tokens of the global batch) + (mean over all its pairs), Devlin et al. 2018,
section 3.1. A micro-batch sees a part of both, so its share is a sum divided by the *global* counts, which every rank
knows from the epoch plan without communication. DeepSpeed then divides by gradient_accumulation_steps and averages over
the ranks; the share is multiplied by both first, so that the sum over all micro-batches is the step's loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pretrain.model.cpu.functions import FUSED_DTYPES, CrossEntropy, call

IGNORE_INDEX = -100
"""A label that takes no loss."""


@dataclass(frozen=True)
class LossSums:
    """Sums of one micro-batch; float32 scalars on its device, detached but for the two losses."""

    mlm_loss: Tensor
    """Sum of the cross-entropy over the masked tokens, nats."""
    nsp_loss: Tensor
    """Sum of the cross-entropy over the pairs, nats; 0 without NSP."""
    mlm_correct: Tensor
    mlm_tokens: Tensor
    nsp_correct: Tensor
    nsp_pairs: Tensor


def _sums(logits: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    counted = (labels != IGNORE_INDEX).sum().float()
    if logits.device.type == "cpu" and logits.dtype in FUSED_DTYPES and logits.grad_fn is not None:
        loss, correct = call(CrossEntropy, logits, labels, num_classes, IGNORE_INDEX)
        return loss, correct, counted
    logits = logits[:, :num_classes]
    # fp32: half precision cannot hold a sum over 30,000 exponentials.
    logits = logits.float()
    loss = cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum")
    with torch.no_grad():
        correct = (logits.argmax(dim=-1) == labels).sum().float()
    return loss, correct, counted


def loss_sums(
    mlm_logits: Tensor,
    labels: Tensor,
    nsp_logits: Tensor | None,
    next_sentence_label: Tensor | None,
    vocab_size: int | None = None,
) -> LossSums:
    """Sum the two cross-entropies of a micro-batch.

    A micro-batch where nothing is masked gives 0 with a gradient of 0, never NaN.

    Args:
        mlm_logits: floating (M, V), at the masked positions alone; on a CPU their memory is taken for their gradient.
        labels: int64 (M,), the tokens that were there; IGNORE_INDEX takes no loss.
        nsp_logits: floating (P, 2), or None without NSP; on a CPU their memory is taken as well.
        next_sentence_label: int64 (P,), 0 = B follows A, 1 = random; IGNORE_INDEX takes no loss.
        vocab_size: columns of mlm_logits beyond are padding; None: there is none.

    Returns:
        Sums (not means) and counts.
    """
    mlm_loss, mlm_correct, mlm_tokens = _sums(
        mlm_logits, labels, mlm_logits.shape[1] if vocab_size is None else vocab_size
    )
    if nsp_logits is None or next_sentence_label is None:
        zero = torch.zeros((), device=mlm_loss.device)
        return LossSums(mlm_loss, zero, mlm_correct, mlm_tokens, zero, zero)
    nsp_loss, nsp_correct, nsp_pairs = _sums(nsp_logits, next_sentence_label, nsp_logits.shape[1])
    return LossSums(mlm_loss, nsp_loss, mlm_correct, mlm_tokens, nsp_correct, nsp_pairs)


def micro_batch_loss(
    sums: LossSums, *, global_masked_tokens: int, global_pairs: int, world_size: int, accumulation: int
) -> Tensor:
    """Return the loss to hand to `engine.backward` for one micro-batch.

    Args:
        sums: of this micro-batch.
        global_masked_tokens: masked tokens of the whole global batch, all ranks and micro-steps.
        global_pairs: pairs of the whole global batch (train_batch_size).
        world_size: ranks over which the engine averages gradients.
        accumulation: gradient_accumulation_steps, by which the engine divides.

    Returns:
        float32 scalar: world_size · accumulation · (Σ mlm / global masked tokens + Σ nsp / global pairs).
    """
    share = sums.mlm_loss / max(1, global_masked_tokens) + sums.nsp_loss / max(1, global_pairs)
    return share * (world_size * accumulation)
