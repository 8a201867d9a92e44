"""Every optimizer of the JSON: three real steps on each ZeRO stage it can have, saved and resumed, weights equal."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pretrain.engine.checkpoint import (
    Retention,
    TrainingState,
    begin_save,
    find_checkpoint,
    load_checkpoint,
    load_fp32_weights,
)
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.engine.ds_optimizer import REFUSED, lr_factor
from pretrain.engine.ds_schedule import schedule_changes
from pretrain.engine.lion import Lion
from pretrain.engine.optim import make_optimizer, named_muon_groups, parameter_groups
from pretrain.engine.schedules import BudgetLR
from runtime.command import ConfigError
from tests.pretrain.engine.test_schedule import L1, _train

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]

DECAY = {"weight_decay": 0.1}
KINDS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "AdamW": ("AdamW", DECAY, (0, 1, 2, 3)),
    "Adam": ("Adam", DECAY, (0, 1, 2, 3)),
    "Adam, L2": ("Adam", {**DECAY, "adam_w_mode": False}, (0, 2)),
    "Lamb": ("Lamb", DECAY, (0, 1, 2, 3)),
    "Lion": ("Lion", DECAY, (0, 1, 2, 3)),
    "Muon": ("Muon", {**DECAY, "ns_method": "standard"}, (0, 1, 2, 3)),
    "Adagrad": ("Adagrad", DECAY, (0,)),
    "SGD": ("SGD", {**DECAY, "momentum": 0.9}, (0, 1, 2, 3)),
    "RMSprop": ("RMSprop", DECAY, (0, 2)),
    "NAdam": ("NAdam", DECAY, (0, 2)),
    "RAdam": ("RAdam", DECAY, (0, 2)),
    "Adafactor": ("Adafactor", DECAY, (0,)),
}
CASES = [(name, stage) for name, (_, _, stages) in KINDS.items() for stage in stages]


def _config(
    kind: str = "AdamW", params: dict[str, Any] | None = None, *, stage: int = 0, warmup: int | None = None, **rest: Any
) -> dict[str, Any]:
    zero = rest.pop("zero", {})
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": kind, "params": {"lr": 1e-3, **(params or {})}},
        "zero_optimization": {"stage": stage, **zero},
    }
    settings: dict[str, Any] = {"world_size": 1, "total_steps": 20, "on_cuda": False}
    settings |= {key: rest.pop(key) for key in list(rest) if key in {*settings, "lr_scaling", "lr_reference_batch"}}
    return resolve_ds_config({**config, **rest}, path="ds.json", warmup_steps=warmup, **settings)


def _save(engine: Any, config: dict[str, Any], path: Path, step: int) -> Path:
    state = TrainingState(step=step)
    named: dict[str, Any] = {
        "world_size": 1,
        "recipe": {},
        "ds_config": config,
        "fingerprints": {},
        "retention": Retention(1),
    }
    return begin_save(engine, path, state, **named).finish()


def _resume(engine: Any, path: Path) -> None:
    checkpoint = find_checkpoint(path)
    assert checkpoint is not None
    load_checkpoint(engine, checkpoint)


def _weights(engine: Any) -> list[Tensor]:
    from deepspeed.utils import safe_get_full_fp32_param

    stored = [(safe_get_full_fp32_param(p), p) for p in engine.module.parameters()]
    return [(p if full is None else full).detach().clone() for full, p in stored]


def _equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("name", "stage"), CASES)
def test_three_steps_and_a_resume(make_engine: Any, tmp_path: Path, name: str, stage: int, precision: str):
    kind, params, _ = KINDS[name]
    if precision == "bf16" and stage == 0:
        pytest.skip("masters without ZeRO are DeepSpeed's other code; tests/pretrain/engine/test_checkpoint.py has it")
    half = {"bf16": {"enabled": True}} if precision == "bf16" else {}
    config = _config(kind, params, stage=stage, **half)
    engine = make_engine(config)
    before = _weights(engine)
    _train(engine, 0, 2)
    middle = _weights(engine)
    assert not any(torch.equal(a, b) for a, b in zip(before, middle, strict=True) if a.ndim > 1 and a.abs().sum())
    _save(engine, config, tmp_path, 2)
    _train(engine, 2, 3)
    resumed = make_engine(config)
    _resume(resumed, tmp_path)
    assert _equal(_weights(resumed), middle)
    _train(resumed, 2, 3)
    assert _equal(_weights(resumed), _weights(engine))
    assert not _equal(_weights(resumed), middle)


@pytest.mark.parametrize("name", ["Lion", "Muon", "SGD"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_stage_gives_the_same_weights(make_engine: Any, name: str, stage: int):
    kind, params, _ = KINDS[name]
    engines = [make_engine(_config(kind, params, stage=number, gradient_clipping=0.0)) for number in (0, stage)]
    before = _weights(engines[0])
    for engine in engines:
        _train(engine, 0, 3)
    for start, ours, theirs in zip(before, *(_weights(engine) for engine in engines), strict=True):
        # Where a weight starts at 0 its gradient here is noise about 0, of which Lion and Adam take the sign.
        # Muon's Newton-Schulz iterations are in bf16, and what differs there moves the gradients of the rest.
        atol = 4e-4 if kind == "Muon" else 1e-5
        torch.testing.assert_close(ours[start != 0], theirs[start != 0], rtol=1e-4, atol=atol)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_checkpoint_of_muon_names_its_weights_right(make_engine: Any, tiny_bert: Any, tmp_path: Path, stage: int):
    config = _config("Muon", {"ns_method": "standard"}, stage=stage, bf16={"enabled": True})
    engine = make_engine(config)
    _train(engine, 0, 2)
    _save(engine, config, tmp_path, 2)
    checkpoint = find_checkpoint(tmp_path)
    assert checkpoint is not None
    loaded = load_fp32_weights(checkpoint, tiny_bert())
    for (name, _), weight in zip(engine.module.named_parameters(), _weights(engine), strict=True):
        torch.testing.assert_close(loaded[name], weight, rtol=0, atol=0)


def test_c5_muon_s_groups_add_up_and_decay_no_vector(tiny_bert: Any):
    """Case C5, for Muon: matrices of the encoder; other matrices; every vector, without decay."""
    model = tiny_bert()
    groups = named_muon_groups(model)
    everything = [id(parameter) for group in groups for _, parameter in group]
    assert sorted(everything) == sorted(id(parameter) for parameter in model.parameters())
    inner, matrices, vectors = ([name for name, _ in group] for group in groups)
    assert len(inner) == 6
    assert all(name.startswith("bert.encoder.layer.0.") and name.endswith(".weight") for name in inner)
    assert set(matrices) == {
        "bert.embeddings.word_embeddings.weight",
        "bert.embeddings.position_embeddings.weight",
        "bert.embeddings.token_type_embeddings.weight",
        "bert.pooler.dense.weight",
        "cls.predictions.transform.dense.weight",
        "cls.seq_relationship.weight",
    }
    assert all("bias" in name or "LayerNorm" in name for name in vectors)
    muon = make_optimizer(model, "Muon", {"lr": 1e-3, "muon_lr": 2e-2, "weight_decay": 0.1})
    assert muon is not None
    assert [(group["use_muon"], group["lr"], group["weight_decay"]) for group in muon.param_groups] == [
        (True, 2e-2, 0.1),
        (False, 1e-3, 0.1),
        (False, 1e-3, 0.0),
    ]


@pytest.mark.parametrize("name", ["Lion", "Lamb", "SGD", "Adam"])
def test_c5_no_decay_on_vectors_whatever_the_optimizer(make_engine: Any, name: str):
    kind, params, _ = KINDS[name]
    engine = make_engine(_config(kind, params, stage=2))
    assert [group["weight_decay"] for group in engine.optimizer.param_groups] == [0.1, 0.0]


def test_lion_by_hand():
    """First step: sign(g). Then, for the first weight, m = 0.5 · 1 and 0.8 · 0.5 − 0.2 · 1 > 0."""
    weight = torch.tensor([2.0, -1.0, 0.5])
    lion = Lion([weight], lr=0.1, betas=(0.8, 0.5), weight_decay=0.5)
    weight.grad = torch.tensor([1.0, -3.0, 0.0])
    lion.step()
    torch.testing.assert_close(weight, torch.tensor([1.9 - 0.1, -0.95 + 0.1, 0.475]))
    weight.grad = torch.tensor([-1.0, -3.0, 1.0])
    lion.step()
    torch.testing.assert_close(weight, torch.tensor([1.8 * 0.95 - 0.1, -0.85 * 0.95 + 0.1, 0.475 * 0.95 - 0.1]))


@pytest.mark.parametrize("kind", ["OneBitAdam", "OneBitLamb", "ZeroOneAdam", "MuAdam", "LBFGS", "SparseAdam"])
def test_what_cannot_train_here_is_refused_with_what_to_write(kind: str):
    with pytest.raises(ConfigError, match=rf"ds.json: optimizer.type = '{kind}': .*write ") as refusal:
        _config(kind)
    assert REFUSED[kind.lower()] in str(refusal.value)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("Adafactor", {"stage": 2}, r"'Adafactor' with zero_optimization.stage = 2: it needs whole matrices"),
        ("Adagrad", {"stage": 1}, r"'Adagrad' with zero_optimization.stage = 1: DeepSpeed makes it anew"),
        ("Muon", {"bf16": {"enabled": True}}, r"'Muon' with bf16.enabled = true: write zero_optimization.stage = 1"),
        ("Muon", {"stage": 3, "zero": {"reduce_scatter": True}}, r"zero_optimization.reduce_scatter = True with"),
        ("Muon", {"stage": 1, "gradient_clipping": 1.0}, r"gradient_clipping = 1.0 with optimizer.type = 'Muon'"),
        ("Muon", {"params": {"bogus": 1}}, r"optimizer.params: Muon has no parameter bogus"),
        ("Muon", {"params": {"ns_method": "x"}}, r"optimizer.params: ns_method = 'x': must be one of gram, standard"),
        ("Muon", {"params": {"muon_lr": "x"}}, r"optimizer.params.muon_lr = 'x': must be a number"),
        (
            "Muon",
            {"params": {"muon_lr": 0.02}, "scheduler": {"type": "WarmupLR"}, "warmup": 2},
            r"optimizer.params.muon_lr = 0.02 differs from lr = 0.001, but scheduler.type = 'WarmupLR' sets one lr",
        ),
        ("Lion", {"params": {"eps": 1e-8}}, r"optimizer.params: .*'eps'"),
        ("Lion", {"params": {"betas": [1, 2]}}, r"optimizer.params: betas = \[1, 2\]: must be"),
    ],
)
def test_settings_that_are_refused(kind: str, settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        _config(kind, **settings)


@pytest.mark.parametrize(
    ("zero", "on_cuda", "message"),
    [
        ({"zero_quantized_gradients": True}, False, r"zero_quantized_gradients = true: there is no such kernel"),
        ({"zero_quantized_weights": True}, False, r"zero_quantized_weights = true: there is no such kernel"),
        ({"stage": 2, "zero_quantized_gradients": True}, True, r"zero_quantized_gradients"),
        ({"zero_hpz_partition_size": 4}, True, r"zero_hpz_partition_size = 4: must divide the 6 ranks"),
        ({"zero_quantized_gradients": True, "reduce_scatter": False}, True, r"reduce_scatter = false with"),
    ],
)
def test_zero_plus_plus_where_it_cannot_run(zero: dict[str, Any], on_cuda: bool, message: str):
    with pytest.raises(ConfigError, match=message):
        _config(stage=3, zero=zero, on_cuda=on_cuda, world_size=6)


def test_zero_plus_plus_is_taken_on_cuda():
    zero = {"zero_quantized_gradients": True, "zero_quantized_weights": True, "zero_hpz_partition_size": 2}
    assert zero.items() <= _config(stage=3, zero=zero, on_cuda=True, world_size=4)["zero_optimization"].items()


# -- schedules through the engine


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_l1_by_our_own_schedule_fresh_and_resumed(make_engine: Any, tmp_path: Path, stage: int):
    """Case L1: power 1 is the line; the weights of a resumed run are those of one that went through."""
    config = _config(stage=stage, warmup=4, scheduler={"type": "WarmupPolynomialLR"})
    assert config["scheduler"]["params"] == {"warmup_num_steps": 4, "total_num_steps": 20}
    through = make_engine(config)
    rates = _train(through, 0, 4)
    _save(through, config, tmp_path, 4)
    rates += _train(through, 4, 7)
    assert rates == pytest.approx(L1, abs=1e-15)
    resumed = make_engine(config)
    _resume(resumed, tmp_path)
    assert _train(resumed, 4, 7) == pytest.approx(L1[4:], abs=1e-15)
    assert _equal(_weights(resumed), _weights(through))


def test_another_total_and_another_batch_at_a_resume(make_engine: Any, tmp_path: Path):
    """Case L1: what goes on is the new schedule's; the lr follows the batch of the new start."""
    rule = {"lr_scaling": "linear", "lr_reference_batch": 1}
    config = _config(warmup=4, scheduler={"type": "WarmupPolynomialLR"}, **rule)
    first = make_engine(config)
    _train(first, 0, 8)
    _save(first, config, tmp_path, 8)
    twice = {"gradient_accumulation_steps": 2}
    other = make_engine(_config(warmup=4, scheduler={"type": "WarmupPolynomialLR"}, total_steps=36, **rule, **twice))
    _resume(other, tmp_path)
    assert _train(other, 8, 9) == pytest.approx([2e-3 * 28 / 32])


