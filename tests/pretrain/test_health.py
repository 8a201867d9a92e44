"""NaN, a loss scale at its floor, a leap: what stops a run and what only skips, by hand."""

from __future__ import annotations

import math

import pytest

from pretrain.health import DivergedError, Health, check_health
from pretrain.recipe import HealthSettings
from runtime.command import ConfigError

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


@pytest.mark.parametrize(("stage", "kind"), [(0, "fp32"), (3, "fp32"), (1, "bf16"), (3, "bf16"), (0, "bf16")])
def test_skipping_is_refused_where_an_update_cannot_be_dropped(stage, kind):
    config = {
        "zero_optimization": {"stage": stage},
        kind: {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
    }
    with pytest.raises(ConfigError, match=rf'r.toml: health.on_nan = "skip" with ZeRO {stage} in {kind}'):
        check_health(HealthSettings(on_nan="skip"), config, "r.toml")
    check_health(HealthSettings(on_nan="skip"), config | {"zero_optimization": {"stage": 2}}, "r.toml")
    check_health(HealthSettings(), config, "r.toml")
