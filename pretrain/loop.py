"""The steps of a run: train, and at their intervals log, evaluate and save."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pretrain.data.order import Cursor
from pretrain.data.stream import MicroBatch, PairStream
from pretrain.engine.build import budget_is_over, take_step
from pretrain.engine.checkpoint import TrainingState
from pretrain.engine.lamb import trust_ratio_values
from pretrain.evaluate import evaluate
from pretrain.flops import ModelShape, WorkCounts, peak_flops
from pretrain.forward import forward_sums
from pretrain.health import Health
from pretrain.metrics import LossMeter, SpeedMeter, peak_memory_gib
from pretrain.model.loss import micro_batch_loss
from pretrain.recipe import Recipe
from pretrain.saver import Saver
from pretrain.stopping import Stopper
from runtime.dist import World
from runtime.seeding import DROPOUT, derive_seed
from runtime.tracking import Tracker
from runtime.watchdog import Watchdog

if TYPE_CHECKING:
    from deepspeed.runtime.engine import DeepSpeedEngine

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """Everything that the loop works with."""

    recipe: Recipe
    world: World
    device: torch.device
    engine: DeepSpeedEngine
    stream: PairStream
    validation: Callable[[], Iterable[MicroBatch]] | None
    """Makes this rank's validation micro-batches; None without evaluation."""
    tracker: Tracker
    saver: Saver
    stopper: Stopper
    watchdog: Watchdog


def train(run: Run, state: TrainingState) -> tuple[TrainingState, str | None]:
    """Train from a state to the recipe's last step; every rank must call.

    Returns:
        The state after the last step, and why it was the last where others were to come: a signal, the time.

    Raises:
        DivergedError: training must not go on.
        SaveError: a checkpoint could not be written.
    """
    recipe, steps = run.recipe, run.recipe.training.steps
    health = Health(recipe.health, is_fp16=run.engine.fp16_enabled())
    reason: str | None = None
    losses = LossMeter(run.device)
    shape, peak = ModelShape.of(run.engine.module), known_peak(run.engine, run.device, recipe.tracking.peak_tflops)
    speed = SpeedMeter(shape, run.world.size, run.device, peak)
    clock = _Clock(state.step, steps)
    run.engine.train()
    with run.stream.iterate(Cursor(state.epoch, state.consumed)) as batches:
        while state.step < steps and not reason and not budget_is_over(run.engine):
            run.watchdog.beat(state.step, "train")
            asked = time.monotonic()
            micro_batches, cursor = next(batches)
            waited_seconds = time.monotonic() - asked
            update = _healthy_step(run, micro_batches, losses, health, state)
            before, state = state, _advance(run, state, micro_batches[0], cursor)
            speed.add(
                WorkCounts.of(micro_batches[0].counts),
                padding_tokens=sum(micro_batch.padding_tokens for micro_batch in micro_batches),
                waited_seconds=waited_seconds,
            )
            reason = run.stopper.reason()
            if state.step == before.step and not reason:
                continue  # what is due at this step was done when it was reached
            is_last = state.step == steps or budget_is_over(run.engine)
            if is_last or state.step % recipe.training.log_interval_steps == 0:
                _log(run, state, losses, speed, update, clock, health)
            paused = time.monotonic()
            # A run that is to stop has little time: it saves first of all.
            if run.validation and not reason and (is_last or _is_due(state.step, recipe.evaluation.interval_steps)):
                _evaluate(run, run.validation, state)
            if is_last or reason or _is_due(state.step, recipe.checkpoint.interval_steps):
                _save(run, state, wait=is_last or reason is not None)
            run.saver.poll()
            speed.exclude(time.monotonic() - paused)
    return state, reason


def _healthy_step(
    run: Run, micro_batches: list[MicroBatch], losses: LossMeter, health: Health, state: TrainingState
) -> Update:
    """Make one update and look at it, before anything is logged or saved of it."""
    saved, before = run.saver.describe_last(), losses.snapshot()
    with health.step(state.step, saved):
        update = train_step(
            run.engine,
            micro_batches,
            losses,
            device=run.device,
            world=run.world,
            seed=run.recipe.training.seed,
            step=state.step,
        )
    norm = None if update.gradient_norm is None else float(update.gradient_norm)
    applied = bool(run.engine.was_step_applied())
    health.look(state.step + applied, norm, applied=applied, local_loss=lambda: losses.local_sum, saved=saved)
    if not applied:
        losses.restore(before)
    return update


def known_peak(engine: DeepSpeedEngine, device: torch.device, given_tflops: float | None) -> float | None:
    """Return the most that one device can do in the run's precision, FLOP/s.

    Args:
        engine: of the run; its precision counts.
        device: of the engine.
        given_tflops: tracking.peak_tflops of the recipe, which goes before the table.

    Returns:
        None where nobody knows: on a CPU, and on a device that the table lacks.
    """
    if given_tflops is not None:
        return given_tflops * 1e12
    if device.type != "cuda":
        return None
    # Under autocast the parameters stay in fp32, and the products do not.
    dtype = engine.torch_autocast_dtype() if engine.torch_autocast_enabled() else engine.get_data_types()[0]
    return peak_flops(torch.cuda.get_device_name(device), dtype)


