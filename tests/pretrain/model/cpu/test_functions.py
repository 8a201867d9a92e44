"""The fused functions against torch's own, with the same dropout masks, in float32 and bfloat16."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding, gelu, layer_norm, linear

from pretrain.model.cpu.functions import (
    Attend,
    CrossEntropy,
    Drop,
    DropAddNorm,
    GeluLinear,
    Projections,
    TwoUses,
    WordEmbedding,
    _pool,
)

TOKENS, WIDTH = 37, 48
# A reference in float64 from the same inputs: what is left is the rounding of one result.
CLOSE = {torch.float32: {"atol": 2e-5, "rtol": 2e-5}, torch.bfloat16: {"atol": 3e-2, "rtol": 2e-2}}
DTYPES = list(CLOSE)


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_()


def mask_of(shape: tuple[int, int], dropout: float) -> Tensor:
    """Return what the next function with rows of that width will multiply by."""
    state = torch.get_rng_state()
    mask = Drop.apply(torch.ones(shape), dropout)
    torch.set_rng_state(state)
    return mask.double()


def check(function: Callable[..., Tensor], reference: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    """Compare the result and all gradients."""
    dtype = inputs[0].dtype
    out = function(*inputs)
    slope = draw(*out.shape, dtype=dtype, seed=9).detach()
    grads = torch.autograd.grad(out, inputs, slope)
    doubles = [value.detach().double().requires_grad_() for value in inputs]
    expected = reference(*doubles)
    expected_grads = torch.autograd.grad(expected, doubles, slope.double())
    for actual, wanted in zip((out, *grads), (expected, *expected_grads), strict=True):
        scale = wanted.abs().mean().clamp(min=1.0)
        torch.testing.assert_close(actual.double() / scale, wanted / scale, **CLOSE[dtype])
        assert actual.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_drop_add_norm(dtype, dropout):
    inputs = [draw(TOKENS, WIDTH, dtype=dtype, seed=seed) for seed in (1, 2)]
    inputs += [draw(WIDTH, dtype=dtype, seed=seed) for seed in (3, 4)]
    mask = mask_of((TOKENS, WIDTH), dropout)

    def reference(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return layer_norm(residual + x * mask, (WIDTH,), weight, bias, 1e-12)

    check(lambda *given: DropAddNorm.apply(*given, 1e-12, dropout), reference, inputs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_linear(dtype):
    inputs = [draw(TOKENS, 96, dtype=dtype), draw(WIDTH, 96, dtype=dtype), draw(WIDTH, dtype=dtype)]
    check(GeluLinear.apply, lambda x, weight, bias: linear(gelu(x), weight, bias), inputs)


@pytest.mark.parametrize("value", [-30.0, -6.0, -1e-3, 0.0, 1e-3, 0.5, 6.0, 30.0])
def test_gelu_itself(value):
    x = torch.full((1, 1), value)
    out = GeluLinear.apply(x, torch.ones(1, 1), torch.zeros(1))
    assert out.item() == pytest.approx(value * 0.5 * math.erfc(-value / math.sqrt(2)), abs=2e-7, rel=2e-7)


# Pairs of 2, 5 (three times) and 20 tokens with heads of 4: the last is longer than twice that, and computed again.
RUNS = ((0, 1, 2), (2, 3, 5), (17, 1, 20))


def attend_plainly(qkv: Tensor, masks: list[Tensor]) -> Tensor:
    outputs = []
    for (first, pairs, length), mask in zip(RUNS, masks, strict=True):
        piece = qkv[:, first : first + pairs * length].view(3, pairs, length, 2, 4).transpose(2, 3)
        weights = torch.softmax(piece[0] @ piece[1].transpose(-1, -2) * 4**-0.5, -1) * mask.view(pairs, 2, length, -1)
        outputs.append((weights @ piece[2]).transpose(1, 2).reshape(pairs * length, 2, 4))
    return torch.cat(outputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_inside_each_pair(dtype, dropout):
    state = torch.get_rng_state()
    masks = [Drop.apply(torch.ones(pairs * 2 * length, length), dropout).double() for _, pairs, length in RUNS]
    torch.set_rng_state(state)
    check(
        lambda qkv: Attend.apply(qkv, RUNS, dropout),
        lambda qkv: attend_plainly(qkv, masks),
        [draw(3, 37, 2, 4, dtype=dtype)],
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy(dtype):
    """Row 2 takes no loss; columns 11 and 12 are padding, and one of them the largest."""
    logits = draw(6, 13, dtype=dtype).detach()
    logits[:, 12] = 50.0
    labels = torch.tensor([0, 3, -100, 10, 5, 5])
    labels[4] = logits[4, :11].argmax()
    labels[0] = logits[0, :11].argmin()
    ours = logits.clone().requires_grad_()
    loss, correct = CrossEntropy.apply(ours * 1, labels, 11, -100)
    (loss * 3).backward()
    theirs = logits.double().requires_grad_()
    expected = cross_entropy(theirs[:, :11], labels, reduction="sum", ignore_index=-100)
    (expected * 3).backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert correct.item() == (theirs[:, :11].argmax(1) == labels).sum().item()
    torch.testing.assert_close(ours.grad.double(), theirs.grad, **CLOSE[dtype])
    assert not ours.grad[2].any()
    assert not ours.grad[:, 11:].any()


def test_a_second_backward_is_refused():
    loss, _ = CrossEntropy.apply(draw(2, 4) * 1, torch.tensor([0, 1]), 4, -100)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_a_number_shows(bad, dtype):
    x = torch.zeros(4, 8, dtype=dtype)
    x[1, 3] = bad
    weight, bias = torch.ones(8, dtype=dtype), torch.zeros(8, dtype=dtype)
    assert DropAddNorm.apply(x, torch.zeros_like(x), weight, bias, 1e-12, 0.0)[1].isnan().all()
    assert not GeluLinear.apply(x, weight[None], bias[:1])[1].isfinite().any()
    assert not Drop.apply(x, 0.1)[1, 3].isfinite() or Drop.apply(x, 0.1)[1, 3] == 0
    qkv = torch.ones(3, 4, 1, 8, dtype=dtype)
    qkv[0, 1, 0, 3] = bad
    assert Attend.apply(qkv, ((0, 1, 4),), 0.0)[1].isnan().all()
    logits = x.clone().requires_grad_()
    assert not CrossEntropy.apply(logits * 1, torch.tensor([0, 3, 1, 1]), 8, -100)[0].isfinite()


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_dropout_drops_its_share_and_keeps_the_mean(dropout):
    """1,000 draws of 40 x 50: every place is dropped in its share of the draws, and the mean is the input."""
    torch.manual_seed(3)
    x = torch.full((40, 50), 2.0)
    draws = torch.stack([Drop.apply(x, dropout) for _ in range(1000)])
    share = (draws == 0).float()
    error = math.sqrt(dropout * (1 - dropout) / 1000)
    assert share.mean().item() == pytest.approx(dropout, abs=5 * error / math.sqrt(2000))
    assert (share.mean(0) - dropout).abs().max().item() < 5 * error
    assert draws.mean().item() == pytest.approx(2.0, abs=2 / (1 - dropout) * 5 * error / math.sqrt(2000))
    # neighbours, rows and draws know nothing of each other
    centred = share - dropout
    for shifted in (centred.roll(1, 2), centred.roll(1, 1), centred.roll(1, 0)):
        assert abs((centred * shifted).mean().item()) < 5 * dropout * (1 - dropout) / math.sqrt(share.numel())


def test_dropout_follows_torchs_generator():
    x = torch.ones(30, 40)
    torch.manual_seed(5)
    first, second = Drop.apply(x, 0.2), Drop.apply(x, 0.2)
    torch.manual_seed(5)
    assert torch.equal(Drop.apply(x, 0.2), first)
    assert not torch.equal(first, second)


def test_the_number_of_threads_changes_no_mask_and_no_value():
    inputs = [draw(600, 256), draw(600, 256, seed=1), draw(256), draw(256, seed=1)]
    results = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            torch.manual_seed(1)
            out = DropAddNorm.apply(*inputs, 1e-12, 0.2)
            results.append((out, *torch.autograd.grad(out, inputs, inputs[0].detach())))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert torch.equal(other[0], results[0][0])
        assert torch.equal(other[1], results[0][1])
        torch.testing.assert_close(other[3], results[0][3])  # sums over rows, in another order


def test_no_mask_and_no_wide_result_is_kept():
    """Bytes that backward needs: the sum and two numbers a row; GELU's input alone; no weights of long pairs."""
    kept: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        DropAddNorm.apply(draw(TOKENS, WIDTH), draw(TOKENS, WIDTH), draw(WIDTH), draw(WIDTH), 1e-12, 0.1)
        assert sorted(kept) == sorted([TOKENS * WIDTH, WIDTH, TOKENS, TOKENS])
        kept.clear()
        GeluLinear.apply(draw(TOKENS, 96), draw(WIDTH, 96), draw(WIDTH))
        assert sorted(kept) == sorted([TOKENS * 96, WIDTH * 96])
        kept.clear()
        Attend.apply(draw(3, 37, 2, 4), RUNS, 0.1)
        assert sorted(kept) == sorted([37 * 3 * 2 * 4, 2 * 2 * 2, 3 * 2 * 5 * 5])


