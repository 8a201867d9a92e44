"""The lines at the start of a run, and the message when memory is out: with torch's own errors."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import pytest
import torch

from pretrain import launch_check, train
from pretrain.plan import at_start
from pretrain.plan.at_start import explained_out_of_memory, plan_lines
from pretrain.plan.device import what_to_turn
from pretrain.plan.values import setting_of
from runtime.dist import World


@pytest.fixture
def launch(recipe_path, ds_config_path, tmp_path) -> launch_check.Launch:
    arguments = ["--recipe", str(recipe_path), "--deepspeed_config", str(ds_config_path(1)), "--run-dir", str(tmp_path)]
    return launch_check.check_launch(train._parse(arguments), World(rank=0, local_rank=0, size=1))


def test_lines_of_the_start(launch):
    start = time.perf_counter()
    lines = plan_lines(launch)
    assert time.perf_counter() - start < 0.2
    assert 4 <= len(lines) <= 8
    text = "\n".join(lines)
    for expected in ("parameters: embeddings", "memory a rank, ZeRO 1", "traffic: 0 B", "10 steps", "epochs"):
        assert expected in text


def test_a_run_never_fails_of_its_plan(launch, monkeypatch):
    monkeypatch.setattr(at_start, "start_values", lambda _: 1 / 0)
    assert plan_lines(launch) == ["no plan: ZeroDivisionError: division by zero"]


def real_cpu_allocation():
    torch.empty(1 << 60, dtype=torch.uint8)


def of_cuda():
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total ...")


def of_python():
    raise MemoryError


def behind_another_error():
    try:
        of_cuda()
    except RuntimeError as error:
        raise RuntimeError("the engine could not be built") from error


@pytest.mark.parametrize("fail", [real_cpu_allocation, of_cuda, of_python, behind_another_error])
def test_out_of_memory_is_explained(fail, launch, caplog):
    with caplog.at_level(logging.ERROR), pytest.raises(SystemExit) as ended, explained_out_of_memory(launch):
        fail()
    assert ended.value.code == 1
    text = caplog.text
    for expected in (
        "out of memory: ",
        "moments",
        "activations of the layers",
        "train_micro_batch_size_per_gpu 4 -> 2, gradient_accumulation_steps 4 -> 8",
        "activation checkpointing",
    ):
        assert expected in text
    if fail is real_cpu_allocation:
        assert f"{1 << 60}" in text
    if fail is of_cuda:
        assert "Tried to allocate 2.00 GiB" in text


def test_offload_is_said_where_a_device_has_its_own_memory(launch):
    turns = what_to_turn(replace(setting_of(at_start._subject_of(launch)), on_cuda=True))
    assert any("offload_optimizer" in turn.what for turn in turns)
    assert all(turn.saves > 0 for turn in turns)
    on_cpu = what_to_turn(replace(setting_of(at_start._subject_of(launch)), on_cuda=False))
    assert not any("offload_optimizer" in turn.what for turn in on_cpu)


def test_what_was_turned_is_not_said_again(launch, caplog):
    model = launch.recipe.model.model_copy(update={"activation_checkpointing": True})
    turned = replace(
        launch,
        recipe=launch.recipe.model_copy(update={"model": model}),
        ds_config=launch.ds_config | {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 16},
    )
    with pytest.raises(SystemExit), explained_out_of_memory(turned):
        of_cuda()
    assert "activation_checkpointing = true" not in caplog.text
    assert "train_micro_batch_size_per_gpu 1 ->" not in caplog.text


def test_other_errors_stay_as_they_are(launch):
    with pytest.raises(RuntimeError, match="a shape"), explained_out_of_memory(launch):
        raise RuntimeError("a shape is wrong")
