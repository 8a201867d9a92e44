"""A checkpoint goes on under another ZeRO stage and precision: the same masters, moments and steps, bit for bit."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from torch import Tensor

from pretrain.engine.build import build_engine
from pretrain.engine.checkpoint import (
    Checkpoint,
    Retention,
    TrainingState,
    begin_save,
    check_resumable,
    convert,
    find_checkpoint,
    load_checkpoint,
    universal,
)
from pretrain.engine.checkpoint import loading as loading_module
from pretrain.engine.ds_config import resolve_ds_config
from runtime.command import ConfigError
from tests.pretrain.engine.test_loss_scale import STREAM

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240), pytest.mark.usefixtures("one_rank")]

ADAM = {"lr": 1e-2, "weight_decay": 0.1}
WEIGHT = "bert.encoder.layer.0.output.dense.weight"


def make_config(stage: int, precision: str = "fp32", kind: str = "AdamW", **rest: Any) -> dict[str, Any]:
    zero = rest.pop("zero", {})
    config = {
        "train_batch_size": 2,
        "optimizer": {"type": kind, "params": {**ADAM, **rest.pop("params", {})}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "linear"}},
        "zero_optimization": {"stage": stage, **zero},
        **rest,
    }
    if precision != "fp32":
        config.setdefault(precision, {"enabled": True})
    on_cuda = precision == "fp16"  # the only way to have it here
    return resolve_ds_config(config, path="j.json", world_size=1, total_steps=20, warmup_steps=4, on_cuda=on_cuda)


def train(engine: Any, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        output = engine(**STREAM)
        loss = output.mlm_logits.float().square().mean() + output.nsp_logits.float().square().mean()
        losses.append(loss.item())
        engine.backward(loss)
        engine.step()
    return losses


def save(engine: Any, config: dict[str, Any], run_dir: Path, step: int) -> Checkpoint:
    state = TrainingState(step=step, epoch=1, consumed=6, pairs_seen=9, tokens_seen=72)
    settings: Any = {"world_size": 1, "recipe": {}, "ds_config": config, "fingerprints": {}, "retention": Retention(9)}
    begin_save(engine, run_dir, state, **settings).finish()
    found = find_checkpoint(run_dir)
    assert found is not None
    return found


def resumed(config: dict[str, Any], checkpoint: Checkpoint, tiny_bert: Any) -> Any:
    check_resumable(checkpoint, config, 1)
    engine = build_engine(tiny_bert(), config)
    load_checkpoint(engine, checkpoint)
    return engine


def states_of(engine: Any, keys: tuple[str, ...] = ("exp_avg", "exp_avg_sq")) -> dict[tuple[str, str], Tensor]:
    """Return masters and moments by parameter, as DeepSpeed's own accessors see them; without ZeRO as torch does."""
    found = {}
    inner, optimizer = engine.basic_optimizer, engine.optimizer
    masters = {}
    if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):
        optimizer._hp_optimizer_states_linked = False  # else its accessors see the states of before the first step
        optimizer._lazy_init_hp_params_optimizer_state()
    if hasattr(optimizer, "fp16_groups") and hasattr(optimizer, "fp32_groups"):
        for models, ours in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True):
            masters |= {id(model): master for model, master in zip(models, ours, strict=True)}
    for name, parameter in engine.module.named_parameters():
        if engine.zero_optimization_stage():
            found[name, "fp32"] = safe_get_full_fp32_param(parameter)
            found |= {(name, key): safe_get_full_optimizer_state(parameter, key) for key in keys}
        else:
            master = masters.get(id(parameter), parameter)
            found[name, "fp32"] = master
            found |= {(name, key): inner.state[master][key] for key in keys}
    return {key: value.detach().float().flatten().clone() for key, value in found.items()}


def steps_of(engine: Any) -> set[float]:
    return {float(state["step"]) for state in engine.basic_optimizer.state.values()}


def check_equal(one: dict[Any, Tensor], other: dict[Any, Tensor]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]), key