def _advance(run: Run, state: TrainingState, micro_batch: MicroBatch, cursor: Cursor) -> TrainingState:
    """Return the state after an update; an overflow in fp16 spends the pairs, and moves no schedule and no step."""
    applied = bool(run.engine.was_step_applied())
    return TrainingState(
        step=state.step + int(applied),
        epoch=cursor.epoch,
        consumed=cursor.consumed,
        pairs_seen=state.pairs_seen + micro_batch.global_pairs,
        tokens_seen=state.tokens_seen + micro_batch.global_tokens,
    )


def _is_due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


class Update(NamedTuple):
    """What is known of one optimizer update."""

    lr: float
    """That the update used; afterwards the schedule stands at the next."""
    gradient_norm: Tensor | float | None
    """Over all ranks, before clipping."""


def _mark_nothing(part: str) -> None:
    """Take no time."""


def train_step(
    engine: DeepSpeedEngine,
    micro_batches: list[MicroBatch],
    losses: LossMeter,
    *,
    device: torch.device,
    world: World,
    seed: int,
    step: int,
    mark: Callable[[str], None] = _mark_nothing,
) -> Update:
    """Make one optimizer update from this rank's micro-batches; every rank must call.

    Nothing of ours in here waits for the device: numbers stay on it until a log line asks for them. DeepSpeed's own
    update does, once or twice, to see whether a gradient overflowed.

    Args:
        engine: in training mode.
        micro_batches: of this rank, one for each micro-step.
        losses: gets their sums.
        device: of the engine.
        world: this process's place.
        seed: of the run.
        step: updates done before this one.
        mark: is told when a part of a micro-step has been handed to the device: "forward", "backward", "optimizer".
    """
    lr, norm = float(engine.get_lr()[0]), None
    for micro_step, micro_batch in enumerate(micro_batches):
        # Dropout depends on the place in the run alone, so there is no generator state to save.
        torch.manual_seed(derive_seed(seed, DROPOUT, step, micro_step, world.rank))
        sums = forward_sums(engine, micro_batch, device)
        losses.add(sums)
        mark("forward")
        engine.backward(
            micro_batch_loss(
                sums,
                global_masked_tokens=micro_batch.global_masked_tokens,
                global_pairs=micro_batch.global_pairs,
                world_size=world.size,
                accumulation=len(micro_batches),
            )
        )
        mark("backward")
        norm = take_step(engine)
        mark("optimizer")
    return Update(lr, norm)


class _Clock:
    """Time left, from the mean pace since the start."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last, self._began = first, last, time.monotonic()

    def left(self, step: int) -> str:
        pace = (time.monotonic() - self._began) / max(1, step - self._first)
        seconds = round(pace * (self._last - step))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _log(
    run: Run,
    state: TrainingState,
    losses: LossMeter,
    speed: SpeedMeter,
    update: Update,
    clock: _Clock,
    health: Health,
) -> None:
    values = losses.reduce("train")
    health.look_at_loss(state.step, values["train/loss"], run.saver.describe_last())
    values["train/skipped_steps"] = health.skipped_steps
    values |= speed.read()
    values["train/lr"] = update.lr
    if update.gradient_norm is not None:
        values["train/grad_norm"] = float(update.gradient_norm)
    if run.engine.fp16_enabled():
        values["train/loss_scale"] = float(run.engine.optimizer.loss_scale)
    if run.recipe.tracking.trust_ratios:
        values |= trust_ratio_values(run.engine.basic_optimizer)
    values["memory/peak_gib"] = peak_memory_gib(run.device)
    values |= {"pairs_seen": state.pairs_seen, "tokens_seen": state.tokens_seen, "epoch": state.epoch}
    run.tracker.log(state.step, values)
    nsp = f" (mlm {values['train/mlm_loss']:.3f}, nsp {values['train/nsp_loss']:.3f})" if run.recipe.data.nsp else ""
    if run.world.is_rank_zero:
        logger.info(
            "step %d/%d  loss %.4f%s  lr %.2e  %s tokens/s%s  %.1f GiB  %s left",
            state.step,
            run.recipe.training.steps,
            values["train/loss"],
            nsp,
            values["train/lr"],
            f"{values['speed/tokens_per_second']:,.0f}",
            f" (MFU {100 * values['speed/mfu']:.1f} %)" if "speed/mfu" in values else "",
            values["memory/peak_gib"],
            clock.left(state.step),
        )


def _evaluate(run: Run, validation: Callable[[], Iterable[MicroBatch]], state: TrainingState) -> None:
    values = evaluate(run.engine, _beating(run, validation(), state.step), run.device)
    run.tracker.log(state.step, values)
    if run.world.is_rank_zero:
        nsp = f", NSP accuracy {values['eval/nsp_accuracy']:.3f}" if "eval/nsp_accuracy" in values else ""
        logger.info(
            "step %d  validation: MLM loss %.4f, accuracy %.3f%s",
            state.step,
            values["eval/mlm_loss"],
            values["eval/mlm_accuracy"],
            nsp,
        )


def _beating(run: Run, micro_batches: Iterable[MicroBatch], step: int) -> Iterator[MicroBatch]:
    for micro_batch in micro_batches:
        run.watchdog.beat(step, "evaluate")
        yield micro_batch


def _save(run: Run, state: TrainingState, *, wait: bool) -> None:
    run.watchdog.beat(state.step, "save")
    run.saver.save(state, wait=wait)
    run.stopper.saved(run.saver.longest_seconds)
    if run.world.is_first_of_host:
        # Every rank has come to this epoch: nobody opens the plans of earlier ones again.
        run.stream.reader.prune(keep=range(state.epoch, sys.maxsize))
