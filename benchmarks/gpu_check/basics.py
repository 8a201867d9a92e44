"""Stages about the machine: versions, the ways to attend, what its matrix units and memory reach."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_check.stage import Results
from benchmarks.gpu_check.workload import Scale
from pretrain.flops import peak_flops
from pretrain.model import cuda_attention

PACKAGES = ("torch", "transformers", "deepspeed", "triton", "numpy", "numba")
ATTENTION_CASES = ((torch.bfloat16, 0.0), (torch.bfloat16, 0.1), (torch.float16, 0.1), (torch.float32, 0.1))
REPEATS = 10
MASKED_SHARE = 0.15


def versions() -> dict[str, str]:
    """Return what is installed; "absent" where it is not."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def attention(results: Results) -> None:
    """Run the self-test of attention for each precision and dropout, and keep what it says of each candidate."""
    on_cuda = results.device.type == "cuda"
    results.record("versions", versions())
    results.record("device", torch.cuda.get_device_name() if on_cuda else platform.processor() or "CPU")
    heads, longest = results.scale.large.hidden // 64, 512 if on_cuda else 64
    chosen = {}
    for dtype, dropout in ATTENTION_CASES:
        name = f"{str(dtype).removeprefix('torch.')}, dropout {dropout}"

        def test(dtype: torch.dtype = dtype, dropout: float = dropout) -> dict[str, Any]:
            begin = time.perf_counter()
            report = cuda_attention.examine_candidates(results.device, dtype, heads, 64, dropout, longest)
            return {
                "chosen": report.chosen,
                "milliseconds": {key: round(1e3 * value, 3) for key, value in report.seconds.items()},
                "dropped": report.dropped,
                "test_seconds": round(time.perf_counter() - begin, 2),
            }

        found = results.attempt(name, test)
        chosen[name] = found["chosen"] if found else "none"
    results.headline(", ".join(f"{case}: {name}" for case, name in chosen.items()))


def ceilings(results: Results) -> None:
    """Time matrix products and a copy: what a step could reach at most."""
    scale, device = results.scale, results.device
    peak = peak_flops(torch.cuda.get_device_name(), torch.bfloat16) if device.type == "cuda" else None
    results.record("datasheet_tflops", peak / 1e12 if peak else None)
    edge = scale.matrix
    square = results.attempt("square", lambda: _product(device, edge, edge, edge))
    shapes = {
        name: results.attempt(f"{name} {'x'.join(map(str, shape))}", partial(_linear, device, *shape))
        for name, shape in _products_of_a_step(scale).items()
    }
    copied = results.attempt("copy_gb_per_second", lambda: _copy(device, scale.copy_bytes))
    said = [f"{edge}^3 {square:.3g} TFLOP/s" if square else "", f"copy {copied:.4g} GB/s" if copied else ""]
    said += [f"{name} {min(found.values()):.3g} or more" for name, found in shapes.items() if found]
    results.headline(", ".join(part for part in said if part))


def _products_of_a_step(scale: Scale) -> dict[str, tuple[int, int, int]]:
    """Return the Linear layers of the large model, (T, outputs, inputs)."""
    hidden, tokens = scale.large.hidden, scale.product_tokens
    return {
        "qkv": (tokens, 3 * hidden, hidden),
        "projection": (tokens, hidden, hidden),
        "up": (tokens, 4 * hidden, hidden),
        "down": (tokens, hidden, 4 * hidden),
        "head": (int(MASKED_SHARE * tokens), scale.vocab_size, hidden),
    }


def _product(device: torch.device, rows: int, inner: int, columns: int) -> float:
    """Return TFLOP/s of a bf16 product of random matrices."""
    left = torch.randn((rows, inner), device=device, dtype=torch.bfloat16)
    right = torch.randn((inner, columns), device=device, dtype=torch.bfloat16)
    return round(2 * rows * inner * columns / seconds_of(lambda: left @ right, device) / 1e12, 4)


def _linear(device: torch.device, tokens: int, outputs: int, inputs: int) -> dict[str, float]:
    """Return TFLOP/s of a Linear layer's three products."""

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    x, weight, gradient = random(tokens, inputs), random(outputs, inputs), random(tokens, outputs)
    products: dict[str, Callable[[], Tensor]] = {
        "forward": lambda: x @ weight.t(),
        "input_gradient": lambda: gradient @ weight,
        "weight_gradient": lambda: gradient.t() @ x,
    }
    flops = 2 * tokens * outputs * inputs
    return {name: round(flops / seconds_of(product, device) / 1e12, 4) for name, product in products.items()}


def _copy(device: torch.device, num_bytes: int) -> float:
    """Return GB/s of a copy on the device, bytes read and bytes written counted."""
    source = torch.randint(0, 255, (num_bytes,), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return round(2 * num_bytes / seconds_of(lambda: target.copy_(source), device) / 1e9, 1)


def seconds_of(work: Callable[[], Any], device: torch.device) -> float:
    """Return seconds of a call, the mean of `REPEATS` after three that warm up."""
    for _ in range(3):
        work()
    if device.type != "cuda":
        begin = time.perf_counter()
        for _ in range(REPEATS):
            work()
        return (time.perf_counter() - begin) / REPEATS
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(REPEATS):
        work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3 / REPEATS