def test_a_constant_lr_is_the_json_s_at_a_resume(make_engine: Any, tmp_path: Path):
    config = _config(stage=2)
    first = make_engine(config)
    _train(first, 0, 1)
    _save(first, config, tmp_path, 1)
    other = make_engine(_config(stage=2, params={"lr": 5e-4}))
    _resume(other, tmp_path)
    assert _train(other, 1, 2) == [5e-4]


def test_the_budget_through_the_engine(make_engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ten seconds an update of 50: the lr falls by a fifth each time, over a save and a resume; then it is over."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    config = _config(stage=1, scheduler={"type": "BudgetLR", "params": {"budget_seconds": 50, "end_lr": 0.0}})

    def steps(engine: Any, first: int, last: int) -> list[float]:
        rates = []
        for step in range(first, last):
            now[0] += 10
            rates += _train(engine, step, step + 1)
        return rates

    first = make_engine(config)
    assert steps(first, 0, 2) == pytest.approx([1e-3, 8e-4])
    _save(first, config, tmp_path, 2)
    now[0] = 5e4
    second = make_engine(config)
    _resume(second, tmp_path)
    assert isinstance(second.lr_scheduler, BudgetLR)
    assert steps(second, 2, 5) == pytest.approx([6e-4, 4e-4, 2e-4])
    assert second.lr_scheduler.is_over
    assert second.get_lr()[0] == 0.0


@pytest.mark.parametrize(
    "scheduler",
    [{"type": "WarmupPolynomialLR"}, {"type": "BudgetLR", "params": {"budget_seconds": 80, "warmup_share": 0.5}}],
)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_p3_a_skipped_update_moves_no_schedule_of_ours(
    make_engine: Any, monkeypatch: pytest.MonkeyPatch, stage: int, scheduler: dict[str, Any]
):
    """Case P3: fp16 overflows at first; DeepSpeed's support check is overridden, as a CPU has none."""
    from deepspeed.accelerator import get_accelerator

    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)
    warmup = 4 if scheduler["type"].startswith("Warmup") else None
    fp16 = {"enabled": True, "initial_scale_power": 24, "hysteresis": 1}
    engine = make_engine(_config(stage=stage, warmup=warmup, scheduler=scheduler, fp16=fp16, on_cuda=True))
    skipped, rates = [], []
    for step in range(40):
        now[0] = 10.0 * (step + 1 - sum(skipped))
        rates += _train(engine, step, step + 1)
        skipped.append(not engine.was_step_applied())
        if len(skipped) - sum(skipped) == 3:
            break
    assert sum(skipped) >= 1
    applied = [rate for rate, was_skipped in zip(rates, skipped, strict=True) if not was_skipped]
    assert applied == pytest.approx([0, 2.5e-4, 5e-4])
    assert engine.lr_scheduler.last_batch_iteration == 3


