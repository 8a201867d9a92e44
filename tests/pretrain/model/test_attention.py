"""Attention inside each pair alone, held against softmax(QK'/sqrt(D))V written out pair by pair."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AttentionInterface

from pretrain.model.attention import ATTENTION_NAME, Run, StreamLayout, attend_stream

LENGTHS = [
    pytest.param([7], id="one pair"),
    pytest.param([5, 5, 5], id="all equal, the shortest there is"),
    pytest.param([9, 9, 5, 12, 12, 12, 9], id="equal neighbours, and the same length again later"),
    pytest.param([16, 15, 14, 5], id="all different"),
]


def _layout(lengths: Sequence[int], device: str = "cpu") -> StreamLayout:
    cu_seqlens = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    return StreamLayout.from_lengths(lengths, cu_seqlens)


def _queries(lengths: Sequence[int], *, heads: int = 2, size: int = 8, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (3, 1, heads, sum(lengths), size)
    return [x.clone().requires_grad_() for x in torch.randn(shape, generator=generator)]


def _plain(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], scaling: float) -> Tensor:
    """(1, N, T, D) each -> (1, T, N, D); nothing of torch's attention."""
    outputs, start = [], 0
    for length in lengths:
        part = slice(start, start + length)
        weights = (q[0, :, part] @ k[0, :, part].transpose(1, 2) * scaling).softmax(-1)
        outputs.append((weights @ v[0, :, part]).transpose(0, 1))
        start += length
    return torch.cat(outputs)[None]


def _attend(queries: Sequence[Tensor], lengths: Sequence[int], **rest: float) -> Tensor:
    out, weights = attend_stream(torch.nn.Module(), *queries, None, layout=_layout(lengths), **rest)
    assert weights is None
    return out


def test_runs_are_equal_neighbours():
    layout = _layout([4, 4, 7, 4, 4, 4, 9])
    assert layout.runs == (Run(0, 2, 4), Run(8, 1, 7), Run(15, 3, 4), Run(27, 1, 9))
    assert layout.longest == 16  # a power of two that holds 9
    assert layout.cu_seqlens.tolist() == [0, 4, 8, 15, 19, 23, 27, 36]
    assert layout.cu_seqlens.dtype == torch.int32


@given(st.lists(st.integers(1, 6), min_size=1, max_size=30))
@settings(deadline=None)
def test_runs_cover_the_stream_once_and_in_order(lengths: list[int]):
    runs = _layout(lengths).runs
    assert [run.length for run in runs for _ in range(run.num_pairs)] == lengths
    starts = [run.start + pair * run.length for run in runs for pair in range(run.num_pairs)]
    assert starts == [sum(lengths[:i]) for i in range(len(lengths))]
    assert all(a.length != b.length for a, b in itertools.pairwise(runs))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("scaling", [None, 0.5])
def test_outputs_and_gradients_equal_plain_attention_pair_by_pair(lengths: list[int], scaling: float | None):
    ours, plain = _queries(lengths), _queries(lengths)
    out = _attend(ours, lengths, scaling=scaling)
    expected = _plain(*plain, lengths, 8**-0.5 if scaling is None else scaling)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    out.backward(direction)
    expected.backward(direction)
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-6, rtol=1e-5)


def test_a_pair_does_not_feel_its_neighbours():
    lengths = [6, 6, 5]
    queries = [x.detach().clone() for x in _queries(lengths)]
    before = _attend(queries, lengths)
    for x in queries:
        x[:, :, 6:12] = torch.randn(x[:, :, 6:12].shape) * 100
    after = _attend(queries, lengths)
    assert torch.equal(before[:, :6], after[:, :6])
    assert torch.equal(before[:, 12:], after[:, 12:])
    assert not torch.equal(before[:, 6:12], after[:, 6:12])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_kernel_of_cuda_equals_plain_attention(lengths: list[int], dtype: torch.dtype):
    queries = [x.detach().to("cuda", dtype).requires_grad_() for x in _queries(lengths, size=64)]
    plain = [x.detach().float().requires_grad_() for x in queries]
    out, _ = attend_stream(torch.nn.Module(), *queries, None, layout=_layout(lengths, "cuda"))
    expected = _plain(*plain, lengths, 64**-0.5)
    torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=2e-2)
    out.sum().backward()
    expected.sum().backward()
    for a, b in zip(queries, plain, strict=True):
        torch.testing.assert_close(a.grad.float(), b.grad, atol=3e-2, rtol=3e-2)


def test_dropout_is_seeded_scaled_and_right_on_average():
    lengths = [6, 6, 9]
    queries = [x.detach() for x in _queries(lengths)]

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return _attend(queries, lengths, dropout=0.3)

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.allclose(drawn(1), drawn(2))
    draws, without = torch.stack([drawn(seed) for seed in range(300)]), _attend(queries, lengths)
    off, spread = (draws.mean(0) - without).norm(), (draws - without).flatten(1).norm(dim=1).mean()
    assert off < 3 * spread / 300**0.5  # the error of a mean; unscaled weights would be 0.3 of the output off
    assert 3 * spread / 300**0.5 < 0.2 * without.norm()


def test_no_dropout_by_default():
    queries = _queries([6, 5])
    assert torch.equal(_attend(queries, [6, 5]), _attend(queries, [6, 5], dropout=0.0))


def test_a_mask_is_an_error_of_ours():
    with pytest.raises(AssertionError, match="takes no attention mask"):
        attend_stream(torch.nn.Module(), *_queries([5]), torch.ones(1), layout=_layout([5]))


def test_transformers_finds_it_by_name():
    assert AttentionInterface()[ATTENTION_NAME] is attend_stream
