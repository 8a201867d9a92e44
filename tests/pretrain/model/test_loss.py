"""The loss: exact over the global batch, however it is split."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pretrain.model.loss import IGNORE_INDEX, LossSums, loss_sums, micro_batch_loss


def _logits_of_loss(losses: list[float]) -> tuple[Tensor, Tensor]:
    """Return two-class logits and labels whose cross-entropies are the given ones."""
    # log(1 + e^x) = loss  <=>  x = log(e^loss - 1)
    gaps = [math.log(math.expm1(loss)) for loss in losses]
    return torch.tensor([[0.0, gap] for gap in gaps], requires_grad=True), torch.zeros(len(losses), dtype=torch.long)


def _mlm_alone(losses: list[float]) -> LossSums:
    logits, labels = _logits_of_loss(losses)
    return loss_sums(logits, labels, None, None)


def test_sums_by_hand():
    logits = torch.tensor([[0.0, 0.0, 0.0], [0.0, math.log(2), 0.0], [5.0, 0.0, 0.0]])
    nsp = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    sums = loss_sums(logits, torch.tensor([0, 1, IGNORE_INDEX]), nsp, torch.tensor([1, 0]))
    assert sums.mlm_loss.item() == pytest.approx(math.log(3) + math.log(2))  # 1/3 and 2/4
    assert sums.mlm_tokens.item() == 2
    assert sums.mlm_correct.item() == 2
    assert sums.nsp_loss.item() == pytest.approx(math.log(2) + math.log(4 / 3))
    assert sums.nsp_pairs.item() == 2
    assert sums.nsp_correct.item() == 1
    assert all(value.dtype == torch.float32 and value.ndim == 0 for value in vars(sums).values())


def test_the_label_without_loss_is_hugging_face_s():
    assert IGNORE_INDEX == -100


def test_m8_the_mean_is_over_tokens_not_over_micro_batches():
    """Case M8: 3 masked tokens of loss 4.0, and 1 of loss 1.0, give 3.25, not 2.5."""
    parts = [
        micro_batch_loss(_mlm_alone(losses), global_masked_tokens=4, global_pairs=2, world_size=1, accumulation=2)
        for losses in ([4.0] * 3, [1.0])
    ]
    assert sum(part.item() / 2 for part in parts) == pytest.approx(3.25, abs=1e-5)  # DeepSpeed divides by 2
    ranks = [
        micro_batch_loss(_mlm_alone(losses), global_masked_tokens=4, global_pairs=2, world_size=2, accumulation=1)
        for losses in ([4.0] * 3, [1.0])
    ]
    assert sum(rank.item() for rank in ranks) / 2 == pytest.approx(3.25, abs=1e-5)  # and averages over ranks


@pytest.mark.parametrize("masked", [0, 3])
def test_m4_nothing_masked_gives_0_and_never_nan(masked: int):
    """Case M4: no masked position at all, or labels without loss."""
    logits = torch.randn(masked, 7, requires_grad=True)
    sums = loss_sums(logits, torch.full((masked,), IGNORE_INDEX), None, None)
    loss = micro_batch_loss(sums, global_masked_tokens=0, global_pairs=0, world_size=2, accumulation=2)
    assert loss.item() == 0.0
    loss.backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))
    assert sums.mlm_tokens.item() == sums.mlm_correct.item() == 0


def test_m4_through_the_model(bench):
    model, pairs = bench.model(nsp=False), bench.pairs([9, 7], masked=0)
    output = bench.run(model, pairs)
    assert output.mlm_logits.shape == (0, bench.real_vocab)
    sums = loss_sums(output.mlm_logits, pairs.masked_labels, None, None)
    loss = micro_batch_loss(sums, global_masked_tokens=10, global_pairs=4, world_size=1, accumulation=1)
    assert loss.item() == 0.0
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(torch.count_nonzero(gradient) == 0 for gradient in gradients)


def test_n5_a_constant_nsp_head_on_balanced_labels_gives_ln_2():
    """Case N5."""
    sums = loss_sums(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long), torch.full((8, 2), 1.7), torch.arange(8) % 2)
    assert (sums.nsp_loss / sums.nsp_pairs).item() == pytest.approx(0.6931, abs=1e-4)


def test_n5_labels_of_one_kind_still_give_the_nsp_head_a_gradient(bench):
    """Case N5."""
    model, pairs = bench.model(), bench.pairs([9, 7, 7])
    output = bench.run(model, pairs)
    sums = loss_sums(output.mlm_logits, pairs.masked_labels, output.nsp_logits, torch.zeros(3, dtype=torch.long))
    micro_batch_loss(sums, global_masked_tokens=6, global_pairs=3, world_size=1, accumulation=1).backward()
    assert model.cls.seq_relationship.weight.grad.abs().max() > 1e-4
    assert model.bert.pooler.dense.weight.grad.abs().max() > 1e-4


def test_without_nsp_the_loss_is_mlm_s_alone():
    logits = torch.randn(4, 6)
    labels = torch.tensor([1, 2, 3, IGNORE_INDEX])
    for nsp_logits, nsp_label in ((None, None), (torch.randn(2, 2), None), (None, torch.tensor([0, 1]))):
        sums = loss_sums(logits, labels, nsp_logits, nsp_label)
        assert sums.nsp_loss.item() == sums.nsp_pairs.item() == sums.nsp_correct.item() == 0.0
        loss = micro_batch_loss(sums, global_masked_tokens=3, global_pairs=2, world_size=1, accumulation=1)
        assert loss.item() == pytest.approx(cross_entropy(logits[:3], labels[:3]).item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_summed_in_fp32(dtype: torch.dtype):
    logits = torch.randn(64, 3000, generator=torch.Generator().manual_seed(0)).to(dtype)
    labels = torch.arange(64)
    sums = loss_sums(logits, labels, None, None)
    assert sums.mlm_loss.dtype == torch.float32
    expected = cross_entropy(logits.double(), labels, reduction="sum")
    assert sums.mlm_loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_only_the_two_losses_carry_gradients():
    logits, labels = _logits_of_loss([1.0, 2.0])
    sums = loss_sums(logits, labels, logits * 2, labels)
    assert {name for name, value in vars(sums).items() if value.requires_grad} == {"mlm_loss", "nsp_loss"}


# (pairs of each micro-batch of rank 0, of rank 1, …): unequal in pairs, tokens and masked tokens
SPLITS = [
    pytest.param([[[0, 10]]], id="1 rank x 1"),
    pytest.param([[[0, 3], [3, 10]]], id="1 rank x 2"),
    pytest.param([[[0, 1], [1, 2], [2, 6], [6, 10]]], id="1 rank x 4"),
    pytest.param([[[0, 7]], [[7, 10]]], id="2 ranks x 1"),
    pytest.param([[[0, 1], [1, 4]], [[4, 9], [9, 10]]], id="2 ranks x 2"),
    pytest.param([[[0, 1]], [[1, 3]], [[3, 4]], [[4, 10]]], id="4 ranks x 1"),
    pytest.param([[[0, 1], [1, 2]], [[2, 5], [5, 6]], [[6, 7], [7, 8]], [[8, 9], [9, 10]]], id="4 ranks x 2"),
]


@pytest.mark.parametrize("split", SPLITS)
def test_token_exactness(bench, split: list[list[list[int]]]):
    """Invariant 3: the step's gradient is that of one plain batch, for any split into ranks and micro-batches."""
    pairs = bench.pairs([9, 9, 5, 14, 14, 6, 11, 20, 5, 8], masked=2)
    pairs.labels[3][:] = -100  # nothing masked in one pair, everything in another
    pairs.labels[7] = pairs.input_ids[7].clone()
    masked = len(pairs.masked_labels)

    plain = bench.model()
    output = bench.run(plain, pairs)
    loss = cross_entropy(output.mlm_logits, pairs.masked_labels) + cross_entropy(
        output.nsp_logits, pairs.next_sentence_label
    )
    loss.backward()

    model = bench.model()  # its .grad collects what DeepSpeed would: mean over ranks of Σ loss / accumulation
    world_size, accumulation, step_loss = len(split), len(split[0]), 0.0
    for rank in split:
        for first, last in rank:
            part = pairs[first:last]
            output = bench.run(model, part)
            sums = loss_sums(output.mlm_logits, part.masked_labels, output.nsp_logits, part.next_sentence_label)
            share = micro_batch_loss(
                sums,
                global_masked_tokens=masked,
                global_pairs=len(pairs),
                world_size=world_size,
                accumulation=accumulation,
            )
            share = share / accumulation / world_size
            share.backward()
            step_loss += share.item()
    assert step_loss == pytest.approx(loss.item(), abs=1e-6)
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            ours.grad, theirs.grad, atol=1e-6, rtol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
        )
