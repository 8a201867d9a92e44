"""A bare training step, without an engine, and how it is timed."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_check.workload import Scale, Shape
from pretrain.data.stream import MicroBatch
from pretrain.engine.optim import parameter_groups
from pretrain.flops import ModelShape, WorkCounts, model_flops, peak_flops
from pretrain.forward import forward_sums
from pretrain.model.bert import StreamBert
from pretrain.model.compiling import compile_layers
from pretrain.model.loss import micro_batch_loss

LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.01
BYTES_A_PARAMETER = 20
"""bf16 weights and gradients, fp32 master weights, their gradients, and two moments: 2 + 2 + 4 + 4 + 8."""
LAYER_BYTES_A_TOKEN = 34
"""Activations that a layer keeps, bytes a token and unit of width, with attention that keeps no scores."""
_SEED = 1


def our_model(
    scale: Scale, shape: Shape, device: torch.device, *, dropout: float = 0.0, compiled: str = "off"
) -> StreamBert:
    """Return our model in bf16 on a device, seeded."""
    torch.manual_seed(_SEED)
    with device:
        model: StreamBert = StreamBert(shape.config(scale.vocab_size, dropout)).train()
    compile_layers(model, compiled)
    model.to(device, torch.bfloat16)
    return model


class MasterAdamW:
    """AdamW on fp32 copies of a half-precision model's parameters, as engines for bf16 do it.

    Args:
        model: its parameters are updated and their gradients taken away.
        fused: torch's fused kernel, or its default.
    """

    def __init__(self, model: nn.Module, *, fused: bool = True) -> None:
        groups = parameter_groups(model)
        self.parameters: list[Tensor] = [parameter for group in groups for parameter in group["params"]]
        groups = [{**group, "params": [p.detach().float() for p in group["params"]]} for group in groups]
        self.masters: list[Tensor] = [master for group in groups for master in group["params"]]
        self.adamw = torch.optim.AdamW(groups, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=fused or None)

    def step(self) -> None:
        """Make one update."""
        self.take_gradients()
        self.update()

    def update(self) -> None:
        """Make one update with the gradients that the masters have."""
        self.adamw.step()
        self.hand_out()

    @torch.no_grad()
    def take_gradients(self, *, adds_up: bool = False) -> None:
        """Move the model's gradients to the masters, in fp32, or add them to what the masters have."""
        for master in self.masters:
            if master.grad is None:
                master.grad = torch.empty_like(master)
        move = torch._foreach_add_ if adds_up else torch._foreach_copy_
        move(_gradients(self.masters), _gradients(self.parameters))
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def hand_out(self) -> None:
        """Give the model the masters' values."""
        torch._foreach_copy_(self.parameters, self.masters)


def _gradients(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.grad for tensor in tensors if tensor.grad is not None]


def loss_of(model: nn.Module, micro_batch: MicroBatch, device: torch.device, accumulation: int = 1) -> Tensor:
    """Return a micro-batch's share of the step's loss, times the accumulation by which an engine divides."""
    return micro_batch_loss(
        forward_sums(model, micro_batch, device),
        global_masked_tokens=micro_batch.global_masked_tokens,
        global_pairs=micro_batch.global_pairs,
        world_size=1,
        accumulation=accumulation,
    )


def bare_step(
    model: nn.Module,
    micro_batches: Sequence[MicroBatch],
    device: torch.device,
    *,
    fused: bool = True,
) -> Callable[[int], Tensor]:
    """Return a function that makes update number i, of one micro-batch, and returns its loss."""
    optimizer = MasterAdamW(model, fused=fused)

    def step(number: int) -> Tensor:
        loss = loss_of(model, micro_batches[number % len(micro_batches)], device)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@dataclass(frozen=True)
class Timing:
    """What was measured of a step."""

    seconds: list[float]
    """Of each timed step."""
    first_loss: float
    last_loss: float
    peak_bytes: int
    """Most that torch had allocated; 0 on a CPU."""
    warm_seconds: float
    """All warm-up steps, compilation included."""

    @property
    def median(self) -> float:
        """Seconds of a step."""
        return statistics.median(self.seconds)


