"""A step of our LAMB against PyPI's pytorch-lamb, at 42 million parameters.

    python -m benchmarks.lamb

Whole parameters, one thread, fp32, no communication: what an update costs by itself. pytorch-lamb neither corrects the
moments nor bounds the ratio, and takes no weight's norm for more than 10, so ours is set to do the same and the weights
are made small. Both arms start from the same weights and get the same gradients; the weights after three steps
are compared before any ratio is printed.
"""

from __future__ import annotations

import importlib
import math
import sys
import types
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks import fetch, harness
from benchmarks.models import bert_config
from pretrain.engine.lamb import Lamb
from pretrain.engine.optim import parameter_groups
from pretrain.model.bert import StreamBert

LEAST_RATIO = 4.5
LAYERS, HIDDEN, VOCAB_SIZE = 8, 512, 30_522
SETTINGS: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01}
CHECKED_STEPS = 3
LARGEST_DIFFERENCE = 5e-6
"""Between weights after the checked steps, relative to the largest weight of its parameter."""
_DEVIATION = 0.002
"""Of the weights: the word table's norm, 7.9, stays below pytorch-lamb's 10. No weight is 0: its ratio differs."""


def pytorch_lamb() -> Any:
    """Return PyPI's class. It imports tensorboardX for a function that is not called here."""
    package = fetch.peer("pytorch-lamb")
    stand_in: Any = types.ModuleType("tensorboardX")
    stand_in.SummaryWriter = object
    sys.modules.setdefault("tensorboardX", stand_in)
    sys.path.insert(0, str(package))
    try:
        return importlib.import_module("pytorch_lamb.lamb").Lamb
    finally:
        sys.path.remove(str(package))


class Steps:
    """A model's parameters, the same gradients at every step, and an optimizer.

    Args:
        kind: class of the optimizer.
        more: its settings beyond `SETTINGS`.
    """

    def __init__(self, kind: Any, **more: Any) -> None:
        torch.manual_seed(0)
        model = StreamBert(bert_config(LAYERS, HIDDEN, VOCAB_SIZE, dropout=0.0))
        self.parameters: dict[str, Tensor] = dict(model.named_parameters())
        for parameter in self.parameters.values():
            parameter.data.normal_(std=_DEVIATION)
            parameter.grad = torch.empty_like(parameter)
        self._gradients = {name: torch.randn_like(parameter) * 1e-3 for name, parameter in self.parameters.items()}
        self.optimizer = kind(parameter_groups(model), **SETTINGS, **more)

    def give_gradients(self) -> None:
        """Put the gradients in their places: an optimizer may use them up."""
        for name, parameter in self.parameters.items():
            assert parameter.grad is not None
            parameter.grad.copy_(self._gradients[name])

    def __call__(self, steps: int) -> dict[str, Tensor]:
        """Make updates and return the parameters."""
        for _ in range(steps):
            self.give_gradients()
            self.optimizer.step()
        return self.parameters


def check_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> str:
    """Compare weights that both arms have moved.

    Raises:
        harness.UnequalError: they differ by more than rounding.
    """
    worst = 0.0
    for name, weight in ours.items():
        scale = float(theirs[name].detach().abs().max()) or 1.0
        worst = max(worst, float((weight - theirs[name]).detach().abs().max()) / scale)
    if not worst <= LARGEST_DIFFERENCE:
        raise harness.UnequalError(f"weights after {CHECKED_STEPS} steps differ by {worst:.1e}")
    num = sum(weight.numel() for weight in ours.values())
    return f"{num / 1e6:.1f}M weights within {worst:.0e} of the largest after {CHECKED_STEPS} steps"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 where the goal is met."""
    report = harness.Report("lamb", harness.parser("lamb", __doc__).parse_args(arguments))
    warnings.filterwarnings("ignore", message=".*deprecated.*")  # the peer's own calls of torch
    ours = Steps(Lamb, bias_correction=False, min_coeff=0.0, max_coeff=math.inf)
    peer = Steps(pytorch_lamb())
    equality = check_equal(ours(CHECKED_STEPS), peer(CHECKED_STEPS))
    report.compare(
        f"LAMB step, {LAYERS}x{HIDDEN}",
        harness.Arm("ZeroBERT Lamb", lambda _: ours.optimizer.step(), ours.give_gradients),
        harness.Arm(
            f"pytorch-lamb {fetch.PEERS['pytorch-lamb']}", lambda _: peer.optimizer.step(), peer.give_gradients
        ),
        lambda *_: equality,
        amount=sum(weight.numel() for weight in ours.parameters.values()) / 1e6,
        unit="million parameters",
        goal=LEAST_RATIO,
    )
    return report.finish()


if __name__ == "__main__":
    harness.start(main)