@pytest.mark.parametrize("dtype", DTYPES)
def test_projections(dtype):
    inputs = [draw(TOKENS, 16, dtype=dtype)]
    inputs += [draw(16, 16, dtype=dtype, seed=seed) for seed in range(3)]
    inputs += [draw(16, dtype=dtype, seed=seed) for seed in range(3)]

    def reference(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.stack([linear(x, parameters[part], parameters[3 + part]) for part in range(3)])

    check(Projections.apply, reference, inputs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_table_with_two_uses(dtype):
    """Ids come several times; both uses give a gradient, or one of them alone."""
    ids = torch.tensor([3, 3, 0, 7, 3])

    def ours(table: Tensor, x: Tensor) -> Tensor:
        words, head = TwoUses.apply(table)
        return WordEmbedding.apply(ids, words) + linear(x, head).sum(1, keepdim=True)

    def plain(table: Tensor, x: Tensor) -> Tensor:
        return embedding(ids, table) + linear(x, table).sum(1, keepdim=True)

    check(ours, plain, [draw(9, 6, dtype=dtype), draw(5, 6, dtype=dtype)])
    for use in (0, 1):
        table = draw(9, 6, dtype=dtype)
        tables = TwoUses.apply(table)
        out = WordEmbedding.apply(ids, tables[0]) if use == 0 else tables[1] * 2
        out.sum().backward()
        expected = torch.bincount(ids, minlength=9)[:, None].expand(9, 6) if use == 0 else torch.full((9, 6), 2)
        assert torch.equal(table.grad, expected.to(dtype))


def test_one_pool_of_threads_serves_matrices_of_all_sizes():
    """A pool made anew for each number of threads would start threads in every layer."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        _pool.cache_clear()
        for rows in (300, 400, 1000, 300):  # 2, 3 and 4 shares of 32,768 elements
            Drop.apply(torch.ones(rows, 256), 0.1)
        assert _pool.cache_info().misses == 1
    finally:
        torch.set_num_threads(threads)
        _pool.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_equal_logits_the_first_counts_as_argmax_has_it(dtype: torch.dtype):
    logits = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 2.0, 2.0], [0.0, 2.0, 2.0]], dtype=dtype)
    labels = torch.tensor([0, 1, 1, 2])
    _, correct = CrossEntropy.apply(logits.clone(), labels, 3, -100)
    assert correct.item() == (logits.argmax(1) == labels).sum().item() == 2
