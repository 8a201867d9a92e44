"""Memory of a training step beyond the model: ours against stock BERT, padded, full logits; the same samples.

    python -m benchmarks.step_memory

Each arm is a process of its own. It makes model and samples, runs a step of a few tokens (so that libraries have loaded
and compiled what they need), and gives free memory back. Then it runs one step, forward and backward: reported is its
highest resident memory above what it held before, gradients included.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import harness, step
from benchmarks.samples import make_micro_batch, padded
from runtime.command import run_command

LEAST_RATIO = 6.0
CASE = step.Case("step memory, small-512", 4, 512, 512, 8, torch.float32, step.STOCK, LEAST_RATIO)
ARMS = ("zerobert", "stock")
_WARM_UP_LENGTHS = [16, 8]


def peak_bytes(arm: str, case: step.Case) -> int:
    """Return what one step takes beyond the model, in this process.

    Args:
        arm: of `ARMS`.
        case: model and samples.
    """
    run: Callable[[Any], Any]
    if arm == "zerobert":
        ours = step.our_model(case, step.DROPOUT).to(case.dtype)
        run = lambda batch: step.our_step(ours, batch)  # noqa: E731 - two arms side by side
        batches: list[Any] = [
            make_micro_batch(lengths, step.VOCAB_SIZE) for lengths in (_WARM_UP_LENGTHS, case.lengths)
        ]
        model: torch.nn.Module = ours
    else:
        model = step.stock_model(case, step.DROPOUT).to(case.dtype)
        run = lambda rows: step.stock_step(model, rows)  # noqa: E731
        batches = [
            padded(make_micro_batch(_WARM_UP_LENGTHS, step.VOCAB_SIZE), max(_WARM_UP_LENGTHS)),
            padded(make_micro_batch(case.lengths, step.VOCAB_SIZE), case.seq_len),
        ]
    run(batches[0])
    model.zero_grad(set_to_none=True)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the highest mark starts anew
    before = _status_bytes("VmRSS")
    run(batches[1])
    return _status_bytes("VmHWM") - before


def measure(arm: str) -> int:
    """Return `peak_bytes` of the benchmark's case in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.step_memory", "--arm", arm], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{arm}: exit code {done.returncode}: {done.stderr[-2000:]}")
    value: int = json.loads(done.stdout.splitlines()[-1])
    return value


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 where the goal is met."""
    parser = harness.parser("step_memory", __doc__)
    parser.add_argument("--arm", choices=ARMS, help="run one arm in this process and print its bytes")
    options = parser.parse_args(arguments)
    if options.arm:
        sys.stdout.write(f"{peak_bytes(options.arm, CASE)}\n")
        return 0
    report = harness.Report("step_memory", options)
    batch = make_micro_batch(CASE.lengths, step.VOCAB_SIZE)
    equality = step.check_equal(CASE, batch, padded(batch, CASE.seq_len))
    ours, stock = (min(measure(arm) for _ in range(report.rounds)) for arm in ARMS)
    size = sum(parameter.numel() for parameter in step.our_model(CASE, 0.0).parameters()) / 1e6
    report.figure(
        f"{CASE.name}, {CASE.layers} x {CASE.hidden}, {size:.0f}M parameters, fp32, dropout {step.DROPOUT}; equal: "
        f"{equality}; zerobert {ours / 2**20:.0f} MiB, stock {stock / 2**20:.0f} MiB",
        stock / ours,
        "times less",
        least=LEAST_RATIO if options.goal is None else options.goal,
    )
    return report.finish()


if __name__ == "__main__":
    if "--arm" in sys.argv:
        run_command(main, "benchmark")
    harness.start(main)
