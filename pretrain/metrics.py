"""The numbers of training: summed on the device, reduced over ranks once a log line."""

from __future__ import annotations

import resource
import time

import torch

from pretrain.flops import ModelShape, WorkCounts, model_flops
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

    def snapshot(self) -> torch.Tensor:
        """Return the sums as they are, for `restore`."""
        return self._sums.clone()

    def restore(self, sums: torch.Tensor) -> None:
        """Forget what was added since a snapshot: an update that was skipped, whose losses may be NaN."""
        self._sums.copy_(sums)

    @property
    def local_sum(self) -> float:
        """Sum of this rank's losses since the last reading; waits for the device. NaN where one was none."""
        return float(self._sums[:2].sum())

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
    """How fast all ranks together have been since the last reading, and how near to what the device can do.

    Args:
        shape: of the model, for its work.
        world_size: ranks that share the work.
        device: of the process group.
        peak_flops: of one device, FLOP/s; None: not known, and no speed/mfu.
    """

    def __init__(self, shape: ModelShape, world_size: int, device: torch.device, peak_flops: float | None) -> None:
        self._shape = shape
        self._world_size = world_size
        self._device = device
        self._peak_flops = peak_flops
        self._begin()

    def _begin(self) -> None:
        self._counts = WorkCounts()
        self._padding_tokens = 0
        self._waited_seconds = 0.0
        self._steps = 0
        self._began = time.monotonic()

    def add(self, counts: WorkCounts, *, padding_tokens: int, waited_seconds: float) -> None:
        """Count one step.

        Args:
            counts: of the global batch.
            padding_tokens: of this rank's streams.
            waited_seconds: how long this rank has waited for its micro-batches.
        """
        self._counts += counts
        self._padding_tokens += padding_tokens
        self._waited_seconds += waited_seconds
        self._steps += 1

    def exclude(self, seconds: float) -> None:
        """Leave a pause out: evaluation and saving are not training."""
        self._began += seconds

    def read(self) -> dict[str, float]:
        """Return the values and start anew; every rank must call.

        Returns:
            speed/tokens_per_second, speed/pairs_per_second, speed/step_seconds, speed/model_tflops_per_device,
            speed/mfu (where the peak is known), speed/data_wait_share, speed/padding_share; docs/metrics.md has their
            units and reductions.
        """
        seconds = max(1e-9, time.monotonic() - self._began)
        flops = model_flops(self._shape, self._counts) / self._world_size / seconds
        padding = float(sum_over_ranks(torch.tensor(self._padding_tokens, device=self._device)))
        values = {
            "speed/tokens_per_second": self._counts.tokens / seconds,
            "speed/pairs_per_second": self._counts.pairs / seconds,
            "speed/step_seconds": seconds / max(1, self._steps),
            "speed/model_tflops_per_device": flops / 1e12,
            # The largest: at the end of a step all ranks wait for the one that got its data last.
            "speed/data_wait_share": max_over_ranks(self._waited_seconds / seconds, self._device),
            "speed/padding_share": padding / max(1.0, self._counts.tokens + padding),
        }
        if self._peak_flops is not None:
            values["speed/mfu"] = flops / self._peak_flops
        self._begin()
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
