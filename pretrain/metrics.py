"""The numbers of training: summed on the device, reduced over ranks once a log line."""

from __future__ import annotations

import resource
import time

import torch

from pretrain.model.loss import LossSums
from runtime.dist import max_over_ranks, sum_over_ranks


class LossMeter:
    """Adds up losses and hits over micro-steps without waiting for the device.

    Args:
        device: where the sums live.
    """

    def __init__(self, device: torch.device) -> None:
        # float64: sums of millions of tokens, where float32 would stop counting at 2^24.
        self._sums = torch.zeros(6, dtype=torch.float64, device=device)

    def add(self, sums: LossSums) -> None:
        """Add one micro-batch's sums."""
        values = (
            sums.mlm_loss,
            sums.nsp_loss,
            sums.mlm_correct,
            sums.mlm_tokens,
            sums.nsp_correct,
            sums.nsp_pairs,
        )
        self._sums += torch.stack([value.detach().double() for value in values])

    def reduce(self, prefix: str) -> dict[str, float]:
        """Take the means over all ranks and start anew; every rank must call.

        Args:
            prefix: group of the names, as in "train".

        Returns:
            PREFIX/loss, PREFIX/mlm_loss (nats a masked token), PREFIX/mlm_accuracy, and with NSP PREFIX/nsp_loss (nats
            a pair) and PREFIX/nsp_accuracy; each is a mean over all masked tokens or pairs of all ranks.
        """
        mlm_loss, nsp_loss, mlm_correct, mlm_tokens, nsp_correct, nsp_pairs = sum_over_ranks(self._sums).tolist()
        self._sums.zero_()
        values = {
            f"{prefix}/mlm_loss": mlm_loss / max(1.0, mlm_tokens),
            f"{prefix}/mlm_accuracy": mlm_correct / max(1.0, mlm_tokens),
        }
        if nsp_pairs:
            values[f"{prefix}/nsp_loss"] = nsp_loss / nsp_pairs
            values[f"{prefix}/nsp_accuracy"] = nsp_correct / nsp_pairs
        total = values[f"{prefix}/mlm_loss"] + values.get(f"{prefix}/nsp_loss", 0.0)
        return {f"{prefix}/loss": total, **values}


class SpeedMeter:
    """Tokens and pairs a second, all ranks together, since the last reading."""

    def __init__(self) -> None:
        self._tokens = 0
        self._pairs = 0
        self._steps = 0
        self._began = time.monotonic()

    def add(self, tokens: int, pairs: int) -> None:
        """Count one global batch: real tokens, padding excluded, and pairs."""
        self._tokens += tokens
        self._pairs += pairs
        self._steps += 1

    def exclude(self, seconds: float) -> None:
        """Leave a pause out: evaluation and saving are not training."""
        self._began += seconds

    def read(self) -> dict[str, float]:
        """Return speed/tokens_per_second, speed/pairs_per_second and speed/step_seconds, and start anew."""
        seconds = max(1e-9, time.monotonic() - self._began)
        values = {
            "speed/tokens_per_second": self._tokens / seconds,
            "speed/pairs_per_second": self._pairs / seconds,
            "speed/step_seconds": seconds / max(1, self._steps),
        }
        self._tokens, self._pairs, self._steps, self._began = 0, 0, 0, time.monotonic()
        return values


def peak_memory_gib(device: torch.device) -> float:
    """Return the most memory that a process has held so far, the largest over all ranks; every rank must call.

    Args:
        device: of the engine. On CUDA what torch has allocated there, elsewhere the process's resident memory.

    Returns:
        GiB.
    """
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) / 2**30
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux counts in KiB
    return max_over_ranks(peak, device)
