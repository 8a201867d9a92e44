"""Training steps as `pretrain.train` makes them, timed: the same checks, model, engine, stream and step.

1. `prepare` checks all that the user gave, in a folder of its own in place of the run dir.
2. `measure` makes a few steps to warm up, then whole optimizer steps until the time is over.

Times are taken on the device's own clock, so that what the host does while the device works costs nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pretrain import train
from pretrain.bench.report import PARTS, Measures
from pretrain.bench.synthetic import VOCAB_SIZE, write_shards, write_tokenizer
from pretrain.data.reader import TRAIN_SPLIT, PairReader
from pretrain.data.stream import Cursor, MicroBatch
from pretrain.engine.build import batch_sizes_of, build_engine, describe_precision
from pretrain.flops import ModelShape, WorkCounts
from pretrain.host_memory import keep_freed_memory
from pretrain.initial import build_model
from pretrain.launch_check import Launch, check_launch
from pretrain.loop import known_peak, train_step
from pretrain.metrics import LossMeter, peak_memory_gib
from pretrain.model.bert import StreamBert
from pretrain.model.compiling import compile_layers
from pretrain.recipe import load_recipe
from runtime.dist import World, max_over_ranks, sum_over_ranks

if TYPE_CHECKING:
    from deepspeed.runtime.engine import DeepSpeedEngine

WARM_UP_STEPS = 3
"""Kernels are chosen and compiled, memory is reserved, the queue of batches is filled."""
ROUNDS = 10
"""Times that the ranks agree how long they have measured; the device is waited for at the end of each."""


@dataclass(frozen=True)
class Subject:
    """What is measured, checked."""

    launch: Launch
    model: StreamBert
    reader: PairReader
    data: str
    """Where the pairs come from, for people."""


def prepare(arguments: argparse.Namespace, world: World, scratch: Path) -> Subject:
    """Check all that the user gave, as training does; the run dir is neither read nor written.

    Args:
        arguments: recipe, deepspeed_config, set, synthetic.
        world: this process's place.
        scratch: an empty folder of this process alone.

    Raises:
        ConfigError: as `check_launch`.
    """
    synthetic = _write_synthetic(arguments, scratch) if arguments.synthetic else []
    launch = check_launch(
        argparse.Namespace(
            recipe=arguments.recipe,
            deepspeed_config=arguments.deepspeed_config,
            set=[*arguments.set, *synthetic],
            run_dir=str(scratch),
            resume="none",
        ),
        world,
    )
    # Invented words are no vocabulary that weights of another run could belong to.
    model = build_model(launch.recipe, launch.tokenizer, is_resumed=arguments.synthetic)
    compile_layers(model, launch.compiled)
    # Every process has its own scratch folder, so each plans for itself.
    reader = replace(train.open_reader(launch, TRAIN_SPLIT), build_plans=True)
    return Subject(launch, model, reader, "random tokens" if arguments.synthetic else launch.recipe.shards)


def _write_synthetic(arguments: argparse.Namespace, scratch: Path) -> list[str]:
    """Write a tokenizer and shards; return the overrides that point the recipe to them."""
    recipe = load_recipe(arguments.recipe, arguments.set)
    tokenizer_dir, shard_dir = scratch / "tokenizer", scratch / "shards"
    vocab_size = recipe.model.vocab_size or VOCAB_SIZE
    write_tokenizer(tokenizer_dir, vocab_size)
    write_shards(shard_dir, tokenizer_dir, vocab_size, recipe.data.seq_len)
    paths = {"tokenizer": tokenizer_dir, "shards": shard_dir}
    return [*(f"{key}={json.dumps(str(path))}" for key, path in paths.items()), "data.short_seq_prob=0.0"]


class Stopwatch:
    """Splits the time of a device into parts, on the device's own clock: events on CUDA, the host's time elsewhere.

    Args:
        device: of the engine.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str | None, torch.cuda.Event | float]] = []

    def start(self) -> None:
        """Begin a round; the time since the mark before is nobody's."""
        self._marks.append((None, self._now()))

    def mark(self, part: str) -> None:
        """End a part that began with the mark before; PARTS[0] is the first of a step."""
        self._marks.append((part, self._now()))

    def read(self) -> tuple[list[float], dict[str, float]]:
        """Return the seconds of each step, and the seconds of each part in all of them; waits for the device."""
        self.wait()
        steps: list[float] = []
        parts = dict.fromkeys(PARTS, 0.0)
        for (_, before), (part, now) in zip(self._marks, self._marks[1:], strict=False):
            if part is None:
                continue
            seconds = _between(before, now)
            parts[part] += seconds
            if part == PARTS[0]:
                steps.append(0.0)
            steps[-1] += seconds
        return steps, parts

    def wait(self) -> None:
        """Wait until the device has done all that it was given."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _now(self) -> torch.cuda.Event | float:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _between(before: torch.cuda.Event | float, now: torch.cuda.Event | float) -> float:
    if isinstance(before, float) or isinstance(now, float):
        assert isinstance(before, float)
        assert isinstance(now, float)
        return now - before
    return float(before.elapsed_time(now)) / 1e3


@dataclass
class _Stepper:
    """Makes steps and counts what went through them."""

    engine: DeepSpeedEngine
    batches: Iterator[tuple[list[MicroBatch], Cursor]]
    world: World
    device: torch.device
    seed: int
    losses: LossMeter
    steps: int = 0
    counts: WorkCounts = field(default_factory=WorkCounts)
    padding_tokens: int = 0

    def take(self, number: int, watch: Stopwatch) -> None:
        """Make some steps, and wait for the device at their end."""
        watch.start()
        for _ in range(number):
            micro_batches, _ = next(self.batches)
            watch.mark("data_wait")
            train_step(
                self.engine,
                micro_batches,
                self.losses,
                device=self.device,
                world=self.world,
                seed=self.seed,
                step=self.steps,
                mark=watch.mark,
            )
            self.steps += 1
            self.counts += WorkCounts.of(micro_batches[0].counts)
            self.padding_tokens += sum(micro_batch.padding_tokens for micro_batch in micro_batches)
        watch.wait()


def measure(subject: Subject, device: torch.device, seconds: float) -> Measures:
    """Time steps; every rank must call, inside a process group.

    Args:
        subject: from `prepare`.
        device: of the process group.
        seconds: how long to measure; at least one step is.
    """
    launch = subject.launch
    engine = build_engine(subject.model, launch.ds_config)
    if device.type == "cpu":
        keep_freed_memory()  # as in training
    engine.train()
    stream = train.open_stream(subject.reader, engine, launch.world)
    watch = Stopwatch(device)
    with stream.iterate(Cursor()) as batches:
        seed, losses = launch.recipe.training.seed, LossMeter(device)
        stepper = _Stepper(engine, batches, launch.world, device, seed, losses)
        stepper.take(WARM_UP_STEPS - 1, Stopwatch(device))
        began = time.monotonic()
        stepper.take(1, Stopwatch(device))
        pace = max_over_ranks(time.monotonic() - began, device)
        skipped, stepper.counts, stepper.padding_tokens = engine.skipped_steps, WorkCounts(), 0
        _take_for(seconds, pace, stepper, watch)
    step_seconds, part_seconds = watch.read()
    parts = torch.tensor([part_seconds[part] for part in PARTS], dtype=torch.float64, device=device)
    mean_parts = (sum_over_ranks(parts) / launch.world.size).tolist()
    padding = sum_over_ranks(torch.tensor(stepper.padding_tokens, device=device))
    return Measures(
        name=launch.recipe.name,
        data=subject.data,
        seq_len=launch.recipe.data.seq_len,
        shape=ModelShape.of(subject.model),
        parameters=sum(int(getattr(p, "ds_numel", p.numel())) for p in subject.model.parameters()),
        device=_describe(device),
        world_size=launch.world.size,
        precision=describe_precision(engine),
        zero_stage=int(engine.zero_optimization_stage()),
        sizes=batch_sizes_of(engine),
        counts=stepper.counts,
        padding_tokens=int(padding),
        step_seconds=step_seconds,
        part_seconds=dict(zip(PARTS, mean_parts, strict=True)),
        skipped_steps=int(engine.skipped_steps - skipped),
        peak_flops=known_peak(engine, device, launch.recipe.tracking.peak_tflops),
        peak_memory_gib=peak_memory_gib(device),
    )


def _take_for(seconds: float, pace: float, stepper: _Stepper, watch: Stopwatch) -> None:
    """Make steps until the time is over by the slowest rank's clock, in rounds of as many on every rank.

    Args:
        seconds: the time.
        pace: seconds of a step, the same on every rank.
        stepper: makes them.
        watch: times them.
    """
    began, first, elapsed = time.monotonic(), stepper.steps, 0.0
    while elapsed < seconds:
        number = max(1, int(min(seconds / ROUNDS, seconds - elapsed) / pace))
        stepper.take(number, watch)
        elapsed = max_over_ranks(time.monotonic() - began, stepper.device)
        pace = elapsed / (stepper.steps - first)


def _describe(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({torch.get_num_threads()} threads)"
