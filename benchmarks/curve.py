"""A validation loss over CPU time, the evaluations themselves left out."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field

from benchmarks import harness

CLOSENESS = 0.15
"""Nats by which the arms' losses may differ at an evaluation: they draw other masks and other dropout."""


@dataclass
class Curve:
    """Validation losses over CPU time, evaluations left out."""

    points: list[tuple[float, float]] = field(default_factory=list)
    """CPU seconds since `begin`, MLM loss in nats a masked token."""
    _began: float = 0.0
    _paused_at: float = 0.0

    def begin(self) -> None:
        """Start the clock."""
        self._began = time.process_time()

    def pause(self) -> None:
        """Stop the clock for an evaluation."""
        self._paused_at = time.process_time()

    def go_on(self, loss: float) -> None:
        """Note the loss that the evaluation gave, and let the clock go on."""
        self.points.append((self._paused_at - self._began, loss))
        self._began += time.process_time() - self._paused_at

    def seconds_to(self, target: float) -> float:
        """Return the CPU seconds at which the loss first was at a target, on a line between two evaluations.

        Raises:
            UnequalError: it never was.
        """
        for (before, higher), (after, lower) in itertools.pairwise(self.points):
            if lower <= target:
                share = 0.0 if higher <= target else (higher - target) / (higher - lower)
                return before + share * (after - before)
        lowest = min(loss for _, loss in self.points)
        raise harness.UnequalError(f"the validation loss came down to {lowest:.3f}, not to {target}")


def check_equal(ours: Curve, theirs: Curve) -> float:
    """Return the largest difference of the losses at the same step, in nats.

    Raises:
        UnequalError: it is more than chance explains: another lr, schedule, batch or model.
    """
    pairs = list(zip((loss for _, loss in ours.points), (loss for _, loss in theirs.points), strict=True))
    largest = max(abs(own - other) for own, other in pairs)
    if not largest <= CLOSENESS:
        raise harness.UnequalError(f"validation losses of zerobert and the peer: {pairs}")
    return largest
