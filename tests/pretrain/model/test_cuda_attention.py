"""Attention in a few large calls, held against softmax(QK'/sqrt(D))V written out pair by pair; and who is chosen."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pretrain.model import cuda_attention
from pretrain.model.cuda_attention import Candidate, attend, choose_attention, examine_candidates

CPU = torch.device("cpu")
LENGTHS = [
    pytest.param([7], 7, id="one pair"),
    pytest.param([5, 5, 5], 8, id="all equal, below the longest allowed"),
    pytest.param([9, 9, 5, 12], 12, id="different"),
    pytest.param([9, 5, 0], 9, id="an empty piece of padding at the end"),
    pytest.param([9, 5, 3], 16, id="a piece of padding"),
    pytest.param([0, 4, 0, 0, 6, 1, 0], 6, id="empty pieces anywhere, a single token"),
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # on tensors this small, threads wait for each other


class Layout(NamedTuple):
    cu_seqlens: Tensor
    longest: int


def _layout(lengths: Sequence[int], longest: int, device: torch.device = CPU) -> Layout:
    return Layout(torch.tensor([0, *lengths], device=device).cumsum(0).int(), longest)


def _queries(lengths: Sequence[int], *, heads: int = 2, size: int = 8) -> list[Tensor]:
    shape = (3, 1, heads, sum(lengths), size)
    return [x.clone().requires_grad_() for x in torch.randn(shape, generator=torch.Generator().manual_seed(0))]


def _plain(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int]) -> Tensor:
    """(1, N, T, D) each -> (1, T, N, D); nothing of torch's attention."""
    outputs, start = [], 0
    for length in lengths:
        part = slice(start, start + length)
        weights = (q[0, :, part] @ k[0, :, part].transpose(1, 2) * q.shape[-1] ** -0.5).softmax(-1)
        outputs.append((weights @ v[0, :, part]).transpose(0, 1))
        start += length
    return torch.cat(outputs)[None]