SETTINGS = [(0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (0, "bf16"), (1, "bf16"), (2, "bf16"), (3, "bf16")]


@pytest.mark.parametrize("start", SETTINGS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_from_each_to_each(start, tiny_bert, tmp_path, caplog):
    """Masters, both moments and the step are the saved bits; the model computes with the masters rounded."""
    config = make_config(*start)
    engine = build_engine(tiny_bert(), config)
    train(engine, 3)
    before = states_of(engine)
    moment = before[WEIGHT, "exp_avg_sq"]
    assert 0 < (moment > 0).sum()
    checkpoint = save(engine, config, tmp_path, 3)
    for target in SETTINGS:
        if target == start:
            continue
        caplog.clear()
        with caplog.at_level(logging.INFO):
            now = resumed(make_config(*target), checkpoint, tiny_bert)
        check_equal(states_of(now), before)
        assert steps_of(now) == {3.0}
        assert now.global_steps == 3
        assert now.get_lr() == engine.get_lr()
        for group in now.optimizer.param_groups:
            assert group["lr"] == engine.get_lr()[0]
        if target[0] < 3:
            for name, parameter in now.module.named_parameters():
                rounded = before[name, "fp32"].to(parameter.dtype)
                assert torch.equal(parameter.detach().flatten(), rounded), name
        if start[0] != target[0]:
            assert f"stage {start[0]} → {target[0]}" in caplog.text
        if start[1] != target[1]:
            assert f"precision {start[1]} → {target[1]}" in caplog.text
        assert "resumed with: " in caplog.text
        assert "free " in caplog.text
        assert [path.name for path in checkpoint.path.parent.glob("universal*")] == []


def test_a_run_through_every_stage_and_back(tiny_bert, tmp_path):
    """2, 3, 1, 0, 2, three steps each: the losses of fifteen steps of one run, and the schedule's lr (case L1)."""
    whole = build_engine(tiny_bert(), make_config(2))
    expected = train(whole, 15)
    losses, lrs, checkpoint = [], [], None
    for number, stage in enumerate((2, 3, 1, 0, 2)):
        config = make_config(stage)
        engine = build_engine(tiny_bert(), config) if checkpoint is None else resumed(config, checkpoint, tiny_bert)
        for _ in range(3):
            lrs.append(engine.get_lr()[0])
            losses += train(engine, 1)
        checkpoint = save(engine, config, tmp_path, 3 * (number + 1))
    assert losses == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < expected[0] / 1.5
    warm = [1e-2 * step / 4 for step in range(4)]
    assert lrs == pytest.approx(warm + [1e-2 * (20 - step) / 16 for step in range(4, 15)])
    for key, value in states_of(whole).items():
        torch.testing.assert_close(states_of(engine)[key], value, rtol=1e-4, atol=1e-6)


def test_fp32_to_bf16_and_back_loses_nothing(tiny_bert, tmp_path):
    config = make_config(1)
    engine = build_engine(tiny_bert(), config)
    train(engine, 3)
    half = make_config(1, "bf16")
    there = resumed(half, save(engine, config, tmp_path / "a", 3), tiny_bert)
    assert type(there.optimizer).__name__ == "BF16_Optimizer"
    back = resumed(config, save(there, half, tmp_path / "b", 3), tiny_bert)
    check_equal(states_of(back), states_of(engine))
    assert train(back, 2) == pytest.approx(train(engine, 2), rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "params", "keys", "stages"),
    [
        ("Lamb", {}, ("exp_avg", "exp_avg_sq"), (0, 1, 2, 3, 0)),
        ("Lion", {}, ("exp_avg",), (0, 1, 2, 3, 0)),
        ("SGD", {"momentum": 0.9}, ("momentum_buffer",), (0, 1, 2, 3, 0)),
        ("RMSprop", {}, ("square_avg",), (0, 2, 0)),
        ("NAdam", {}, ("exp_avg", "exp_avg_sq"), (0, 2, 0)),
        ("Muon", {"ns_method": "standard"}, (), (0, 3, 0)),
    ],
)
def test_other_optimizers(kind, params, keys, stages, tiny_bert, tmp_path):
    if kind == "Muon":
        params = {**params, "momentum": 0.9}
    rest: Any = {"gradient_clipping": 0.0} if kind == "Muon" else {}
    config = make_config(stages[0], kind=kind, params=params, **rest)
    engine = build_engine(tiny_bert(), config)
    train(engine, 2)
    checkpoint = save(engine, config, tmp_path, 2)
    expected, first = states_of(engine, keys), engine
    for number, stage in enumerate(stages[1:], 3):
        config = make_config(stage, kind=kind, params=params, **rest)
        engine = resumed(config, checkpoint, tiny_bert)
        check_equal(states_of(engine, keys), expected)
        checkpoint = save(engine, config, tmp_path, number)
    here, there = (one.basic_optimizer.state_dict()["state"] for one in (first, engine))
    assert here.keys() == there.keys()
    for number, states in here.items():
        assert states.keys() == there[number].keys()
        for key, value in states.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(there[number][key])), key
    assert train(engine, 2) == pytest.approx(train(first, 2), rel=1e-6)


