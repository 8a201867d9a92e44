"""Exact ways to attend inside each pair of a token stream in few large calls, and the choice between them.

- `varlen`: `torch.nn.attention.varlen.varlen_attn`, torch's public door to FlashAttention's variable-length kernel.
  CUDA, fp16 or bf16, no dropout.
- `flash`: the kernel behind it, `torch.ops.aten._flash_attention_forward`, which takes dropout. A private operator: it
  may change or go with any release of torch, and is used only where the self-test has found it exact.
- `padded`: the pairs are laid into (P, longest) rows, `scaled_dot_product_attention` with a mask, and back. Any device,
  any dtype, dropout.

Which of them is there, right and fast depends on the device, on torch's version and on the shapes, so
`choose_attention` tries them once at the start of a run, in about a second.

All shapes follow from T, P and `longest` alone: nothing waits for the device, and a compiler sees no number that
changes from one micro-batch to the next.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

logger = logging.getLogger(__name__)

TOLERANCE = {torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""Largest error of a pair, as a share of the whole tensor's RMS; the scores may be rounded to TF32 in fp32. A leak
between pairs or a wrong scale is an error of the order of 1."""
CLEARLY_FASTER = 0.9
"""A later candidate takes an earlier one's place below this share of its time, so that noise does not choose."""
TIMED_TOKENS = {"cuda": 32_768, "cpu": 512}
TIMED_CALLS = 5


class Offsets(Protocol):
    """What of a stream's layout is needed here."""

    @property
    def cu_seqlens(self) -> Tensor:
        """int32 (P + 1,), on the stream's device: where each piece begins, and T. A piece may be empty."""
        ...

    @property
    def longest(self) -> int:
        """At least the tokens of the longest piece, a piece of padding included."""
        ...


Attend = Callable[[Tensor, Tensor, Tensor, Offsets, float], Tensor]


class Candidate(NamedTuple):
    """One way to attend."""

    attend: Attend
    has_dropout: bool


def _attend_by_varlen(query: Tensor, key: Tensor, value: Tensor, layout: Offsets, dropout: float) -> Tensor:
    assert dropout == 0.0, "varlen_attn has no dropout"
    q, k, v = _by_token(query, key, value)
    cu_seqlens, longest = layout.cu_seqlens, layout.longest
    out = varlen_attn(q, k, v, cu_seqlens, cu_seqlens, longest, longest)
    assert isinstance(out, Tensor)
    return out.unsqueeze(0)


def _attend_by_flash(query: Tensor, key: Tensor, value: Tensor, layout: Offsets, dropout: float) -> Tensor:
    cu_seqlens, longest = layout.cu_seqlens, layout.longest
    out: Tensor = torch.ops.aten._flash_attention_forward(
        *_by_token(query, key, value), cu_seqlens, cu_seqlens, longest, longest, dropout, False, False
    )[0]
    return out.unsqueeze(0)


def _by_token(*streams: Tensor) -> list[Tensor]:
    """(1, N, T, D) -> (T, N, D), the kernel's order; views of the projections' own memory."""
    return [stream.squeeze(0).transpose(0, 1) for stream in streams]


def _attend_by_padded(query: Tensor, key: Tensor, value: Tensor, layout: Offsets, dropout: float) -> Tensor:
    cu_seqlens, longest = layout.cu_seqlens.long(), layout.longest
    num_heads, num_tokens, head_size = query.shape[1:]
    num_pieces = cu_seqlens.shape[0] - 1
    tokens = torch.arange(num_tokens, device=query.device)
    piece = torch.searchsorted(cu_seqlens[1:], tokens, right=True)  # right: an empty piece holds no token
    place = piece * longest + tokens - cu_seqlens[piece]

    # index_copy in, index_select out: each token has one place, so neither backward adds up.
    def lay_out(stream: Tensor) -> Tensor:
        rows = stream.new_zeros(num_pieces * longest, num_heads, head_size)
        rows = rows.index_copy(0, place, stream.squeeze(0).transpose(0, 1))
        return rows.view(num_pieces, longest, num_heads, head_size).transpose(1, 2)

    # An empty piece sees its first place, or its softmax would be over nothing.
    lengths = cu_seqlens.diff().clamp_min(1)
    is_token = torch.arange(longest, device=query.device) < lengths[:, None]
    out = scaled_dot_product_attention(
        lay_out(query), lay_out(key), lay_out(value), attn_mask=is_token[:, None, None, :], dropout_p=dropout
    )
    rows = out.transpose(1, 2).reshape(num_pieces * longest, num_heads, head_size)
    return rows.index_select(0, place).unsqueeze(0)


