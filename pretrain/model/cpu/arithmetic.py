"""What the kernels compute for one element: written so that the compiler makes vector instructions of it.

bfloat16 is the upper half of a float32, and comes as uint16 (numpy and numba have no such type). All arithmetic is in
float32, rounded once, when a result is stored. NaN stays NaN throughout: a run that diverges must show it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba import types
from numba.extending import overload

# Sums may be taken in any order, products contracted; NaN and infinities keep their meaning.
FLAGS = {"reassoc", "contract", "nsz", "arcp"}
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _compiled(function: _Function) -> _Function:
    return cast(_Function, numba.njit(cache=True, nogil=True, fastmath=FLAGS, error_model="numpy")(function))


def _typed(function: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Mark what chooses the code of a function by the types of its arguments."""
    return cast(Callable[[_Function], _Function], overload(function, strict=False))


_HALF_WORD = np.uint32(16)
_ROUND_UP = np.uint32(0x7FFF)
_QUIET_NAN = np.uint16(0x7FC0)
_ONE = np.uint32(1)


def widen(value: Any) -> Any:
    """Return an element as float32."""
    raise NotImplementedError  # compiled code alone


@_typed(widen)
def _widen(value: Any) -> Any:
    if isinstance(value, types.Float):
        return lambda value: value
    return lambda value: np.uint32(np.uint32(value) << _HALF_WORD).view(np.float32)


def store(out: Any, row: Any, column: Any, value: Any) -> Any:
    """Write a float32 into an array (rows, columns) of float32 or of bfloat16, rounded to nearest, ties to even."""
    raise NotImplementedError


@_typed(store)
def _store(out: Any, row: Any, column: Any, value: Any) -> Any:
    if isinstance(out.dtype, types.Float):

        def store_float(out: Any, row: Any, column: Any, value: Any) -> None:
            out[row, column] = value

        return store_float

    def store_half(out: Any, row: Any, column: Any, value: Any) -> None:
        number = np.float32(value)
        bits = number.view(np.uint32)
        rounded = np.uint16(np.uint32(bits + _ROUND_UP + ((bits >> _HALF_WORD) & _ONE)) >> _HALF_WORD)
        out[row, column] = rounded if number == number else _QUIET_NAN  # noqa: PLR0124 - NaN differs from itself

    return store_half


@_compiled
def exp32(x: Any) -> Any:
    """Return e^x in float32, within 1.2e-7 of it for -87 <= x <= 88 and bounded beyond.

    x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial for e^r (Cephes' expf), and n put into the exponent.
    """
    x = np.float32(-87.0) if x < np.float32(-87.0) else x  # written so that NaN passes
    x = np.float32(88.0) if x > np.float32(88.0) else x
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    return p * np.uint32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@_compiled
def normal_cdf(x: Any) -> Any:
    """Return (P(Z <= x), its derivative) of a standard normal Z, within 3e-7.

    Abramowitz and Stegun 1964, formula 7.1.26, for erf(x / sqrt 2); its exponential is the density's.
    """
    size = np.abs(x) * np.float32(0.70710678)
    t = np.float32(1.0) / (np.float32(1.0) + np.float32(0.3275911) * size)
    p = np.float32(1.061405429)
    p = p * t - np.float32(1.453152027)
    p = p * t + np.float32(1.421413741)
    p = p * t - np.float32(0.284496736)
    p = p * t + np.float32(0.254829592)
    bell = exp32(-size * size)
    tail = np.float32(0.5) * p * t * bell
    return (np.float32(1.0) - tail if x > np.float32(0.0) else tail), np.float32(0.39894228) * bell


@_compiled
def scramble(word: Any) -> Any:
    """Return a uint32 whose every bit depends on every bit of the argument: a bijection (Wellons 2018, lowbias32)."""
    # numba widens what it computes with uint32 to 64 bits
    word = np.uint32(word)
    word = np.uint32(np.uint32(word ^ np.uint32(word >> np.uint32(16))) * np.uint32(0x7FEB352D))
    word = np.uint32(np.uint32(word ^ np.uint32(word >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(word ^ np.uint32(word >> np.uint32(16)))


@_compiled
def row_key(seed: Any, row: Any) -> Any:
    """Return the uint32 from which the draws of a row begin.

    Args:
        seed: uint64, of the call.
        row: its number.
    """
    return scramble(scramble(np.uint32(seed) + np.uint32(row)) ^ np.uint32(np.uint64(seed) >> np.uint64(32)))


@_compiled
def is_kept(key: Any, column: Any, threshold: Any) -> Any:
    """Say whether dropout keeps an element: with probability 1 - threshold / 2^32."""
    return scramble(np.uint32(key + np.uint32(column) * np.uint32(0x9E3779B9))) >= threshold