def test_l1_what_changed_since_a_checkpoint_is_named():
    """Case L1: the JSON's own values; the recipe's steps are named by the launch."""
    before = _config(warmup=4, scheduler={"type": "WarmupPolynomialLR"})
    assert schedule_changes(before, before) == []
    now = _config(params={"lr": 2e-3}, warmup=5, scheduler={"type": "WarmupPolynomialLR", "params": {"power": 0.5}})
    assert schedule_changes(before, now) == [
        "optimizer.params.lr was 0.001, is now 0.002",
        "scheduler.params.power was None, is now 0.5",
        "scheduler.params.warmup_num_steps was 4, is now 5",
    ]
    assert schedule_changes(before, _config())[0] == "scheduler.type was WarmupPolynomialLR, is now None"


def test_deepspeed_s_other_schedules_by_hand(make_engine: Any):
    cycle = {"cycle_min_lr": 2e-4, "cycle_first_step_size": 4, "decay_step_size": 1, "decay_lr_rate": 1.0}
    rates = _train(make_engine(_config(scheduler={"type": "OneCycle", "params": cycle})), 0, 11)
    # Up by a quarter of 8e-4 an update, down again; then 2e-4 / (1 + n).
    assert rates == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4, 1e-3, 8e-4, 6e-4, 4e-4, 2e-4, 1e-4, 2e-4 / 3], abs=1e-12)
    test = {"lr_range_test_step_size": 2, "lr_range_test_step_rate": 1.0}
    rates = _train(make_engine(_config(scheduler={"type": "LRRangeTest", "params": test})), 0, 4)
    assert rates == pytest.approx([1e-3, 1.5e-3, 2e-3, 2.5e-3])
    cosine = {"type": "WarmupCosineLR", "params": {"warmup_type": "linear", "cos_min_ratio": 0.0}}
    rates = _train(make_engine(_config(warmup=4, scheduler=cosine)), 0, 6)
    # DeepSpeed's cosine is one step ahead: step 4 is 1 of 16.
    falling = [1e-3 * (1 + math.cos(math.pi * n / 16)) / 2 for n in (1, 2)]
    assert rates == pytest.approx([*L1[:4], *falling])


