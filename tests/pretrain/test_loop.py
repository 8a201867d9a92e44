"""The loop with the real engine on one process: fp16 with its loss scaler, MLM alone, checkpointed activations."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from deepspeed.accelerator import get_accelerator

from pretrain import export, train
from pretrain.engine.build import build_engine
from pretrain.engine.checkpoint import TrainingState, find_checkpoint
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.initial import build_model
from pretrain.launch_check import Launch
from pretrain.loop import Run
from pretrain.loop import train as run_loop
from pretrain.recipe import load_recipe
from pretrain.tokenizer import load_tokenizer_info
from runtime.dist import World
from runtime.tracking import Tracker, read_metrics
from tokenization.manifest import load_manifest

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120), pytest.mark.usefixtures("one_rank")]

ONE = World(rank=0, local_rank=0, size=1)


def run(recipe, config: dict, run_dir, *, on_cuda: bool = False) -> TrainingState:
    """Do what a launch does after its checks, in this process."""
    resolved = resolve_ds_config(
        config,
        path="j.json",
        world_size=1,
        total_steps=recipe.training.steps,
        warmup_steps=recipe.training.warmup_steps,
        on_cuda=on_cuda,
    )
    tokenizer = load_tokenizer_info(recipe.tokenizer)
    launch = Launch(recipe, resolved, run_dir, load_manifest(recipe.shards), tokenizer, None, ONE)
    engine = build_engine(build_model(recipe, tokenizer), resolved)
    readers = {split: train._reader(launch, split) for split in ("train", "validation")}
    with Tracker(
        run_dir,
        is_rank_zero=True,
        config={},
        first_step=1,
        project="p",
        name="n",
        wandb_mode="off",
        tensorboard=False,
    ) as tracker:
        return run_loop(
            Run(
                recipe=recipe,
                ds_config=resolved,
                fingerprints=launch.fingerprints,
                run_dir=run_dir,
                world=ONE,
                device=torch.device("cpu"),
                engine=engine,
                stream=train._stream(readers["train"], engine, ONE),
                validation=train._validation(launch, readers, 4),
                tracker=tracker,
            ),
            TrainingState(),
        )


def config_of(path) -> dict:
    return json.loads(path.read_text())


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fp16_overflow_moves_no_step(stage, recipe_path, ds_config_path, tmp_path, monkeypatch, caplog):
    """Dynamic loss scaling from a scale that must overflow: skipped updates spend pairs, and are neither steps nor due.

    DeepSpeed refuses fp16 on a CPU; with its support check overridden the logic runs here.
    """
    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)
    config = config_of(ds_config_path(stage, "fp32", train_batch_size=4))
    config["fp16"] = {"enabled": True, "loss_scale": 0, "initial_scale_power": 32, "hysteresis": 1}
    recipe = load_recipe(
        recipe_path,
        ["training.steps=3", "training.warmup_steps=1", "evaluation.interval_steps=1", "evaluation.max_pairs=4"],
    )
    with caplog.at_level(logging.WARNING, logger="pretrain.loop"):
        state = run(recipe, config, tmp_path, on_cuda=True)
    skipped = caplog.text.count("gradient overflow, update skipped")
    assert skipped >= 2
    assert state.step == 3
    assert state.pairs_seen == 4 * (3 + skipped)
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines if "train/loss" in line] == [1, 2, 3]
    assert [line["step"] for line in lines if "eval/loss" in line] == [1, 2, 3]
    trained = [line for line in lines if "train/loss" in line]
    assert trained[-1]["train/loss_scale"] < 2**32
    # Warmup of one step, then decay to the third: lr(0), lr(1), lr(2) of the schedule, whatever was skipped.
    assert [line["train/lr"] for line in trained] == pytest.approx([0.0, 2e-3, 1e-3])
    proof = export.export(tmp_path, tmp_path / "model")
    assert proof.largest_logit_difference <= 1e-5


def test_mlm_alone_with_checkpointed_activations(recipe_path, ds_config_path, tmp_path):
    settings = ["data.nsp=false", "model.activation_checkpointing=true", "training.steps=6"]
    config = config_of(ds_config_path(1, "bf16", train_batch_size=16))
    state = run(load_recipe(recipe_path, settings), config, tmp_path)
    assert state.step == 6
    lines = read_metrics(tmp_path)
    assert not any(key.endswith(("nsp_loss", "nsp_accuracy")) for line in lines for key in line)
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert losses[0] == pytest.approx(6.9, abs=0.15)  # ln 1000, and no ln 2
    assert losses[-1] < losses[0]
    assert any("eval/mlm_loss" in line for line in lines)
    assert find_checkpoint(tmp_path).state == state
