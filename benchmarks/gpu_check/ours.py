"""Stages about our own step: speed by model and lengths, no waiting for the device, fp16, a loss that falls."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_check.stage import Results
from benchmarks.gpu_check.training import MasterAdamW, bare_step, figures, loss_of, our_model, predicted_gib, time_steps
from benchmarks.gpu_check.workload import FULL_128, FULL_512, WIKIPEDIA_512, Shape, micro_batches
from pretrain.model.compiling import LAYERS, OFF

FP16_STEPS = 12
FALLING_WORDS = 1000


def best_mode(device: torch.device) -> str:
    """Return what training's own default comes to: compiled on CUDA."""
    return LAYERS if device.type == "cuda" else OFF


def measure(results: Results, shape: Shape, kind: str, dropout: float = 0.0) -> dict[str, Any]:
    """Time our step with all that it has."""
    scale, device = results.scale, results.device
    batches = micro_batches(scale, kind)
    model = our_model(scale, shape, device, dropout=dropout, compiled=best_mode(device))
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    timing = time_steps(bare_step(model, batches, device), device, warm=scale.warm, timed=scale.timed)
    found = figures(timing, scale, shape, batches)
    found["parameters"] = num_parameters
    found["predicted_gib"] = round(predicted_gib(scale, shape, num_parameters, batches[0]), 3)
    return found


def _measure_kinds(results: Results, shape: Shape, *kinds: str) -> None:
    said = []
    for kind in kinds:
        found = results.attempt(kind, partial(measure, results, shape, kind))
        if found:
            said.append(f"{kind}: {speed_of(found)}")
    results.headline("; ".join(said))


def speed_of(found: dict[str, Any]) -> str:
    """Say the main figures of a case in a line."""
    share = f", MFU {found['mfu']:.1%}" if found["mfu"] else ""
    memory = f", {found['peak_gib']:.1f} GiB ({found['predicted_gib']:.1f} predicted)" if found["peak_gib"] else ""
    return f"{found['pairs_per_second']:,.1f} pairs/s, {found['real_tokens_per_second']:,} tokens/s{share}{memory}"


def large_wikipedia(results: Results) -> None:
    """BERT-large, lengths of Wikipedia's pairs at 512."""
    _measure_kinds(results, results.scale.large, WIKIPEDIA_512)


def large_128(results: Results) -> None:
    """BERT-large, full pairs of 128."""
    _measure_kinds(results, results.scale.large, FULL_128)


def large_512(results: Results) -> None:
    """BERT-large, full pairs of 512."""
    _measure_kinds(results, results.scale.large, FULL_512)


def base(results: Results) -> None:
    """BERT-base, full pairs of 128 and of 512."""
    _measure_kinds(results, results.scale.base, FULL_128, FULL_512)


def no_waiting(results: Results) -> None:
    """Make steps during which any wait for the device is an error."""
    scale, device = results.scale, results.device
    batches = micro_batches(scale, WIKIPEDIA_512)
    step = bare_step(our_model(scale, scale.base, device, compiled=best_mode(device)), batches, device)
    step(0), step(1)  # compile
    if device.type != "cuda":
        results.absent("no CUDA device: nothing to wait for")
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(2, 5):
            step(number)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    results.headline("3 steps without a wait for the device")


def falling_loss(results: Results) -> None:
    """Train on few words: the loss must start at ln V + ln 2 and fall below it."""
    scale, device = results.scale, results.device
    batches = micro_batches(scale, WIKIPEDIA_512, word_ids=min(FALLING_WORDS, scale.word_ids))
    step = bare_step(our_model(scale, scale.base, device, dropout=0.1, compiled=best_mode(device)), batches, device)
    losses = [loss.item() for loss in [step(number) for number in range(scale.falling_steps)]]
    results.record("losses", [round(loss, 4) for loss in losses])
    fresh = math.log(scale.vocab_size) + math.log(2)
    results.record("fresh_model", round(fresh, 4))
    results.headline(f"loss {losses[0]:.3f} (ln V + ln 2 = {fresh:.3f}) to {losses[-1]:.3f} in {len(losses)} steps")
    if not abs(losses[0] - fresh) < 0.5 or not losses[-1] < losses[0]:
        results.faults.append("the loss does not start at ln V + ln 2, or does not fall")


def fp16(results: Results) -> None:
    """Make steps in fp16 with a loss scaler that starts far too high, and see it come down."""
    scale, device = results.scale, results.device
    batches = micro_batches(scale, WIKIPEDIA_512)
    model = our_model(scale, scale.base, device).half()
    optimizer = MasterAdamW(model)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**24)
    losses: list[Tensor] = []
    scales = []
    for number in range(FP16_STEPS):
        loss = loss_of(model, batches[number % len(batches)], device)
        scaler.scale(loss).backward()
        optimizer.take_gradients()
        scaler.step(optimizer.adamw)
        scaler.update()
        optimizer.hand_out()
        losses.append(loss.detach())
        scales.append(scaler.get_scale())
    values = [loss.item() for loss in losses]
    results.record("losses", [round(value, 4) for value in values])
    results.record("loss_scales", scales)
    first, last = (math.log2(scales[place]) for place in (0, -1))
    results.headline(f"loss {values[0]:.3f} to {values[-1]:.3f}, scale 2^{first:.0f} to 2^{last:.0f}")
    if not all(math.isfinite(value) for value in values) or not values[-1] < values[0]:
        results.faults.append(f"losses {values}")