def test_c4_schedules_that_ignore_the_optimizer_s_lr_take_it_or_are_refused():
    """Case C4: for every schedule, one lr."""
    cycle = {"type": "OneCycle", "params": {"cycle_min_lr": 0.0}}
    assert _config(scheduler=cycle)["scheduler"]["params"]["cycle_max_lr"] == 1e-3
    cycle["params"]["cycle_max_lr"] = 2e-3
    with pytest.raises(ConfigError, match=r"cycle_max_lr = 0.002, but optimizer.params.lr = 0.001: write \"auto\""):
        _config(scheduler=cycle)
    with pytest.raises(ConfigError, match=r"lr_range_test_min_lr = 1, but optimizer.params.lr"):
        _config(scheduler={"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 1}})


@pytest.mark.parametrize(
    ("scheduler", "warmup", "message"),
    [
        ({"type": "BudgetLR", "params": {"budget_seconds": 9}}, 4, r"'BudgetLR' has no warmup in steps"),
        ({"type": "BudgetLR"}, None, r"scheduler.params.budget_seconds is missing; BudgetLR has no default"),
        ({"type": "BudgetLR", "params": {"budget_seconds": -1}}, None, r"budget_seconds = -1: must be above 0"),
        ({"type": "BudgetLR", "params": {"budget_seconds": 1, "clock": 1}}, None, r"BudgetLR takes no such parameter"),
        ({"type": "WarmupPolynomialLR", "params": {"power": -1}}, 4, r"power = -1: must be above 0"),
        ({"type": "WarmupPolynomialLR", "params": {"end_lr": 1}}, 4, r"end_lr = 1: must be 0 to .* 0.001"),
        ({"type": "WarmupPolynomialLR", "params": {"warmup_max_lr": 1}}, 4, r"takes no such parameter"),
        ({"type": "WarmupPolynomialLR"}, 40, r"warmup_num_steps = 40 is above total_num_steps = 20"),
    ],
)
def test_schedules_that_are_refused(scheduler: dict[str, Any], warmup: int | None, message: str):
    with pytest.raises(ConfigError, match=message):
        _config(scheduler=scheduler, warmup=warmup)


# -- lr scaling


@pytest.mark.parametrize(
    ("rule", "batch", "reference", "factor"),
    [("none", 4096, None, 1), ("linear", 4096, 256, 16), ("sqrt", 4096, 256, 4), ("sqrt", 64, 256, 0.5)],
)
def test_the_rules_by_hand(rule: str, batch: int, reference: int | None, factor: float):
    assert lr_factor(rule, batch, reference) == factor


@pytest.mark.parametrize(
    ("scheduler", "key"),
    [
        ({"type": "WarmupDecayLR", "params": {"warmup_max_lr": 1e-3}}, "warmup_max_lr"),
        ({"type": "WarmupDecayLR"}, "warmup_max_lr"),
        ({"type": "OneCycle", "params": {"cycle_min_lr": 0.0}}, "cycle_max_lr"),
        ({"type": "LRRangeTest"}, "lr_range_test_min_lr"),
    ],
)
def test_the_lr_and_what_is_filled_from_it_are_scaled_once(scheduler: dict[str, Any], key: str):
    warmup = 2 if scheduler["type"].startswith("Warmup") else None
    batch = {"gradient_accumulation_steps": 16, "lr_scaling": "sqrt", "lr_reference_batch": 4}
    config = _config(scheduler=scheduler, warmup=warmup, **batch)
    assert config["optimizer"]["params"]["lr"] == config["scheduler"]["params"][key] == pytest.approx(2e-3)


def test_muon_s_lrs_are_scaled_as_well():
    params = {"muon_lr": 0.02, "adam_lr": 3e-4}
    config = _config("Muon", params, gradient_accumulation_steps=4, lr_scaling="linear", lr_reference_batch=2)
    assert config["optimizer"]["params"] == {"lr": 2e-3, "muon_lr": 0.04, "adam_lr": pytest.approx(6e-4)}


def test_building_in_bf16_without_zero_moves_nothing(make_engine: Any, tiny_bert: Any):
    """DeepSpeed would make a step on gradients of 0 there: a decay, and one more step in the bias correction."""
    for kind in ("AdamW", "Lamb"):
        engine = make_engine(_config(kind, stage=0, bf16={"enabled": True}, params={"weight_decay": 0.5}))
        masters = [master for group in engine.optimizer.fp32_groups for master in group]
        fresh = [p for group in parameter_groups(tiny_bert()) for p in group["params"]]
        for master, parameter in zip(masters, fresh, strict=True):
            assert torch.equal(master, parameter.to(torch.bfloat16).float()) or torch.equal(master, parameter)
        assert not engine.basic_optimizer.state
