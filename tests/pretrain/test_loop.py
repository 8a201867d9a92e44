"""The loop with the real engine on one process: fp16 with its loss scaler, MLM alone, checkpointed activations."""

from __future__ import annotations

import json
import logging
import re

import pytest
import torch
from deepspeed.accelerator import get_accelerator
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain import export, loop, train
from pretrain.data.stream import Cursor, PairStream
from pretrain.engine.build import build_engine
from pretrain.engine.checkpoint import TrainingState, find_checkpoint
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.initial import build_model
from pretrain.launch_check import Launch
from pretrain.loop import Run, known_peak
from pretrain.loop import train as run_loop
from pretrain.metrics import LossMeter
from pretrain.recipe import load_recipe
from pretrain.saver import Saver
from pretrain.stopping import Stopper
from pretrain.tokenizer import load_tokenizer_info
from runtime.dist import World
from runtime.tracking import Tracker, read_metrics
from runtime.watchdog import Watchdog
from tokenization.manifest import load_manifest

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120), pytest.mark.usefixtures("one_rank")]

ONE = World(rank=0, local_rank=0, size=1)


def run(recipe, config: dict, run_dir, *, on_cuda: bool = False, stopper: Stopper | None = None) -> TrainingState:
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
    readers = {split: train.open_reader(launch, split) for split in ("train", "validation")}
    saver = Saver(engine, run_dir, recipe, resolved, launch.fingerprints, 1, True)
    tracker = Tracker(
        run_dir,
        is_rank_zero=True,
        config={},
        first_step=1,
        project="p",
        name="n",
        wandb_mode="off",
        tensorboard=False,
    )
    with tracker, Watchdog(0, 1, 60.0) as watchdog:
        state, reason = run_loop(
            Run(
                recipe=recipe,
                world=ONE,
                device=torch.device("cpu"),
                engine=engine,
                stream=train.open_stream(readers["train"], engine, ONE),
                validation=train._validation(launch, readers, 4),
                tracker=tracker,
                saver=saver,
                stopper=stopper or Stopper(),
                watchdog=watchdog,
            ),
            TrainingState(),
        )
    assert (reason is None) == (stopper is None)
    return state


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


def test_a_run_ends_with_its_wall_clock_budget(recipe_path, ds_config_path, tmp_path):
    """The update that spends the budget is the last one: logged, evaluated and saved, far below training.steps."""
    config = config_of(ds_config_path(1, "fp32", train_batch_size=4))
    config["scheduler"] = {"type": "BudgetLR", "params": {"budget_seconds": 0.5}}
    recipe = load_recipe(
        recipe_path, ["training.steps=1000000", "evaluation.interval_steps=1000000", "evaluation.max_pairs=4"]
    )
    recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update={"warmup_steps": None})})
    state = run(recipe, config, tmp_path)
    assert 1 <= state.step < 1_000_000
    assert (tmp_path / "checkpoints" / "latest").read_text() == f"step_{state.step:08d}"
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines if "eval/loss" in line] == [state.step]
    assert lines[0]["train/lr"] > lines[-2]["train/lr"] > 0


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


def test_speed_in_the_log(recipe_path, ds_config_path, tmp_path, caplog):
    """The recipe's peak gives MFU, and the log line shows it."""
    recipe = load_recipe(recipe_path, ["training.steps=4", "tracking.peak_tflops=1e-3", "evaluation.interval_steps=0"])
    config = config_of(ds_config_path(0, "fp32"))
    with caplog.at_level(logging.INFO, logger="pretrain.loop"):
        run(recipe, config, tmp_path)
    lines = [line for line in read_metrics(tmp_path) if "train/loss" in line]
    assert len(lines) == 4
    for line in lines:
        assert line["speed/mfu"] == pytest.approx(line["speed/model_tflops_per_device"] / 1e-3)
        assert 0 < line["speed/data_wait_share"] < 1
        assert line["speed/padding_share"] == 0  # a stream on a CPU has none
        # the encoder's products, and on top attention and head: less than as much again
        products = 6 * 2 * (4 * 32**2 + 2 * 32 * 64) * line["speed/tokens_per_second"] / 1e12
        assert products < line["speed/model_tflops_per_device"] < 2 * products
    line = next(record.getMessage() for record in caplog.records if record.getMessage().startswith("step 4/4"))
    assert re.search(r"  [\d,]+ tokens/s \(MFU \d+\.\d %\)  \d+\.\d GiB  0:00:00 left$", line)


