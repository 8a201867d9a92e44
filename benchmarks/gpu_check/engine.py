"""Stage about DeepSpeed: what its engine costs beside a bare loop with the same sums, clipping and updates."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_check.ours import best_mode
from benchmarks.gpu_check.stage import Results
from benchmarks.gpu_check.training import (
    LEARNING_RATE,
    WEIGHT_DECAY,
    MasterAdamW,
    figures,
    loss_of,
    our_model,
    time_steps,
)
from benchmarks.gpu_check.workload import WIKIPEDIA_512, micro_batches, one_global_batch
from pretrain.data.stream import MicroBatch
from runtime.dist import World, process_group

WARM, TIMED = 2, 4
FP16_STEPS = 20
CLIPPING = 1.0
LARGEST_DIFFERENCE = 2e-2


def engine(results: Results) -> None:
    """Time the engine at ZeRO 0 and 1 with accumulation, and fp16's loss scale through it."""
    if importlib.util.find_spec("deepspeed") is None:
        results.absent("deepspeed is not installed")
        return
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    scale, device = results.scale, results.device
    parts = one_global_batch(micro_batches(scale, WIKIPEDIA_512, number=scale.accumulation))

    def measured(make: Callable[[], Callable[[int], Tensor]]) -> dict[str, Any]:
        timing = time_steps(make(), device, warm=WARM, timed=TIMED)
        return figures(timing, scale, scale.large, parts, accumulation=len(parts))

    bare = results.attempt("bare loop", partial(measured, partial(accumulating_step, results, parts)))
    said = []
    with process_group(World(rank=0, local_rank=0, size=1)):
        if device.type == "cpu":
            _skip_the_shared_memory_build()
        for stage in (0, 1):
            found = results.attempt(f"ZeRO {stage}", partial(measured, partial(engine_step, results, parts, stage)))
            if bare and found:
                name = f"ZeRO {stage}, difference of the losses"
                if results.attempt(name, partial(compare_losses, found, bare)) is None:
                    continue  # no ratio of what is not the same
                ratio = found["step_ms"] / bare["step_ms"]
                results.record(f"ZeRO {stage} / bare loop", round(ratio, 4))
                said.append(f"ZeRO {stage} {ratio:.3f} of the bare loop's time")
        if device.type == "cuda":
            found = results.attempt("fp16, ZeRO 1", partial(fp16_steps, results, parts))
            said.append(f"fp16 scale {found['loss_scales'][-1]:g}" if found else "fp16 failed")
    results.headline(", ".join(said))


def _skip_the_shared_memory_build() -> None:
    """Spare a collective that DeepSpeed compiles for a minute on CPUs, and that one process does not use."""
    import deepspeed  # noqa: PLC0415

    sys.modules[f"{deepspeed.__name__}.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]


def _config(parts: Sequence[MicroBatch], stage: int, precision: str, *, on_cuda: bool) -> dict[str, Any]:
    from pretrain.engine.ds_config import resolve_ds_config  # noqa: PLC0415

    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": parts[0].num_pairs,
        "gradient_accumulation_steps": len(parts),
        "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY}},
        "gradient_clipping": CLIPPING,
        "zero_optimization": {"stage": stage},
        precision: {"enabled": True},
    }
    return resolve_ds_config(
        config, path="gpu_check.json", world_size=1, total_steps=1, warmup_steps=None, on_cuda=on_cuda
    )


def _build(results: Results, parts: Sequence[MicroBatch], stage: int, precision: str) -> Any:
    from pretrain.engine.build import build_engine  # noqa: PLC0415 - deepspeed may be absent

    scale, device = results.scale, results.device
    model = our_model(scale, scale.large, device, compiled=best_mode(device)).float()
    return build_engine(model, _config(parts, stage, precision, on_cuda=device.type == "cuda"))


def accumulating_step(results: Results, parts: Sequence[MicroBatch]) -> Callable[[int], Tensor]:
    """Return a function that makes one update without an engine: sums in fp32, clipped, fused AdamW on the masters."""
    scale, device = results.scale, results.device
    model = our_model(scale, scale.large, device, compiled=best_mode(device))
    optimizer = MasterAdamW(model)

    def step(_: int) -> Tensor:
        total = torch.zeros((), device=device)
        for number, part in enumerate(parts):
            loss = loss_of(model, part, device)
            loss.backward()
            optimizer.take_gradients(adds_up=number > 0)
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(optimizer.masters, CLIPPING)
        optimizer.update()
        return total

    return step


def compare_losses(found: dict[str, Any], bare: dict[str, Any]) -> float:
    """Return how far the engine's losses of the first and the last step are from the bare loop's, as a share.

    Raises:
        AssertionError: farther than bf16's rounding explains.
    """
    difference: float = max(abs(found[name] / bare[name] - 1) for name in ("first_loss", "last_loss"))
    if not difference <= LARGEST_DIFFERENCE:
        raise AssertionError(f"losses differ by {difference:.1e}: {found}, {bare}")
    return difference


def engine_step(results: Results, parts: Sequence[MicroBatch], stage: int) -> Callable[[int], Tensor]:
    """Return a function that makes one update through the engine, as training does, and returns its loss."""
    from pretrain.engine.build import take_step  # noqa: PLC0415

    engine = _build(results, parts, stage, "bf16")

    def step(_: int) -> Tensor:
        total = torch.zeros((), device=results.device)
        for part in parts:
            loss = loss_of(engine, part, results.device, accumulation=len(parts))
            engine.backward(loss)
            take_step(engine)
            total += loss.detach()
        return total / len(parts)

    return step


def fp16_steps(results: Results, parts: Sequence[MicroBatch]) -> dict[str, Any]:
    """Make updates in fp16 through the engine; its scale starts high and comes down where gradients overflow."""
    from pretrain.engine.build import take_step  # noqa: PLC0415

    engine = _build(results, parts[:1], 1, "fp16")
    (part,) = one_global_batch(parts[:1])
    losses, scales = [], []
    for _ in range(FP16_STEPS):
        loss = loss_of(engine, part, results.device)
        engine.backward(loss)
        take_step(engine)
        losses.append(loss.item())
        scales.append(float(engine.optimizer.loss_scale))
    if not losses[-1] < losses[0]:
        raise AssertionError(f"fp16: losses {losses}")
    return {"losses": [round(value, 4) for value in losses], "loss_scales": scales}