def _differentiated(out: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return [out, *torch.autograd.grad(out, inputs, direction)]


@pytest.mark.parametrize(("lengths", "longest"), LENGTHS)
def test_padded_equals_plain_attention_pair_by_pair(lengths: list[int], longest: int):
    queries = _queries(lengths)
    ours = _differentiated(attend("padded", *queries, _layout(lengths, longest), 0.0), queries)
    wanted = _differentiated(_plain(*queries, lengths), queries)
    for a, b in zip(ours, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_no_row_is_masked_as_a_whole(monkeypatch: pytest.MonkeyPatch):
    """Not every backend has a softmax over nothing."""
    masks = []

    def seen(*arguments, attn_mask: Tensor, **rest):
        masks.append(attn_mask)
        return scaled_dot_product_attention(*arguments, attn_mask=attn_mask, **rest)

    monkeypatch.setattr(cuda_attention, "scaled_dot_product_attention", seen)
    attend("padded", *_queries([4, 0, 2]), _layout([4, 0, 2], 6), 0.0)
    assert masks[0].sum(-1).flatten().tolist() == [4, 1, 2]


@pytest.mark.parametrize("name", ["varlen", "flash"])
def test_the_kernel_is_handed_what_it_wants(name: str, monkeypatch: pytest.MonkeyPatch):
    """(T, N, D) with a last dimension that is dense, int32 offsets, the longest length; a plain one stands in here."""
    lengths, longest = [9, 5, 12, 0], 16
    seen = []

    def plain_kernel(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, *rest):
        assert cu_q.dtype == cu_k.dtype == torch.int32
        assert max_q == max_k == longest
        assert all(x.shape == (26, 2, 8) and x.stride(-1) == 1 for x in (q, k, v))
        seen.append(rest)
        out = _plain(*(x.transpose(0, 1)[None] for x in (q, k, v)), lengths)[0]
        return (out, None, None, None, None) if rest else out

    monkeypatch.setattr(cuda_attention, "varlen_attn", plain_kernel)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", plain_kernel)
    queries = _queries(lengths)
    out = attend(name, *queries, _layout(lengths, longest), 0.1 if name == "flash" else 0.0)
    torch.testing.assert_close(out, _plain(*queries, lengths), atol=1e-6, rtol=1e-5)
    # dropout, not causal, no debug mask
    assert seen == [(0.1, False, False) if name == "flash" else ()]


def test_varlen_refuses_dropout():
    with pytest.raises(AssertionError, match="no dropout"):
        attend("varlen", *_queries([5]), _layout([5], 5), 0.1)


def test_padded_dropout_is_seeded_scaled_and_right_on_average():
    lengths = [6, 6, 9]
    queries = [x.detach() for x in _queries(lengths)]

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return attend("padded", *queries, _layout(lengths, 9), 0.2)

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.allclose(drawn(1), drawn(2))
    without = attend("padded", *queries, _layout(lengths, 9), 0.0)
    draws = torch.stack([drawn(seed) for seed in range(120)])
    off, spread = (draws.mean(0) - without).norm(), (draws - without).flatten(1).norm(dim=1).mean()
    assert off < 3 * spread / 120**0.5 < 0.2 * without.norm()  # unscaled weights would be 0.2 of the output off


@pytest.fixture
def candidates(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Candidate]]:
    """The table of candidates, empty but for what a test puts in."""
    table: dict[str, Candidate] = {}
    monkeypatch.setattr(cuda_attention, "CANDIDATES", table)
    choose_attention.cache_clear()
    yield table
    choose_attention.cache_clear()


def _examine(dropout: float = 0.0, dtype: torch.dtype = torch.float32) -> cuda_attention.Examination:
    return examine_candidates(CPU, dtype, 8, 8, dropout, 32)


padded = cuda_attention._attend_by_padded


def test_the_fastest_is_chosen_and_a_near_tie_goes_to_the_first(
    candidates: dict[str, Candidate], monkeypatch: pytest.MonkeyPatch
):
    now = [0.0]
    monkeypatch.setattr(cuda_attention, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def lasting(seconds: float) -> Candidate:
        def attend_slowly(*arguments):
            now[0] += seconds
            return padded(*arguments)

        return Candidate(attend_slowly, has_dropout=True)

    candidates |= {name: lasting(seconds) for name, seconds in {"a": 5.0, "b": 2.0, "c": 1.9, "d": 3.0}.items()}
    found = _examine()
    assert found.seconds == pytest.approx({"a": 5.0, "b": 2.0, "c": 1.9, "d": 3.0})
    assert (found.chosen, found.dropped) == ("b", {})


def _everything(q: Tensor, k: Tensor, v: Tensor, layout: Layout, dropout: float) -> Tensor:
    return _plain(q, k, v, [q.shape[2]])


def _raises(*_):
    raise RuntimeError("no kernel image is available. Here follow\npages of text")


FAULTS = {
    "leaks": (_everything, "output: error"),
    "scale": (lambda q, *rest: padded(q * 1.2, *rest), "output: error"),
    "nan": (lambda *arguments: padded(*arguments) * float("nan"), "output: error nan"),
    "query gradient": (lambda q, *rest: padded(q.detach() * 0.5 + q * 0.5, *rest), "gradient of the query"),
    "key gradient": (lambda q, k, *rest: padded(q, k.detach() * 0.5 + k * 0.5, *rest), "gradient of the key"),
    "value gradient": (lambda q, k, v, *rest: padded(q, k, v * 2 - v.detach(), *rest), "gradient of the value"),
    "raises": (_raises, "RuntimeError: no kernel image is available"),
}


@pytest.mark.parametrize("dtype", cuda_attention.TOLERANCE)
def test_what_is_not_exact_is_dropped_and_said(candidates: dict[str, Candidate], dtype: torch.dtype):
    candidates |= {name: Candidate(function, True) for name, (function, _) in FAULTS.items()}
    candidates["padded"] = Candidate(padded, True)
    found = _examine(dtype=dtype)
    assert list(found.seconds) == [found.chosen] == ["padded"]
    assert found.dropped.keys() == FAULTS.keys()
    for name, (_, why) in FAULTS.items():
        assert why in found.dropped[name]
    assert found.dropped["raises"].endswith("no kernel image is available")


class _OtherMaskBackward(torch.autograd.Function):
    """The forward of one draw with the backward of another."""

    @staticmethod
    def forward(ctx, q, k, v, cu_seqlens, longest, dropout):
        ctx.save_for_backward(q, k, v, cu_seqlens)
        ctx.rest = longest, dropout
        return padded(q, k, v, Layout(cu_seqlens, longest), dropout)

    @staticmethod
    def backward(ctx, gradient):
        q, k, v, cu_seqlens = ctx.saved_tensors
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        with torch.enable_grad():
            out = padded(*inputs, Layout(cu_seqlens, ctx.rest[0]), ctx.rest[1])
        return (*torch.autograd.grad(out, inputs, gradient), None, None, None)


def test_what_is_no_dropout_is_dropped_and_said(candidates: dict[str, Candidate]):
    candidates["none"] = Candidate(padded, False)
    candidates["ignores it"] = Candidate(lambda q, k, v, layout, _: padded(q, k, v, layout, 0.0), True)
    candidates["unscaled"] = Candidate(lambda *args: padded(*args) * (1 - args[-1]), True)
    candidates["other mask"] = Candidate(
        lambda q, k, v, layout, p: _OtherMaskBackward.apply(q, k, v, layout.cu_seqlens, layout.longest, p), True
    )
    candidates["padded"] = Candidate(padded, True)
    found = _examine(dropout=0.3)
    assert found.dropped == {
        "none": "has no dropout",
        "ignores it": "drops nothing",
        "unscaled": found.dropped["unscaled"],
        "other mask": "the backward drops other weights than the forward",
    }
    assert found.dropped["unscaled"].startswith("dropout changes the mean by a factor of 0.7")
    assert list(_examine(dropout=0.0).seconds) == list(candidates)


def test_without_an_exact_one_it_fails_and_says_why(candidates: dict[str, Candidate]):
    candidates |= {"leaks": Candidate(_everything, True), "raises": Candidate(_raises, True)}
    with pytest.raises(
        RuntimeError, match=r"no exact attention on cpu in torch.float32: leaks: output.*; raises: Runt"
    ):
        _examine()


def test_on_a_cpu_padded_is_left_and_the_choice_is_logged_once(caplog: pytest.LogCaptureFixture):
    choose_attention.cache_clear()
    caplog.set_level(logging.INFO)
    state = torch.get_rng_state()
    with torch.no_grad():  # as in an evaluation
        assert [choose_attention(CPU, torch.bfloat16, 2, 64, 0.1, 64) for _ in range(2)] == ["padded"] * 2
    assert torch.equal(torch.get_rng_state(), state)
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("attention: padded (forward and backward: padded ")
    assert "varlen dropped (has no dropout); flash dropped (NotImplementedError: Could not run" in line


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_on_a_gpu_every_candidate_is_exact(dtype: torch.dtype, dropout: float):
    found = examine_candidates(torch.device("cuda"), dtype, 12, 64, dropout, 512)
    assert found.dropped == ({"varlen": "has no dropout"} if dropout else {})