CANDIDATES: dict[str, Candidate] = {
    "varlen": Candidate(_attend_by_varlen, has_dropout=False),
    "flash": Candidate(_attend_by_flash, has_dropout=True),
    "padded": Candidate(_attend_by_padded, has_dropout=True),
}
"""By name, the one to prefer first."""


def attend(name: str, query: Tensor, key: Tensor, value: Tensor, layout: Offsets, dropout: float) -> Tensor:
    """Attend inside each pair of a token stream; scores are scaled by D ** -0.5.

    Args:
        name: of `CANDIDATES`.
        query: floating (1, N, T, D).
        key: like query.
        value: like query.
        layout: where the pairs lie; pieces of length 0 are allowed.
        dropout: chance in [0, 1) that an attention weight is dropped.

    Returns:
        The context, (1, T, N, D).

    Raises:
        KeyError: no such candidate.
    """
    return CANDIDATES[name].attend(query, key, value, layout, dropout)


class Examination(NamedTuple):
    """What the self-test found."""

    chosen: str
    seconds: dict[str, float]
    """Of a forward and backward, by name of each candidate that is exact."""
    dropped: dict[str, str]
    """Why, by name of each other candidate."""


@lru_cache
def choose_attention(
    device: torch.device, dtype: torch.dtype, num_heads: int, head_size: int, dropout: float, longest: int
) -> str:
    """Return the fastest exact way to attend and log why; asked again, the same answer at once.

    Arguments and errors are those of `examine_candidates`.
    """
    report = examine_candidates(device, dtype, num_heads, head_size, dropout, longest)
    times = [f"{name} {1e3 * value:.2f} ms" for name, value in report.seconds.items()]
    faults = [f"{name} dropped ({why})" for name, why in report.dropped.items()]
    logger.info("attention: %s (forward and backward: %s)", report.chosen, "; ".join([*times, *faults]))
    return report.chosen


def examine_candidates(
    device: torch.device, dtype: torch.dtype, num_heads: int, head_size: int, dropout: float, longest: int
) -> Examination:
    """Try every candidate and choose.

    A candidate is dropped when it raises, when its output or gradients differ from attention written out pair by pair
    in fp32 (without dropout), or when its dropout is not what a dropout must be. The others are timed forward and
    backward. The random numbers of the run are left as they were.

    Args:
        device: of the run.
        dtype: in which attention is computed; a key of `TOLERANCE`.
        num_heads: N.
        head_size: D.
        dropout: of the run; above 0, candidates without dropout are not asked.
        longest: most tokens of a pair.

    Raises:
        RuntimeError: no candidate is exact; says why each was dropped.
    """
    shape = (num_heads, head_size)
    seconds: dict[str, float] = {}
    dropped: dict[str, str] = {}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
        probe = _Stream.make(_probe_lengths(longest), longest, shape, device, dtype)
        timed = _Stream.make(_timed_lengths(longest, TIMED_TOKENS[device.type]), longest, shape, device, dtype)
        expected = _reference(probe)
        for name, candidate in CANDIDATES.items():
            if dropout > 0 and not candidate.has_dropout:
                dropped[name] = "has no dropout"
                continue
            try:
                fault = _fault(candidate.attend, probe, expected, dropout)
                if fault:
                    dropped[name] = fault
                else:
                    seconds[name] = _time(candidate.attend, timed, dropout)
            except Exception as error:  # noqa: BLE001 - whatever a private operator does, the run has another way
                dropped[name] = f"{type(error).__name__}: {_first_sentence(str(error))}"
    if not seconds:
        whys = "; ".join(f"{name}: {why}" for name, why in dropped.items())
        raise RuntimeError(f"no exact attention on {device} in {dtype}: {whys}")
    return Examination(_preferred(seconds), seconds, dropped)


def _first_sentence(text: str) -> str:
    return re.split(r"\n|\. ", text)[0][:160]


def _preferred(seconds: dict[str, float]) -> str:
    """Return the fastest, unless an earlier one is nearly as fast."""
    chosen, *others = seconds
    for name in others:
        if seconds[name] < CLEARLY_FASTER * seconds[chosen]:
            chosen = name
    return chosen


@dataclass(frozen=True)
class _Stream:
    """Random queries, keys and values of a stream, and the direction in which to differentiate."""

    lengths: Sequence[int]
    cu_seqlens: Tensor
    longest: int
    queries: list[Tensor]
    """Three of (1, N, T, D), laid out in memory as projections are: (T, N, D)."""
    direction: Tensor
    """(1, T, N, D)."""

    @classmethod
    def make(
        cls, lengths: Sequence[int], longest: int, shape: tuple[int, int], device: torch.device, dtype: torch.dtype
    ) -> _Stream:
        generator = torch.Generator(device).manual_seed(0)
        drawn = torch.randn((4, 1, sum(lengths), *shape), generator=generator, device=device, dtype=dtype)
        cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
        queries = [part.transpose(1, 2).requires_grad_() for part in drawn[:3]]
        return cls(lengths, cu_seqlens, longest, queries, drawn[3])


