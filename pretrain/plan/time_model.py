"""How long a run takes on W devices, by a model of two terms.

    T(W) = C / W · imbalance(W) + steps · t0

C is the work in device-seconds, imbalance the tokens of the fullest rank over the mean, t0 what a step costs however
many devices share it: launching, latency of collectives, the optimizer.

Held against DeepSpeed's published time to a SQuAD F1 of 90.5 with BERT-large on V100s, 1993, 521, 144 and 44 minutes on
16, 64, 256 and 1,024 ("The Fastest and Most Efficient BERT Training through Optimized Transformer Kernels",
DeepSpeed's blog, 2020-05-28): C = 31,888 GPU-minutes, 6,760 steps and t0 = 0.12 s give 2006, 512, 138 and 45.
"""

from __future__ import annotations

from dataclasses import dataclass

MEASURED_IMBALANCE = 1.002
"""Of 1,024 ranks of 32 pairs of Wikipedia's lengths, dealt by length: `python -m benchmarks.balance`."""
SECONDS_OF_STEP = 0.12
"""t0, fitted to DeepSpeed's published times."""


@dataclass(frozen=True)
class RunTime:
    """How long, and on what grounds."""

    seconds: float
    devices: int

    @property
    def device_hours(self) -> float:
        """Hours of all devices together."""
        return self.seconds * self.devices / 3600


def seconds_of_run(
    device_seconds: float, devices: int, steps: int, *, seconds_of_step: float = 0.0, imbalance: float = 1.0
) -> float:
    """Return T(W) in seconds.

    Args:
        device_seconds: C.
        devices: W.
        steps: optimizer steps of the run.
        seconds_of_step: t0.
        imbalance: tokens of the fullest rank over the mean, 1 or more.
    """
    return device_seconds / devices * imbalance + steps * seconds_of_step


def from_tokens_per_second(
    tokens: float, tokens_per_second: float, measured_on: int, devices: int, steps: int
) -> RunTime:
    """Return the time of a run from a speed.

    Where it was measured on as many devices as are planned, it holds all costs already. Else C follows from it, and t0
    and our measured imbalance are added.

    Args:
        tokens: of the whole run.
        tokens_per_second: of all devices together that it was measured on.
        measured_on: how many these were.
        devices: how many are planned.
        steps: of the run.
    """
    device_seconds = tokens / tokens_per_second * measured_on
    if measured_on == devices:
        return RunTime(device_seconds / devices, devices)
    seconds = seconds_of_run(
        device_seconds, devices, steps, seconds_of_step=SECONDS_OF_STEP, imbalance=MEASURED_IMBALANCE
    )
    return RunTime(seconds, devices)