def test_the_json_of_this_start_has_the_hyperparameters(tiny_bert, tmp_path):
    config = make_config(2)
    engine = build_engine(tiny_bert(), config)
    train(engine, 1)
    checkpoint = save(engine, config, tmp_path, 1)
    for stage in (0, 1, 3):
        now = resumed(make_config(stage, params={"weight_decay": 0.3, "betas": [0.8, 0.9]}), checkpoint, tiny_bert)
        groups = now.optimizer.param_groups
        assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
        assert all(tuple(group["betas"]) == (0.8, 0.9) for group in groups)


@pytest.mark.parametrize("zero", [{"round_robin_gradients": True}, {"offload_optimizer": {"device": "cpu"}}])
def test_order_and_place_of_the_masters(zero, tiny_bert, tmp_path):
    for stage, change in ((2, zero), (3, {"sub_group_size": 500})):
        config, other = make_config(stage), make_config(stage, zero=change, params={"torch_adam": True, "fused": True})
        engine = build_engine(tiny_bert(), config)
        train(engine, 2)
        expected = states_of(engine)
        there = resumed(other, save(engine, config, tmp_path / f"{stage}a", 2), tiny_bert)
        check_equal(states_of(there), expected)
        back = resumed(config, save(there, other, tmp_path / f"{stage}b", 2), tiny_bert)
        check_equal(states_of(back), expected)
        assert train(back, 2) == pytest.approx(train(engine, 2), rel=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_to_deepspeed_s_own_adam_on_the_host_and_back(tiny_bert, tmp_path):
    """It counts steps in integers, torch's in tensors; compiled at the first start, about 100 s."""
    config = make_config(2)
    other = make_config(2, zero={"offload_optimizer": {"device": "cpu"}}, params={"torch_adam": False})
    engine = build_engine(tiny_bert(), config)
    train(engine, 2)
    there = resumed(other, save(engine, config, tmp_path / "a", 2), tiny_bert)
    assert type(there.basic_optimizer).__name__ == "DeepSpeedCPUAdam"
    check_equal(states_of(there), states_of(engine))
    assert train(there, 1) == pytest.approx(train(engine, 1), rel=1e-5)
    back = resumed(config, save(there, other, tmp_path / "b", 3), tiny_bert)
    assert steps_of(back) == {3.0}
    check_equal(states_of(back), states_of(there))
    assert train(back, 2) == pytest.approx(train(engine, 2), rel=1e-5)


def test_the_same_settings_are_not_converted(tiny_bert, tmp_path, monkeypatch, caplog):
    def fail(*_: Any) -> None:
        raise AssertionError("converted")

    monkeypatch.setattr(loading_module, "load_resized", fail)
    for stage, precision in SETTINGS:
        config = make_config(stage, precision)
        engine = build_engine(tiny_bert(), config)
        train(engine, 1)
        with caplog.at_level(logging.INFO):
            resumed(config, save(engine, config, tmp_path / f"{stage}{precision}", 1), tiny_bert)
    assert "resumed with" not in caplog.text


def test_a_loss_scale_stays_in_fp16_and_begins_anew_from_another(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)
    fp16 = {"fp16": {"enabled": True, "initial_scale_power": 4, "loss_scale_window": 1}}
    config = make_config(1, "fp16", **fp16)
    engine = build_engine(tiny_bert(), config)
    train(engine, 3)
    scale = engine.optimizer.cur_scale
    assert scale > 16.0
    checkpoint = save(engine, config, tmp_path / "a", 3)
    other = make_config(2, "fp16", **fp16)
    assert resumed(other, checkpoint, tiny_bert).optimizer.cur_scale == scale
    plain = make_config(1)
    full = resumed(plain, checkpoint, tiny_bert)
    check_equal(states_of(full), states_of(engine))
    from_fp32 = resumed(other, save(full, plain, tmp_path / "b", 3), tiny_bert)
    assert from_fp32.optimizer.cur_scale == 16.0
    check_equal(states_of(from_fp32), states_of(engine))


@pytest.mark.parametrize("start", SETTINGS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_deepspeed_reads_what_convert_writes(start, tiny_bert, tmp_path):
    """With load_universal, by DeepSpeed's code alone, on the stages that it has this for."""
    config = make_config(*start)
    engine = build_engine(tiny_bert(), config)
    train(engine, 3)
    before = states_of(engine)
    folder = convert(save(engine, config, tmp_path, 3), tmp_path / "universal")
    assert sorted(path.name for path in (folder / "zero" / WEIGHT).iterdir()) == [
        "exp_avg.pt",
        "exp_avg_sq.pt",
        "fp32.pt",
        "step.pt",
    ]
    for stage, precision in ((1, "fp32"), (2, "fp32"), (3, "fp32"), (1, "bf16"), (2, "bf16")):
        theirs = build_engine(tiny_bert(), {**make_config(stage, precision), "checkpoint": {"load_universal": True}})
        path, client_state = theirs.load_checkpoint(str(folder.parent), tag=folder.name)
        assert path is not None
        assert client_state["zerobert"]["step"] == 3
        check_equal(states_of(theirs), before)
        assert steps_of(theirs) == {3.0}


def test_another_optimizer_and_states_without_names_are_refused(tiny_bert, tmp_path):
    config = make_config(0)
    engine = build_engine(tiny_bert(), config)
    train(engine, 1)
    checkpoint = save(engine, config, tmp_path, 1)
    with pytest.raises(ConfigError, match=r"optimizer.type = AdamW, this start has Lamb.*training.init_from"):
        check_resumable(checkpoint, make_config(0, kind="Lamb"), 1)
    nvme = make_config(3)
    nvme["zero_optimization"]["offload_optimizer"] = {"device": "nvme", "nvme_path": "/x"}
    with pytest.raises(ConfigError, match=r"stage 0 → 3.*this start has .*nvme.*init_from"):
        check_resumable(checkpoint, nvme, 1)
    check_resumable(checkpoint, config, 8)


def test_a_disk_without_room_is_refused_before_anything_is_written(tiny_bert, tmp_path, monkeypatch):
    config = make_config(0)
    engine = build_engine(tiny_bert(), config)
    train(engine, 1)
    checkpoint = save(engine, config, tmp_path, 1)
    usage = shutil.disk_usage(tmp_path)._replace(free=100_000)
    monkeypatch.setattr(universal.shutil, "disk_usage", lambda _: usage)
    there = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=r"checkpoints: the conversion needs 0.00 GiB there, free are 0.00"):
        resumed(make_config(2), checkpoint, tiny_bert)
    assert sorted(tmp_path.rglob("*")) == there


def test_what_is_there_is_used_and_what_was_asked_for_stays(tiny_bert, tmp_path, monkeypatch):
    config = make_config(0)
    engine = build_engine(tiny_bert(), config)
    train(engine, 1)
    checkpoint = save(engine, config, tmp_path, 1)
    folder = convert(checkpoint, universal.universal_beside(checkpoint))
    with pytest.raises(ConfigError, match="is there already"):
        convert(checkpoint, folder)
    with monkeypatch.context() as patch:
        patch.setattr("pretrain.engine.checkpoint.resize.read_states", None)  # nothing is converted
        check_equal(states_of(resumed(make_config(2), checkpoint, tiny_bert)), states_of(engine))
    assert universal.is_of(folder, checkpoint)
    train(engine, 1)
    newer = save(engine, config, tmp_path, 1)  # the same step, other numbers
    assert not universal.is_of(folder, newer)
    check_equal(states_of(resumed(make_config(2), newer, tiny_bert)), states_of(engine))


def test_a_conversion_that_was_cut_short_is_made_anew(tiny_bert, tmp_path, monkeypatch):
    config = make_config(0)
    engine = build_engine(tiny_bert(), config)
    train(engine, 1)
    checkpoint = save(engine, config, tmp_path, 1)

    def die(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", "x.pt")

    with monkeypatch.context() as patch:
        patch.setattr("pretrain.engine.checkpoint.resize.finish", die)
        with pytest.raises(OSError, match="No space left"):
            resumed(make_config(2), checkpoint, tiny_bert)
    check_equal(states_of(resumed(make_config(2), checkpoint, tiny_bert)), states_of(engine))
    assert list(checkpoint.path.parent.glob("universal*")) == []
