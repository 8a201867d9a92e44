"""Counter-based random numbers: (seed, epoch, item, purpose) gives a stream, with no state to keep.

Every draw of the data path starts from ``mix(seed, a, b, purpose)``: two items never share a stream, and no
result depends on how many processes or threads did the work, or on where a run was restarted. The generator
is splitmix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014); its state is one
unsigned 64-bit number that the caller carries. The compiled functions are called from other compiled
functions; plain Python uses `derive_seed`.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

PAIRING = 1
MASKING = 2
ORDER = 3
DROPOUT = 4
VALIDATION = 5

MAX_SEED = 2**63 - 1

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_DROPPED_BITS = np.uint64(11)  # a float64 holds 53 of the 64 bits
_UNIT = 2.0**-53
_ONE, _TWO, _FOUR = np.uint64(1), np.uint64(2), np.uint64(4)
_ODD_BITS = np.uint64(0x5555555555555555)
_BIT_PAIRS = np.uint64(0x3333333333333333)
_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_BYTES = np.uint64(0x0101010101010101)
_TOP_BYTE = np.uint64(56)

_SOURCE_KEY = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Compile a function with numba: cached on disk, free of the interpreter lock, exact float arithmetic.

    Args:
        function: A function of numbers, arrays and named tuples of them.

    Returns:
        The compiled function, with the type that it had before.
    """
    # Numba keeps a compiled function under its name, and as long as its own file is unchanged: it does not
    # see that a function of this file, compiled into it, has changed. So this file's hash is made a part of
    # the name.
    name = function.__qualname__
    function.__qualname__ = f"{name}-{_SOURCE_KEY}"
    try:
        return cast(_Function, numba.njit(cache=True, nogil=True)(function))
    finally:
        function.__qualname__ = name


@compiled
def _scramble(word: Any) -> Any:
    """Return the splitmix64 finalizer of a uint64: a bijection in which every bit depends on every bit."""
    word = np.uint64(word)
    word = (word ^ (word >> _SHIFT_1)) * _FACTOR_1
    word = (word ^ (word >> _SHIFT_2)) * _FACTOR_2
    return word ^ (word >> _SHIFT_3)


@compiled
def mix(seed: int, a: int, b: int, purpose: int) -> Any:
    """Return the first state (uint64) of the stream that belongs to (seed, a, b, purpose).

    Args:
        seed: The run's seed, 0 to 2**63 - 1.
        a: First coordinate, usually the epoch.
        b: Second coordinate, usually the number of a document, pair or round.
        purpose: One of the constants of this module.

    Returns:
        A state for `next_u64`. With the other three fixed, different values of one argument give different
        states.
    """
    state = _scramble(np.uint64(purpose) + _GOLDEN)
    state = _scramble((state ^ np.uint64(seed)) + _GOLDEN)
    state = _scramble((state ^ np.uint64(a)) + _GOLDEN)
    return _scramble((state ^ np.uint64(b)) + _GOLDEN)


@compiled
def next_u64(state: Any) -> Any:
    """Return (next state, 64 random bits), both uint64."""
    state = np.uint64(state) + _GOLDEN
    return state, _scramble(state)


@compiled
def below(state: Any, n: int) -> Any:
    """Return (next state, integer in [0, n) as int64).

    The upper half of the product of 64 random bits and n: the chances of two values differ by 2**-64 at most.

    Args:
        state: The stream's state, uint64.
        n: Number of values, 1 to 2**32.
    """
    state, word = next_u64(state)
    values = np.uint64(n)
    upper = (word >> _HALF) * values + (((word & _LOW_HALF) * values) >> _HALF)
    return state, np.int64(upper >> _HALF)


@compiled
def uniform(state: Any) -> Any:
    """Return (next state, float64 in [0, 1)), a multiple of 2**-53."""
    state, word = next_u64(state)
    return state, np.float64(word >> _DROPPED_BITS) * _UNIT


@compiled
def count_bits(word: Any) -> Any:
    """Return the number of ones in a uint64, int64: sums of neighbouring bits, pairs and nibbles."""
    word = np.uint64(word)
    word = word - ((word >> _ONE) & _ODD_BITS)
    word = (word & _BIT_PAIRS) + ((word >> _TWO) & _BIT_PAIRS)
    word = (word + (word >> _FOUR)) & _NIBBLES
    return np.int64((word * _BYTES) >> _TOP_BYTE)


def derive_seed(seed: int, *parts: int) -> int:
    """Return a seed of 63 bits for a generator outside this module, such as `torch.manual_seed`.

    Args:
        seed: The run's seed.
        *parts: What the seed is for, from coarse to fine: purpose, step, micro_step, rank.

    Returns:
        An integer from 0 to 2**63 - 1: the first bits of the SHA-256 of the numbers, the same on every
        machine.
    """
    text = ",".join(str(int(part)) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:8], "big") >> 1
