"""What was measured of training steps, as a table for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pretrain.engine.ds_config import BatchSizes
from pretrain.flops import ModelShape, WorkCounts, model_flops

PARTS = ("data_wait", "forward", "backward", "optimizer")
"""Of a step, in order; the last three come once a micro-step."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Some steps of one setting.

    Args:
        name: of the recipe.
        data: where the pairs came from, for people.
        seq_len: most tokens of a pair.
        shape: of the model.
        parameters: of the model.
        device: name of one rank's device.
        world_size: ranks.
        precision: in which types the engine computes, for people.
        zero_stage: 0 to 3.
        sizes: pairs of a step.
        counts: what went through all steps, all ranks.
        padding_tokens: likewise, beside counts.tokens.
        step_seconds: of each step, on rank 0.
        part_seconds: of each of PARTS in all steps, mean over ranks.
        skipped_steps: updates that overflowed in fp16.
        peak_flops: of one device, FLOP/s; None: not known.
        peak_memory_gib: largest over ranks.
    """

    name: str
    data: str
    seq_len: int
    shape: ModelShape
    parameters: int
    device: str
    world_size: int
    precision: str
    zero_stage: int
    sizes: BatchSizes
    counts: WorkCounts
    padding_tokens: int
    step_seconds: Sequence[float]
    part_seconds: Mapping[str, float]
    skipped_steps: int
    peak_flops: float | None
    peak_memory_gib: float


def report_values(measures: Measures) -> dict[str, Any]:
    """Return all figures by name; units stand in the names, and docs/metrics.md says what they are."""
    counts, seconds = measures.counts, sum(measures.step_seconds)
    flops = model_flops(measures.shape, counts) / measures.world_size / seconds
    low, median, high = (1e3 * np.percentile(measures.step_seconds, [10, 50, 90])).tolist()
    all_parts = sum(measures.part_seconds.values())
    return {
        "benchmark": "step",
        "recipe": measures.name,
        "data": measures.data,
        "seq_len": measures.seq_len,
        "model": {**asdict(measures.shape), "parameters": measures.parameters},
        "device": measures.device,
        "world_size": measures.world_size,
        "precision": measures.precision,
        "zero_stage": measures.zero_stage,
        **asdict(measures.sizes),
        "steps": len(measures.step_seconds),
        "skipped_steps": measures.skipped_steps,
        "seconds": seconds,
        **asdict(counts),
        "padding_tokens": measures.padding_tokens,
        "tokens_per_step": counts.tokens / len(measures.step_seconds),
        "tokens_per_second": counts.tokens / seconds,
        "pairs_per_second": counts.pairs / seconds,
        "model_tflops_per_device": flops / 1e12,
        "peak_tflops": None if measures.peak_flops is None else measures.peak_flops / 1e12,
        "mfu": None if measures.peak_flops is None else flops / measures.peak_flops,
        "step_milliseconds": {"median": median, "percentile_10": low, "percentile_90": high},
        "shares": {part: value / all_parts for part, value in measures.part_seconds.items()},
        "padding_share": measures.padding_tokens / (counts.tokens + measures.padding_tokens),
        "peak_memory_gib": measures.peak_memory_gib,
    }


def render(measures: Measures) -> str:
    """Return the table, its lines ended."""
    values, shape, sizes = report_values(measures), measures.shape, measures.sizes
    spread = values["step_milliseconds"]
    if values["mfu"] is None:
        mfu = "peak unknown: give tracking.peak_tflops"
    else:
        mfu = f"MFU {_percent(values['mfu'])} of {values['peak_tflops']:,.4g}"
    skipped = f", {measures.skipped_steps} skipped (fp16 overflow)" if measures.skipped_steps else ""
    shares = ", ".join(f"{part.replace('_', ' ')} {_percent(share)}" for part, share in values["shares"].items())
    rows = {
        "model": f"{measures.name}: {shape.num_hidden_layers} layers x {shape.hidden_size}, feed-forward "
        f"{shape.intermediate_size}, {shape.vocab_size:,} tokens; {measures.parameters / 1e6:.1f}M parameters",
        "device": f"{measures.world_size} x {measures.device}",
        "precision": measures.precision,
        "batch": f"{sizes.train_batch_size} pairs = {sizes.train_micro_batch_size_per_gpu} a micro-batch x "
        f"{sizes.gradient_accumulation_steps} micro-steps x {measures.world_size} ranks",
        "data": f"{measures.data}, pairs of up to {measures.seq_len} tokens",
        "measured": f"{values['steps']} steps in {values['seconds']:.1f} s{skipped}",
        "tokens": f"{values['tokens_per_step']:,.0f} a step, {values['tokens_per_second']:,.0f} a second, "
        f"padding {_percent(values['padding_share'])}",
        "pairs": f"{values['pairs_per_second']:,.1f} a second",
        "work": f"{values['model_tflops_per_device']:,.4g} TFLOP/s a device ({mfu})",
        "a step": f"{spread['median']:,.1f} ms (10 %: {spread['percentile_10']:,.1f}, "
        f"90 %: {spread['percentile_90']:,.1f})",
        "of it": shares,
        "memory": f"{measures.peak_memory_gib:.1f} GiB",
    }
    return "".join(f"{name:<12}{text}\n" for name, text in rows.items())


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
