"""A training step, forward and backward, against stock BERT and bert-pytorch: one thread, the same samples.

    python -m benchmarks.step

Ours is a token stream with the MLM head at the masked positions; the peers are padded to seq_len and compute logits at
every position. Stock BERT has the same weights, and before any ratio is printed loss and gradients are compared in
fp32 without dropout. bert-pytorch is another model of the same size, with its own losses: equal are the samples. All
arms are timed with dropout 0.1 in hidden states and attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForPreTraining

from benchmarks import harness
from benchmarks.codertimo_peer import CodertimoStep
from benchmarks.models import bert_config
from benchmarks.samples import make_micro_batch, padded, wikipedia_lengths
from pretrain.data.stream import MicroBatch
from pretrain.forward import forward_sums
from pretrain.model.bert import StreamBert
from pretrain.model.loss import micro_batch_loss

VOCAB_SIZE = 30_528
"""bert-base-uncased's 30,522, to the next multiple of 64."""
DROPOUT = 0.1
BF16_LOSS_LIMIT = 1e-3
"""Share of the loss by which ours in bf16 may be off stock's in fp32."""
_SEED = 1
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A model, its samples and what the ratio should be."""

    name: str
    layers: int
    hidden: int
    seq_len: int
    num_pairs: int
    dtype: torch.dtype
    peer: str
    goal: float

    @property
    def lengths(self) -> list[int]:
        """Return the pairs' lengths: Wikipedia's at 512; at 128 nearly every pair is full."""
        if self.seq_len == 512:
            return wikipedia_lengths(self.num_pairs)
        return [self.seq_len] * self.num_pairs

    def config(self, dropout: float) -> BertConfig:
        """Return the stock config."""
        return bert_config(self.layers, self.hidden, VOCAB_SIZE, dropout)


STOCK = "stock"
CODERTIMO = "bert-pytorch"
CASES = (
    Case("step-mini-512 fp32", 4, 256, 512, 16, torch.float32, STOCK, 5.0),
    Case("step-small-512 bf16", 4, 512, 512, 8, torch.bfloat16, STOCK, 4.0),
    Case("step-base-128 fp32", 12, 768, 128, 8, torch.float32, STOCK, 1.45),
    Case("step-base-128 bf16", 12, 768, 128, 8, torch.bfloat16, STOCK, 1.5),
    Case("step-mini-512 fp32", 4, 256, 512, 16, torch.float32, CODERTIMO, 8.0),
)


def our_model(case: Case, dropout: float) -> StreamBert:
    """Return our model with seeded weights, in fp32."""
    torch.manual_seed(_SEED)
    model: StreamBert = StreamBert(case.config(dropout)).train()
    return model


def stock_model(case: Case, dropout: float) -> BertForPreTraining:
    """Return the stock class with the same weights, in fp32."""
    model = BertForPreTraining._from_config(case.config(dropout), attn_implementation="sdpa")
    model.load_state_dict(our_model(case, dropout).state_dict())
    return model.train()


def our_step(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
    """Forward and backward of ours; gradients are left in the model. Returns the loss."""
    model.zero_grad(set_to_none=True)
    loss = micro_batch_loss(
        forward_sums(model, micro_batch, CPU),
        global_masked_tokens=micro_batch.global_masked_tokens,
        global_pairs=micro_batch.global_pairs,
        world_size=1,
        accumulation=1,
    )
    torch.autograd.backward(loss)
    return loss.detach()


def stock_step(model: nn.Module, rows: dict[str, Tensor]) -> Tensor:
    """Forward and backward of the stock class with its own loss. Returns the loss."""
    model.zero_grad(set_to_none=True)
    loss: Tensor = model(**rows).loss
    torch.autograd.backward(loss)
    return loss.detach()


def check_equal(case: Case, micro_batch: MicroBatch, rows: dict[str, Tensor]) -> str:
    """Compare loss and gradients of both without dropout.

    In fp32 they are held against each other. In bf16 both are held against fp32: ours may not be farther from it than
    the stock class is, but for chance.

    Raises:
        UnequalError: they differ by more than rounding.
    """
    loss, gradients = _plain_step(stock_model(case, 0.0), stock_step, rows)
    our_loss, ours = _plain_step(our_model(case, 0.0).to(case.dtype), our_step, micro_batch)
    error, limit, loss_limit = _distance(ours, gradients), 1e-5, 1e-5
    dtype, others = "fp32", ""
    if case.dtype != torch.float32:
        _, stock = _plain_step(stock_model(case, 0.0).to(case.dtype), stock_step, rows)
        limit = 1.1 * _distance(stock, gradients)
        loss_limit, dtype = BF16_LOSS_LIMIT, str(case.dtype).removeprefix("torch.")
        others = f" (the stock class in {dtype}: {limit / 1.1:.0e})"
    if not (abs(our_loss - loss) <= loss_limit * loss and error <= limit):
        raise harness.UnequalError(f"{case.name}: losses {our_loss}, {loss}; gradients differ by {error:.1e}")
    losses = f"losses {our_loss:.5f} in {dtype} and {loss:.5f} in fp32"
    return f"{losses}, gradients within {error:.0e}{others}, without dropout"


def _plain_step(model: nn.Module, step: Callable[..., Tensor], batch: Any) -> tuple[float, dict[str, Tensor]]:
    loss = step(model, batch).item()
    return loss, {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


def _distance(gradients: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    """Return the largest distance of a parameter's gradient, as a share of the norm of all gradients of its kind.

    Kinds are matrices and vectors: the key's bias has a gradient of 0 in truth, and of rounding alone in both.
    """
    norms = {
        kind: sum(g.square().sum().item() for g in reference.values() if (g.ndim > 1) == kind) ** 0.5
        for kind in (True, False)
    }
    return max(float((gradients[name] - g).norm() / norms[g.ndim > 1]) for name, g in reference.items())


def peer_arm(case: Case, micro_batch: MicroBatch) -> tuple[harness.Arm, str]:
    """Return the peer, and what was found equal."""
    rows = padded(micro_batch, case.seq_len)
    if case.peer == CODERTIMO:
        step = CodertimoStep(case.config(DROPOUT), rows)
        return harness.Arm(step.name, lambda _: step.run()), step.equality(micro_batch)
    equality = check_equal(case, micro_batch, rows)
    stock = stock_model(case, DROPOUT).to(case.dtype)
    return harness.Arm(
        f"transformers {version('transformers')}, sdpa, padded", _step(stock_step, stock, rows)
    ), equality


def compare(report: harness.Report, case: Case) -> None:
    """Run one case."""
    micro_batch = make_micro_batch(case.lengths, VOCAB_SIZE)
    peer, equality = peer_arm(case, micro_batch)
    ours = our_model(case, DROPOUT).to(case.dtype)
    size = sum(parameter.numel() for parameter in ours.parameters()) / 1e6
    tokens = micro_batch.num_tokens
    report.compare(
        f"{case.name}, {case.layers} x {case.hidden}, {size:.0f}M parameters, {case.num_pairs} pairs of "
        f"{tokens / case.num_pairs:.0f} tokens",
        harness.Arm("zerobert", _step(our_step, ours, micro_batch)),
        peer,
        lambda *_: equality,
        amount=tokens,
        unit="tokens",
        goal=case.goal,
    )


def _step(step: Callable[[nn.Module, Any], Tensor], model: nn.Module, batch: Any) -> Callable[[Any], Tensor]:
    return lambda _: step(model, batch)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 where every goal is met."""
    parser = harness.parser("step", __doc__)
    parser.add_argument("--case", action="append", metavar="TEXT", help="only cases whose name has this in it")
    options = parser.parse_args(arguments)
    report = harness.Report("step", options)
    for case in CASES:
        if not options.case or any(text in f"{case.name} {case.peer}" for text in options.case):
            compare(report, case)
    return report.finish()


if __name__ == "__main__":
    harness.start(main)