def _probe_lengths(longest: int) -> list[int]:
    """Full, single, odd and equal pairs, and an empty piece at the end."""
    return [longest, 1, max(1, longest // 2 - 1), min(7, longest), min(7, longest), 0]


def _timed_lengths(longest: int, num_tokens: int) -> list[int]:
    """Pairs of a quarter to the whole of longest, about so many tokens in all."""
    quarters = [max(1, longest * share // 4) for share in (4, 3, 2, 1)]
    return quarters * max(1, num_tokens // sum(quarters))


def _run(attend_by: Attend, stream: _Stream, dropout: float) -> list[Tensor]:
    """Return the output and the gradients of the three inputs."""
    query, key, value = stream.queries
    out = attend_by(query, key, value, stream, dropout)
    return [out.detach(), *torch.autograd.grad(out, stream.queries, stream.direction)]


def _reference(stream: _Stream) -> list[Tensor]:
    """Return what `_run` must, pair by pair and in fp32, by nothing of torch's attention."""

    def written_out(query: Tensor, key: Tensor, value: Tensor, layout: Offsets, dropout: float) -> Tensor:
        lengths = list(stream.lengths)
        pieces = zip(*(torch.split(x[0].float(), lengths, dim=1) for x in (query, key, value)), strict=True)
        outputs = [torch.softmax(q @ k.transpose(1, 2) * q.shape[-1] ** -0.5, -1) @ v for q, k, v in pieces]
        return torch.cat(outputs, dim=1).transpose(0, 1).unsqueeze(0).to(stream.direction.dtype)

    return _run(written_out, stream, 0.0)


def _fault(attend_by: Attend, stream: _Stream, expected: list[Tensor], dropout: float) -> str:
    """Say what is wrong with a candidate; "" if nothing is."""
    found = _run(attend_by, stream, 0.0)
    limit = TOLERANCE[stream.direction.dtype]
    names = ("output", "gradient of the query", "gradient of the key", "gradient of the value")
    for name, ours, wanted in zip(names, found, expected, strict=True):
        token_dim = 1 if name == "output" else 2
        error = _largest_error(ours.float(), wanted.float(), stream.lengths, token_dim)
        if not error <= limit:  # so that NaN is a fault
            return f"{name}: error {error:.1e} above {limit:g}"
    return _dropout_fault(attend_by, stream, found[0].float(), dropout) if dropout > 0 else ""


def _largest_error(ours: Tensor, wanted: Tensor, lengths: Sequence[int], token_dim: int) -> float:
    """Return the largest RMS error of a pair, as a share of the RMS of all that was wanted."""
    squares = torch.split((ours - wanted).square(), [length for length in lengths if length], dim=token_dim)
    worst = torch.stack([piece.mean() for piece in squares]).max()
    return float((worst / wanted.square().mean()).sqrt())


def _dropout_fault(attend_by: Attend, stream: _Stream, without: Tensor, dropout: float) -> str:
    """Say what is wrong with a candidate's dropout; "" if nothing is."""
    out, _, _, value_gradient = (x.float() for x in _run(attend_by, stream, dropout))
    # Of the longest pair alone: a pair of one token is all or nothing.
    pair, full = (x[:, : stream.lengths[0]] for x in (out, without))
    if not float((pair - full).norm() / full.norm()) > 0.1 * dropout**0.5:
        return "drops nothing"
    mean = float((pair * full).sum() / full.square().sum())
    rows = full.shape[1] * full.shape[2]  # each has its own draw
    if not abs(mean - 1) < 5 * (dropout / (1 - dropout) / rows) ** 0.5:
        return f"dropout changes the mean by a factor of {mean:.2f}"
    # The output is linear in the value: <direction, output> = <gradient, value>, head by head, if and only if the
    # backward drops what the forward dropped.
    forward = (out * stream.direction.float()).sum((0, 1, 3))
    backward = (value_gradient * stream.queries[2].detach().float()).sum((0, 2, 3))
    if not float((forward - backward).norm() / forward.norm()) < 0.1:
        return "the backward drops other weights than the forward"
    return ""


def _time(attend_by: Attend, stream: _Stream, dropout: float) -> float:
    """Return seconds of one forward and backward."""
    _run(attend_by, stream, dropout)  # warms up
    if stream.direction.is_cuda:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(TIMED_CALLS):
            _run(attend_by, stream, dropout)
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3 / TIMED_CALLS
    begin = time.perf_counter()
    for _ in range(TIMED_CALLS):
        _run(attend_by, stream, dropout)
    return (time.perf_counter() - begin) / TIMED_CALLS
