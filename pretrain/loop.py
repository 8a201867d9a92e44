"""The steps of a run: train, and at their intervals log, evaluate and save."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pretrain.data.order import Cursor
from pretrain.data.stream import MicroBatch, PairStream
from pretrain.engine.build import take_step
from pretrain.engine.checkpoint import TrainingState, save_checkpoint
from pretrain.evaluate import evaluate
from pretrain.forward import forward_sums
from pretrain.metrics import LossMeter, SpeedMeter, peak_memory_gib
from pretrain.model.loss import micro_batch_loss
from pretrain.recipe import Recipe
from runtime.dist import World
from runtime.seeding import DROPOUT, derive_seed
from runtime.tracking import Tracker

if TYPE_CHECKING:
    from deepspeed.runtime.engine import DeepSpeedEngine

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """Everything that the loop works with."""

    recipe: Recipe
    ds_config: Mapping[str, Any]
    fingerprints: Mapping[str, str]
    run_dir: Path
    world: World
    device: torch.device
    engine: DeepSpeedEngine
    stream: PairStream
    validation: Callable[[], Iterable[MicroBatch]] | None
    """Makes this rank's validation micro-batches; None without evaluation."""
    tracker: Tracker


def train(run: Run, state: TrainingState) -> TrainingState:
    """Train from a state to the recipe's last step; every rank must call.

    Returns:
        The state after the last step.
    """
    recipe, steps = run.recipe, run.recipe.training.steps
    losses, speed = LossMeter(run.device), SpeedMeter()
    clock = _Clock(state.step, steps)
    run.engine.train()
    with run.stream.iterate(Cursor(state.epoch, state.consumed)) as batches:
        while state.step < steps:
            micro_batches, cursor = next(batches)
            update = _train_step(run, micro_batches, state.step, losses)
            before, state = state, _advance(run, state, micro_batches[0], cursor)
            speed.add(micro_batches[0].global_tokens, micro_batches[0].global_pairs)
            if state.step == before.step:
                continue  # what is due at this step was done when it was reached
            is_last = state.step == steps
            if is_last or state.step % recipe.training.log_interval_steps == 0:
                _log(run, state, losses, speed, update, clock)
            paused = time.monotonic()
            if run.validation and (is_last or _is_due(state.step, recipe.evaluation.interval_steps)):
                _evaluate(run, run.validation, state)
            if is_last or _is_due(state.step, recipe.checkpoint.interval_steps):
                _save(run, state)
            speed.exclude(time.monotonic() - paused)
    return state


def _advance(run: Run, state: TrainingState, micro_batch: MicroBatch, cursor: Cursor) -> TrainingState:
    """Return the state after an update; an overflow in fp16 spends the pairs, and moves no schedule and no step."""
    applied = bool(run.engine.was_step_applied())
    if not applied:
        logger.warning("after step %d: gradient overflow, update skipped", state.step)
    return TrainingState(
        step=state.step + int(applied),
        epoch=cursor.epoch,
        consumed=cursor.consumed,
        pairs_seen=state.pairs_seen + micro_batch.global_pairs,
        tokens_seen=state.tokens_seen + micro_batch.global_tokens,
    )


def _is_due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


class _Update(NamedTuple):
    """What is known of one optimizer update."""

    lr: float
    """That the update used; afterwards the schedule stands at the next."""
    gradient_norm: Tensor | float | None
    """Over all ranks, before clipping."""


def _train_step(run: Run, micro_batches: list[MicroBatch], step: int, losses: LossMeter) -> _Update:
    """Make one optimizer update from this rank's micro-batches."""
    lr, norm = float(run.engine.get_lr()[0]), None
    for micro_step, micro_batch in enumerate(micro_batches):
        # Dropout depends on the place in the run alone, so there is no generator state to save.
        torch.manual_seed(derive_seed(run.recipe.training.seed, DROPOUT, step, micro_step, run.world.rank))
        sums = forward_sums(run.engine, micro_batch, run.device)
        losses.add(sums)
        run.engine.backward(
            micro_batch_loss(
                sums,
                global_masked_tokens=micro_batch.global_masked_tokens,
                global_pairs=micro_batch.global_pairs,
                world_size=run.world.size,
                accumulation=len(micro_batches),
            )
        )
        norm = take_step(run.engine)
    return _Update(lr, norm)


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
    update: _Update,
    clock: _Clock,
) -> None:
    values = losses.reduce("train")
    values |= speed.read()
    values["train/lr"] = update.lr
    if update.gradient_norm is not None:
        values["train/grad_norm"] = float(update.gradient_norm)
    if run.engine.fp16_enabled():
        values["train/loss_scale"] = float(run.engine.optimizer.loss_scale)
    values["memory/peak_gib"] = peak_memory_gib(run.device)
    values |= {"pairs_seen": state.pairs_seen, "tokens_seen": state.tokens_seen, "epoch": state.epoch}
    run.tracker.log(state.step, values)
    nsp = f" (mlm {values['train/mlm_loss']:.3f}, nsp {values['train/nsp_loss']:.3f})" if run.recipe.data.nsp else ""
    if run.world.is_rank_zero:
        logger.info(
            "step %d/%d  loss %.4f%s  lr %.2e  %s tokens/s  %.1f GiB  %s left",
            state.step,
            run.recipe.training.steps,
            values["train/loss"],
            nsp,
            values["train/lr"],
            f"{values['speed/tokens_per_second']:,.0f}",
            values["memory/peak_gib"],
            clock.left(state.step),
        )


def _evaluate(run: Run, validation: Callable[[], Iterable[MicroBatch]], state: TrainingState) -> None:
    values = evaluate(run.engine, validation(), run.device)
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


def _save(run: Run, state: TrainingState) -> None:
    path = save_checkpoint(
        run.engine,
        run.run_dir,
        state,
        world_size=run.world.size,
        recipe=run.recipe.model_dump(mode="json"),
        ds_config=run.ds_config,
        fingerprints=run.fingerprints,
        keep_last=run.recipe.checkpoint.keep_last,
    )
    if run.world.is_rank_zero:
        logger.info("step %d  saved %s", state.step, path)
    if run.world.is_first_of_host:
        # Every rank has come to this epoch: nobody opens the plans of earlier ones again.
        run.stream.reader.prune(keep=range(state.epoch, sys.maxsize))