def test_without_a_peak_there_is_no_mfu(recipe_path, ds_config_path, tmp_path, caplog):
    recipe = load_recipe(recipe_path, ["training.steps=1", "training.warmup_steps=0", "evaluation.interval_steps=0"])
    with caplog.at_level(logging.INFO, logger="pretrain.loop"):
        run(recipe, config_of(ds_config_path(0, "fp32", scheduler=None)), tmp_path)
    assert "speed/mfu" not in read_metrics(tmp_path)[0]
    assert " tokens/s  " in caplog.text


class PrecisionOf:
    """What `known_peak` asks an engine."""

    def __init__(self, dtype: torch.dtype, autocast: torch.dtype | None = None) -> None:
        self._dtype, self._autocast = dtype, autocast

    def torch_autocast_enabled(self) -> bool:
        return self._autocast is not None

    def torch_autocast_dtype(self) -> torch.dtype | None:
        return self._autocast

    def get_data_types(self) -> tuple[torch.dtype, torch.dtype]:
        return self._dtype, torch.float32


def test_the_peak_is_that_of_the_products(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100-SXM4-80GB")
    cuda = torch.device("cuda", 0)
    assert known_peak(PrecisionOf(torch.bfloat16), cuda, None) == 312e12
    assert known_peak(PrecisionOf(torch.float32), cuda, None) == 19.5e12
    assert known_peak(PrecisionOf(torch.float32, torch.bfloat16), cuda, None) == 312e12
    assert known_peak(PrecisionOf(torch.bfloat16), cuda, 100.0) == 100e12
    assert known_peak(PrecisionOf(torch.bfloat16), torch.device("cpu"), None) is None
    assert known_peak(PrecisionOf(torch.bfloat16), torch.device("cpu"), 0.5) == 0.5e12


class NoWaiting(TorchDispatchMode):
    """Fails on what would make the host wait for a GPU: reading a value, or a shape that depends on values."""

    waiting = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::equal")

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().split(".")[0]
        assert name not in self.waiting, f"{name} waits for the device"
        self.seen.add(name)
        return func(*args, **(kwargs or {}))


class PlainEngine:
    """A model with the names that `train_step` calls an engine by, and nothing of DeepSpeed's around them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def __call__(self, **batch):
        return self._model(**batch)

    def get_lr(self) -> list[float]:
        return [1e-3]

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


@pytest.mark.parametrize("setting", ["data.nsp=true", "data.nsp=false", "model.activation_checkpointing=true"])
def test_a_step_does_not_wait_for_the_device(setting, recipe_path, tmp_path, monkeypatch):
    """On the meta device, which takes a GPU's path through the code and has no values that one could wait for."""
    recipe = load_recipe(recipe_path, [setting])
    tokenizer = load_tokenizer_info(recipe.tokenizer)
    launch = Launch(recipe, {}, tmp_path, load_manifest(recipe.shards), tokenizer, None, ONE)
    stream = PairStream(
        reader=train.open_reader(launch, "train"),
        train_batch_size=16,
        train_micro_batch_size_per_gpu=8,
        gradient_accumulation_steps=2,
        rank=0,
        world_size=1,
    )
    meta = torch.device("meta")
    model = build_model(recipe, tokenizer).to(meta).train()
    norms = []

    def plain_step(_: object) -> torch.Tensor:
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
        return norms[-1]

    monkeypatch.setattr(loop, "take_step", plain_step)
    losses = LossMeter(meta)
    micro_batches, _ = stream.batch(Cursor())
    marks = []
    with NoWaiting() as mode:
        update = loop.train_step(
            PlainEngine(model),
            micro_batches,
            losses,
            device=meta,
            world=ONE,
            seed=1,
            step=0,
            mark=marks.append,
        )
    assert any("backward" in name for name in mode.seen)
    assert update.gradient_norm is norms[-1]
    assert marks == ["forward", "backward", "optimizer"] * 2
    with NoWaiting(), pytest.raises((AssertionError, RuntimeError)):
        float(norms[-1])  # what a log line does would be found