def time_steps(step: Callable[[int], Tensor], device: torch.device, *, warm: int, timed: int) -> Timing:
    """Time steps by the device's own clock.

    Args:
        step: makes the step of a number and returns its loss, a tensor.
        device: of the model.
        warm: steps before, not timed.
        timed: steps that are timed.
    """
    on_cuda = device.type == "cuda"
    begin = time.perf_counter()
    losses = [step(number) for number in range(warm)]
    if on_cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    warm_seconds = time.perf_counter() - begin
    marks: list[Any] = [_mark(on_cuda)]
    for number in range(warm, warm + timed):
        losses.append(step(number))
        marks.append(_mark(on_cuda))
    if on_cuda:
        torch.cuda.synchronize(device)
    seconds = [a.elapsed_time(b) / 1e3 if on_cuda else b - a for a, b in itertools.pairwise(marks)]
    peak = torch.cuda.max_memory_allocated(device) if on_cuda else 0
    return Timing(seconds, losses[0].item(), losses[-1].item(), peak, warm_seconds)


def _mark(on_cuda: bool) -> Any:
    if not on_cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def figures(
    timing: Timing, scale: Scale, shape: Shape, micro_batches: Sequence[MicroBatch], accumulation: int = 1
) -> dict[str, Any]:
    """Turn a timing into rates; padding counts for nothing.

    Args:
        timing: of steps of `accumulation` micro-batches each, taken in turns.
        scale: of the run.
        shape: of the model.
        micro_batches: of the steps; their own counts are taken, not those of a global batch.
        accumulation: micro-batches of a step.
    """
    work = sum((own_counts(one) for one in micro_batches), WorkCounts())
    steps = len(micro_batches) / accumulation
    flops = model_flops(ModelShape(shape.layers, shape.hidden, 4 * shape.hidden, scale.vocab_size), work) / steps
    seconds = timing.median
    padding = sum(one.padding_tokens for one in micro_batches)
    on_cuda = torch.cuda.is_available()
    peak = peak_flops(torch.cuda.get_device_name(), torch.bfloat16) if on_cuda else None
    return {
        "step_ms": round(1e3 * seconds, 3),
        "step_ms_worst": round(1e3 * max(timing.seconds), 3),
        "pairs_per_second": round(work.pairs / steps / seconds, 1),
        "real_tokens_per_second": round(work.tokens / steps / seconds),
        "tflops": round(flops / seconds / 1e12, 4),
        "mfu": round(flops / seconds / peak, 4) if peak else None,
        "peak_gib": round(timing.peak_bytes / 2**30, 3) if on_cuda else None,
        "padding_share": round(padding / max(1, work.tokens + padding), 4),
        "first_loss": round(timing.first_loss, 4),
        "last_loss": round(timing.last_loss, 4),
        "warm_up_seconds": round(timing.warm_seconds, 1),
    }


def own_counts(micro_batch: MicroBatch) -> WorkCounts:
    """Count one micro-batch."""
    num_pairs = micro_batch.num_pairs
    lengths = [int(length) for length in micro_batch.pair_lengths[:num_pairs]]
    masked = int((micro_batch.labels >= 0).sum())
    return WorkCounts(sum(lengths), sum(length**2 for length in lengths), masked, num_pairs)


def predicted_gib(scale: Scale, shape: Shape, num_parameters: int, micro_batch: MicroBatch) -> float:
    """Return the memory that a bare bf16 step should need: model states, activations, the head's logits.

    Args:
        scale: of the run.
        shape: of the model.
        num_parameters: of the model.
        micro_batch: padding counts here.
    """
    states = BYTES_A_PARAMETER * num_parameters
    activations = LAYER_BYTES_A_TOKEN * shape.layers * shape.hidden * micro_batch.input_ids.size
    # logits in bf16 and fp32, and the gradients of both
    logits = 2 * (2 + 4) * micro_batch.labels.size * scale.vocab_size
    return (states + activations + logits) / 2**30
