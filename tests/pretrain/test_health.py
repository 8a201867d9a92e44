"""NaN, a loss scale at its floor, a leap: what stops a run and what only skips, by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import torch

from pretrain.engine.checkpoint import find_checkpoint
from pretrain.engine.checkpoint.states import read_parameters
from pretrain.health import DivergedError, Health, check_health
from pretrain.model.bert import StreamBert
from pretrain.recipe import HealthSettings, load_recipe
from runtime.command import ConfigError
from runtime.tracking import read_metrics
from tests.pretrain.test_loop import config_of, run

pytestmark = pytest.mark.usefixtures("one_rank")
SAVED = "the last good checkpoint is runs/x/step_00000005"


def look(health: Health, norm: float | None, *, applied: bool = True, local_loss: float = 1.0) -> None:
    health.look(7, norm, applied=applied, local_loss=lambda: local_loss, saved=SAVED)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_an_update_with_nan_stops_the_run_and_names_step_rank_and_checkpoint(norm):
    """Case P2."""
    with pytest.raises(DivergedError, match=rf"in step 7: the gradient norm is {norm}, and so are .* rank 0; {SAVED}"):
        look(Health(HealthSettings(), is_fp16=False), norm, local_loss=math.nan)
    with pytest.raises(DivergedError, match="the losses are finite on every rank"):
        look(Health(HealthSettings(on_nan="skip"), is_fp16=False), norm)


def test_a_skipped_update_stops_or_is_counted_by_policy():
    with pytest.raises(DivergedError, match="after step 7"):
        look(Health(HealthSettings(), is_fp16=False), math.inf, applied=False)
    for health in (Health(HealthSettings(), is_fp16=True), Health(HealthSettings(on_nan="skip"), is_fp16=False)):
        look(health, math.inf, applied=False)
        look(health, 1.0)
        look(health, None)
        assert health.skipped_steps == 1


def test_too_many_skipped_in_a_row():
    health = Health(HealthSettings(max_skipped_steps=2), is_fp16=True)
    look(health, math.inf, applied=False)
    look(health, 1.0)
    look(health, math.inf, applied=False)
    with pytest.raises(DivergedError, match=r"2 updates in a row were skipped \(health.max_skipped_steps\)"):
        look(health, math.inf, applied=False)


def test_the_floor_of_the_loss_scale_is_named():
    health = Health(HealthSettings(), is_fp16=True)
    with pytest.raises(
        DivergedError, match=rf"after step 4: the gradients overflow at the smallest loss scale; {SAVED}"
    ):
        with health.step(4, SAVED):
            raise Exception("Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.")
    with pytest.raises(ZeroDivisionError), health.step(4, SAVED):
        raise ZeroDivisionError


def test_a_leap_is_told_from_the_usual(caplog):
    health = Health(HealthSettings(on_spike="stop"), is_fp16=False)
    for loss in (9.0, 5.0, 4.0, 4.0, 4.0):
        health.look_at_loss(1, loss, SAVED)
    health.look_at_loss(6, 8.0, SAVED)
    with pytest.raises(DivergedError, match=r"step 7: the loss is 9.1000, 2.02 times the usual 4.5000"):
        health.look_at_loss(7, 9.1, SAVED)
    with pytest.raises(DivergedError, match="the loss is nan"):
        health.look_at_loss(8, math.nan, SAVED)
    warned = Health(HealthSettings(on_spike="warn"), is_fp16=False)
    for loss in (4.0, 4.0, 4.0, 4.0, 4.0, 9.0):
        warned.look_at_loss(1, loss, SAVED)
    assert "the loss is 9.0000, 2.25 times the usual 4.0000" in caplog.text


def test_skipping_is_refused_where_an_update_cannot_be_dropped():
    skip = HealthSettings(on_nan="skip")
    with pytest.raises(ConfigError, match=r'r.toml: health.on_nan = "skip" in fp32 without ZeRO'):
        check_health(skip, {}, "r.toml")
    for config in ({"zero_optimization": {"stage": 1}}, {"bf16": {"enabled": True}}):
        check_health(skip, config, "r.toml")
    check_health(HealthSettings(), {}, "r.toml")


SETTINGS = [(stage, kind) for stage in (0, 1, 2, 3) for kind in ("fp32", "bf16") if (stage, kind) != (0, "fp32")]


@pytest.mark.parametrize(("stage", "kind"), SETTINGS)
def test_an_update_with_nan_moves_nothing_and_the_next_one_goes_on(stage, kind, recipe_path, ds_config_path, tmp_path):
    """Case P2, by the loop: NaN in a gradient of the second step; steps, weights and losses are finite at the end."""
    recipe = load_recipe(recipe_path, ['health.on_nan="skip"', "evaluation.interval_steps=0", "training.steps=4"])
    config = config_of(ds_config_path(stage, kind, train_batch_size=4))
    calls = []

    def poison(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return gradient * math.nan if len(calls) == 2 else gradient

    with poisoned(poison):
        state = run(recipe, config, tmp_path)
    assert state.step == 4
    assert len(calls) == 5
    lines = [entry for entry in read_metrics(tmp_path) if "train/loss" in entry]
    assert [entry["train/skipped_steps"] for entry in lines] == [0, 1, 1, 1]
    assert all(math.isfinite(entry["train/loss"]) for entry in lines)
    checkpoint = find_checkpoint(tmp_path)
    assert checkpoint is not None
    for states in read_parameters(checkpoint)[0].values():
        assert all(part.isfinite().all() for parts in states.parts.values() for part in parts)


def test_by_default_nan_stops_the_run_and_no_checkpoint_has_it(recipe_path, ds_config_path, tmp_path):
    recipe = load_recipe(recipe_path, ["evaluation.interval_steps=0", "checkpoint.interval_steps=1"])
    calls = []

    def poison(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return gradient * math.nan if len(calls) == 3 else gradient

    with poisoned(poison), pytest.raises(DivergedError, match=r"the last good checkpoint is .*step_00000002"):
        run(recipe, config_of(ds_config_path(0, "fp32", train_batch_size=4)), tmp_path)
    checkpoint = find_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.state.step == 2


@contextmanager
def poisoned(hook: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Let a hook change the gradient of the pooler's output in every backward pass."""
    real = StreamBert.forward

    def forward(self, *arguments, **named):
        output = real(self, *arguments, **named)
        if output.nsp_logits.requires_grad:
            output.nsp_logits.register_hook(hook)
        return output

    with mock.patch.object(StreamBert, "forward", forward):
        yield
