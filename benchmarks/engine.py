"""What DeepSpeed's engine costs: a step of ZeRO 1 on one rank against a bare loop that does the same arithmetic.

    python -m benchmarks.engine [--give-back]

Both arms start from the same weights, see the same micro-batch (at least 4,096 tokens, lengths of Wikipedia's pairs at
512), and make the same updates: gradients added up in fp32, clipped to norm 1, fused AdamW on fp32 weights, of which
the bf16 model gets a copy. The bare loop has no engine, no partitions and no flat buffers. No dropout, so that the
losses can be compared before anything is timed. Both keep the memory that they free, as training does on a CPU;
with --give-back neither does.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarks import harness
from benchmarks.models import bert_config
from benchmarks.samples import make_micro_batch, wikipedia_lengths
from pretrain.data.stream import MicroBatch
from pretrain.engine.build import build_engine, take_step
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.engine.optim import parameter_groups
from pretrain.forward import forward_sums
from pretrain.host_memory import keep_freed_memory
from pretrain.model.bert import StreamBert
from pretrain.model.loss import micro_batch_loss
from runtime.dist import World, process_group

if TYPE_CHECKING:
    from deepspeed.runtime.engine import DeepSpeedEngine

LARGEST_RATIO = 1.05
ROUNDS = 9
"""At the least: the difference that is looked for is as small as the noise of one."""
CHECKED_STEPS = 3
LARGEST_DIFFERENCE = {"fp32": 1e-5, "bf16": 1e-2}
VOCAB_SIZE = 30_528
NUM_PAIRS = 17
"""Of Wikipedia's lengths: 4,346 tokens."""
OPTIMIZER = {"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
CLIPPING = 1.0
CPU = torch.device("cpu")
_SEED = 1


@dataclass(frozen=True)
class Case:
    """A model and its precision, "fp32" or "bf16"."""

    name: str
    layers: int
    hidden: int
    precision: str
    vocab_size: int = VOCAB_SIZE

    def model(self) -> StreamBert:
        """Return the model with seeded weights, in fp32, without dropout."""
        torch.manual_seed(_SEED)
        config = bert_config(self.layers, self.hidden, self.vocab_size, dropout=0.0)
        model = StreamBert(config)
        model.train()
        return model


CASES = tuple(
    Case(f"{name} {precision}", layers, hidden, precision)
    for name, layers, hidden in (("mini 4x256", 4, 256), ("small 4x512", 4, 512))
    for precision in ("fp32", "bf16")
)


def ds_config(precision: str, num_pairs: int) -> dict[str, Any]:
    """Return a resolved JSON: ZeRO 1, one micro-batch a step, a constant lr."""
    config: dict[str, Any] = {
        "train_batch_size": num_pairs,
        "optimizer": {"type": "AdamW", "params": dict(OPTIMIZER)},
        "gradient_clipping": CLIPPING,
        "zero_optimization": {"stage": 1},
    }
    if precision == "bf16":
        config["bf16"] = {"enabled": True}
    return resolve_ds_config(config, path="engine.json", world_size=1, total_steps=1, warmup_steps=None, on_cuda=False)


def loss_of(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
    """Return the loss of a micro-batch that is the whole global batch."""
    return micro_batch_loss(
        forward_sums(model, micro_batch, CPU),
        global_masked_tokens=micro_batch.global_masked_tokens,
        global_pairs=micro_batch.global_pairs,
        world_size=1,
        accumulation=1,
    )


class EngineStep:
    """A step through DeepSpeed's engine, as training makes it; needs a process group.

    Args:
        case: the model.
        micro_batch: what every step sees.
    """

    def __init__(self, case: Case, micro_batch: MicroBatch) -> None:
        config = ds_config(case.precision, micro_batch.num_pairs)
        self.engine: DeepSpeedEngine = build_engine(case.model(), config)
        self._micro_batch = micro_batch

    def __call__(self) -> Tensor:
        """Make one update and return the loss before it."""
        loss = loss_of(self.engine, self._micro_batch)
        self.engine.backward(loss)
        take_step(self.engine)
        return loss.detach()


class BareStep:
    """The same update without an engine.

    Args:
        case: the model.
        micro_batch: what every step sees.
    """

    def __init__(self, case: Case, micro_batch: MicroBatch) -> None:
        self.model = case.model()
        if case.precision == "bf16":
            self.model.bfloat16()
        self._micro_batch = micro_batch
        groups = parameter_groups(self.model)
        self._parameters = [parameter for group in groups for parameter in group["params"]]
        self._is_half = case.precision == "bf16"
        if self._is_half:
            groups = [group | {"params": [p.detach().float() for p in group["params"]]} for group in groups]
        self._masters: list[Tensor] = [parameter for group in groups for parameter in group["params"]]
        self._optimizer = torch.optim.AdamW(groups, **OPTIMIZER, fused=True)  # type: ignore[arg-type]

    def __call__(self) -> Tensor:
        """Make one update and return the loss before it."""
        loss = loss_of(self.model, self._micro_batch)
        torch.autograd.backward(loss)
        if self._is_half:
            for master, parameter in zip(self._masters, self._parameters, strict=True):
                master.grad = parameter.grad.float()
                parameter.grad = None
        nn.utils.clip_grad_norm_(self._masters, CLIPPING)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._is_half:
            torch._foreach_copy_([parameter.detach() for parameter in self._parameters], self._masters)
        return loss.detach()


def check_equal(case: Case, engine: Callable[[], Tensor], bare: Callable[[], Tensor]) -> str:
    """Make the first steps with both arms, which warms them up, and compare the losses.

    Raises:
        UnequalError: they differ by more than the precision's rounding.
    """
    ours, theirs = ([step().item() for _ in range(CHECKED_STEPS)] for step in (engine, bare))
    differences = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    limit = LARGEST_DIFFERENCE[case.precision] * theirs[0]
    if not all(difference <= limit for difference in differences) or not theirs[-1] < theirs[0]:
        raise harness.UnequalError(f"{case.name}: losses {ours} with the engine, {theirs} without")
    return f"losses of {CHECKED_STEPS} steps within {max(differences):.0e}, {theirs[0]:.4f} to {theirs[-1]:.4f}"


def overhead(case: Case, micro_batch: MicroBatch, rounds: int) -> tuple[float, str]:
    """Measure one case; inside a process group.

    Args:
        case: the model.
        micro_batch: what every step sees.
        rounds: steps of each arm that are timed, in turns.

    Returns:
        Median of the rounds' ratios, engine / bare; what was equal, and the seconds.
    """
    engine, bare = EngineStep(case, micro_batch), BareStep(case, micro_batch)
    equality = check_equal(case, engine, bare)
    arms = (harness.Arm("engine", lambda _: engine()), harness.Arm("bare loop", lambda _: bare()))
    ours, theirs = harness.measure(arms, rounds)
    ratio = statistics.median(own / other for own, other in zip(ours, theirs, strict=True))
    seconds = f"{statistics.median(ours):.3f} s against {statistics.median(theirs):.3f} s"
    return ratio, f"{equality}; {seconds} a step"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 where the engine costs no more than the goal."""
    parser = harness.parser("engine", __doc__)
    parser.add_argument("--give-back", action="store_true", help="freed memory goes back to the system at once")
    options = parser.parse_args(arguments)
    if not options.give_back:
        keep_freed_memory()
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    report = harness.Report("engine", options)
    micro_batch = make_micro_batch(wikipedia_lengths(NUM_PAIRS), VOCAB_SIZE)
    with process_group(World(rank=0, local_rank=0, size=1)):
        for case in CASES:
            ratio, said = overhead(case, micro_batch, max(ROUNDS, report.rounds))
            name = f"ZeRO 1 engine / bare loop, {case.name}, {micro_batch.num_tokens:,} tokens a step; {said}"
            report.figure(name, ratio, "times", most=LARGEST_RATIO)
    return report.finish()


if __name__ == "__main__":
    harness.start(main)
