"""The DeepSpeed JSON: right and complete, or refused with its path, its value and the rule."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from pretrain.engine.ds_config import (
    BATCH_KEYS,
    TOP_LEVEL_KEYS,
    BatchSizes,
    load_ds_config,
    precision,
    resolve_batch_sizes,
    resolve_ds_config,
    zero_stage,
)
from runtime.command import ConfigError

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = sorted((ROOT / "ds_configs").glob("*.json"))
ADAMW = {"type": "AdamW", "params": {"lr": 1e-3}}
NO_VALUE = object()


def _sizes(world_size: int = 1, **given: Any) -> tuple[int, int, int]:
    names = {"train": BATCH_KEYS[0], "micro": BATCH_KEYS[1], "accum": BATCH_KEYS[2]}
    sizes = resolve_batch_sizes({names[key]: value for key, value in given.items()}, world_size, "ds.json")
    assert isinstance(sizes, BatchSizes)
    return sizes.train_batch_size, sizes.train_micro_batch_size_per_gpu, sizes.gradient_accumulation_steps


def _resolve(*, world_size: int = 1, steps: int = 20, warmup: int | None = None, on_cuda: bool = False, **config: Any):
    merged = {"train_batch_size": 8, "optimizer": deepcopy(ADAMW), **config}
    given = {key: value for key, value in merged.items() if value is not NO_VALUE}
    return resolve_ds_config(
        given, path="ds.json", world_size=world_size, total_steps=steps, warmup_steps=warmup, on_cuda=on_cuda
    )


def _refused(**config: Any) -> str:
    with pytest.raises(ConfigError, match=r"^ds\.json: ") as refusal:
        _resolve(**config)
    return str(refusal.value)


def _schedule(kind: str = "WarmupDecayLR", **params: Any) -> dict[str, Any]:
    return {"type": kind, "params": params}


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "ds.json"
    path.write_text(text)
    return path


# -- C1: the three batch sizes


def test_c1_a_product_that_does_not_hold():
    """Case C1: 8 pairs are not 2 · 1 · 1."""
    with pytest.raises(ConfigError, match=r"ds\.json: train_batch_size = 8 ≠ 2 · 1 · 1 .*change one of them"):
        _sizes(train=8, micro=2, accum=1)


def test_c1_micro_is_worked_out():
    """Case C1: from 8 pairs in 4 micro-steps."""
    assert _sizes(train=8, accum=4) == (8, 2, 4)


def test_c1_train_is_worked_out():
    """Case C1: from 2 a micro-batch."""
    assert _sizes(micro=2) == (2, 2, 1)


def test_c1_accumulation_alone_is_refused():
    """Case C1: it says nothing of the pairs."""
    with pytest.raises(ConfigError, match=r"ds\.json: give train_batch_size or train_micro_batch_size_per_gpu"):
        _sizes(accum=4)


@pytest.mark.parametrize(
    ("world_size", "given", "sizes"),
    [
        (1, {"train": 8}, (8, 8, 1)),
        (4, {"train": 8}, (8, 2, 1)),
        (2, {"train": 8, "micro": 2}, (8, 2, 2)),
        (2, {"micro": 2, "accum": 3}, (12, 2, 3)),
        (2, {"train": 8, "micro": 2, "accum": 2}, (8, 2, 2)),
        (2, {"train": "auto", "micro": 2, "accum": "auto"}, (4, 2, 1)),
        (2, {"train": 8, "micro": "auto", "accum": "auto"}, (8, 4, 1)),
    ],
)
def test_batch_sizes(world_size: int, given: dict[str, Any], sizes: tuple[int, int, int]):
    assert _sizes(world_size, **given) == sizes


@pytest.mark.parametrize(
    ("world_size", "given", "message"),
    [
        (3, {"train": 8}, "8 ≠ ? · ? · 3"),
        (1, {"train": 8, "micro": 16}, "8 ≠ 16 · ? · 1"),
        (2, {"train": 8, "accum": 3}, "8 ≠ ? · 3 · 2"),
        (4, {"train": 8, "micro": 2, "accum": 2}, "8 ≠ 2 · 2 · 4"),
        (16, {"train": 8}, "8 ≠ ? · ? · 16"),
        (1, {"train": 0}, "train_batch_size = 0: must be an integer of at least 1"),
        (1, {"train": 8, "micro": -2}, "train_micro_batch_size_per_gpu = -2: must be"),
        (1, {"train": 8.0}, "train_batch_size = 8.0: must be"),
        (1, {"train": "8"}, "train_batch_size = '8': must be"),
        (1, {"micro": True}, "train_micro_batch_size_per_gpu = True: must be"),
        (1, {"train": 8, "accum": None}, "gradient_accumulation_steps = None: must be"),
        (1, {}, "give train_batch_size"),
        (1, {"train": "auto", "micro": "auto"}, "give train_batch_size"),
    ],
)
def test_batch_sizes_that_are_refused(world_size: int, given: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        _sizes(world_size, **given)


def test_the_three_sizes_are_written_into_the_resolved_json():
    resolved = _resolve(world_size=2, train_batch_size=8, train_micro_batch_size_per_gpu=2)
    assert [resolved[key] for key in BATCH_KEYS] == [8, 2, 2]


# -- C2: what DeepSpeed would ignore


@pytest.mark.parametrize(
    ("key", "meant"), [("zero_optimisation", "zero_optimization"), ("gradient_clipp1ng", "gradient_clipping")]
)
def test_c2_a_misspelt_key(tmp_path: Path, key: str, meant: str):
    """Case C2: DeepSpeed would leave ZeRO off, and clipping at 1.0."""
    path = _write(tmp_path, json.dumps({"train_batch_size": 8, key: {}}))
    with pytest.raises(ConfigError, match=rf"ds\.json: {key}: .* would ignore it \(did you mean '{meant}'\?\)"):
        load_ds_config(path)


def test_a_key_like_nothing_is_refused_without_a_guess(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"qqqq: .* would ignore it$"):
        load_ds_config(_write(tmp_path, '{"qqqq": 1}'))


def test_every_key_that_is_let_through_is_one_of_deepspeed_s():
    import deepspeed

    # `wandb`, `tensorboard`, … are read in folders of their own.
    sources = Path(deepspeed.__file__).parent.rglob("*.py")
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    words = set(re.findall(r"""["']([a-z][a-z0-9_]+)["']|^    ([a-z][a-z0-9_]+): """, text, re.MULTILINE))
    known = {word for pair in words for word in pair}
    assert sorted(TOP_LEVEL_KEYS - known) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  // pairs\n  "train_batch_size": 8\n}', r"ds\.json:2:3: not plain JSON: a comment \(//\).*'// pairs'"),
        ('{"train_batch_size": 8,\n}', r"ds\.json:1:23: not plain JSON: a trailing comma"),
        ('{"train_batch_size": 8, "train_batch_size": 16}', r"ds\.json: key 'train_batch_size' stands twice"),
        ('{"fp16": {"enabled": true, "enabled": false}}', r"ds\.json: key 'enabled' stands twice in one object"),
        ('{"optimizer": {"type": "AdamW", "params": {"lr": NaN}}}', r"ds\.json: NaN is not JSON"),
        ("[]", r"ds\.json: a DeepSpeed JSON is one object \{\.\.\.\}, not a list"),
        ("3", r"ds\.json: a DeepSpeed JSON is one object \{\.\.\.\}, not a int"),
        ('{"bf16": true}', r"ds\.json: bf16 = True: must be an object"),
        ('{"zero_optimization": 2}', r"ds\.json: zero_optimization = 2: must be an object"),
        ('{"optimizer": "AdamW"}', r"ds\.json: optimizer = 'AdamW': must be an object"),
        ('{"scheduler": null}', r"ds\.json: scheduler = None: must be an object"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        load_ds_config(_write(tmp_path, text))


def test_no_such_file(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"gone\.json: no such file"):
        load_ds_config(tmp_path / "gone.json")


# -- P1: precision


def test_fp16_without_zero_is_refused_on_a_gpu_as_well():
    with pytest.raises(ConfigError, match=r"fp16.enabled = true without ZeRO: .* write zero_optimization.stage = 1"):
        resolve_ds_config(
            {"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "fp16": {"enabled": True}},
            path="ds.json",
            world_size=1,
            total_steps=3,
            warmup_steps=None,
            on_cuda=True,
        )


def test_p1_fp16_on_cpu():
    """Case P1: refused before the engine."""
    assert _refused(fp16={"enabled": True}) == (
        "ds.json: fp16.enabled = true: DeepSpeed has no fp16 on CPU; write bf16 or neither"
    )
    assert precision(_resolve(fp16={"enabled": True}, zero_optimization={"stage": 1}, on_cuda=True)) == "fp16"
    assert precision(_resolve(fp16={"enabled": False})) == "fp32"


@pytest.mark.parametrize("on_cuda", [False, True])
def test_p1_both(on_cuda: bool):
    """Case P1: fp16 and bf16 together."""
    message = _refused(fp16={"enabled": True}, bf16={"enabled": True}, on_cuda=on_cuda)
    assert message == "ds.json: fp16.enabled and bf16.enabled are both true: keep one"


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("value", ["true", "True", "auto", 1, None])
def test_p1_enabled_that_is_no_truth(name: str, value: Any):
    """Case P1: a truth in quotes is text."""
    message = _refused(**{name: {"enabled": value}})
    assert message == f"ds.json: {name}.enabled = {value!r}: must be true or false, without quotes"


def test_bfloat16_has_a_present_name():
    assert _refused(bfloat16={"enabled": True}) == "ds.json: bfloat16: refused: write bf16, DeepSpeed's present name"


def test_precision_and_stage_are_read():
    assert precision({}) == "fp32"
    assert precision({"bf16": {"enabled": True}}) == "bf16"
    assert precision({"fp16": {}}) == "fp32"
    assert zero_stage({}) == 0
    assert zero_stage({"zero_optimization": {"stage": 3}}) == 3


# -- P4: bf16 adds up in fp32


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_p4_bf16_adds_up_in_fp32_where_deepspeed_can(stage: int):
    """Case P4: where the JSON says nothing."""
    resolved = _resolve(bf16={"enabled": True}, zero_optimization={"stage": stage})
    assert resolved["data_types"] == {"grad_accum_dtype": "fp32"}


@pytest.mark.parametrize(("kind", "wanted"), [("bf16", "fp32"), ("fp32", "bf16")], ids=["bf16 in fp32", "fp32 in bf16"])
def test_p4_without_zero_deepspeed_has_no_other_type(kind: str, wanted: str):
    message = _refused(**{"bf16": {"enabled": kind == "bf16"}, "data_types": {"grad_accum_dtype": wanted}})
    assert message == (
        f"ds.json: data_types.grad_accum_dtype = {wanted!r} without ZeRO: DeepSpeed adds up gradients in {kind} there; "
        "leave it out, or write zero_optimization.stage = 1"
    )
    written = {"grad_accum_dtype": kind}
    assert _resolve(bf16={"enabled": kind == "bf16"}, data_types=written)["data_types"] == written


def test_p4_what_is_written_stays():
    written = {"grad_accum_dtype": "bf16"}
    resolved = _resolve(bf16={"enabled": True}, zero_optimization={"stage": 2}, data_types=written)
    assert resolved["data_types"] == written


@pytest.mark.parametrize("config", [{}, {"zero_optimization": {"stage": 2}}, {"bf16": {"enabled": True}}])
def test_p4_nothing_is_added_elsewhere(config: dict[str, Any]):
    assert "data_types" not in _resolve(**config)


# -- ZeRO


@pytest.mark.parametrize("stage", [-1, 4, "2", "auto", True, None, 1.5])
def test_stages_that_are_none(stage: Any):
    message = _refused(zero_optimization={"stage": stage})
    assert message == f"ds.json: zero_optimization.stage = {stage!r}: must be 0, 1, 2 or 3"


@pytest.mark.parametrize("key", ["offload_optimizer", "offload_param"])
@pytest.mark.parametrize("value", ["cpu", None, True])
def test_offload_that_is_no_object(key: str, value: Any):
    message = _refused(zero_optimization={"stage": 3, key: value})
    assert message == f"ds.json: zero_optimization.{key} = {value!r}: must be an object {{...}}"


# -- the optimizer


@pytest.mark.parametrize("optimizer", [NO_VALUE, {}, {"params": {"lr": 1e-3}}])
def test_an_optimizer_must_be_named(optimizer: Any):
    assert _refused(optimizer=optimizer).startswith("ds.json: optimizer.type is missing; for instance ")


@pytest.mark.parametrize("params", [[], "lr", None])
def test_optimizer_params_that_are_no_object(params: Any):
    message = _refused(optimizer={"type": "AdamW", "params": params})
    assert message == f"ds.json: optimizer.params = {params!r}: must be an object {{...}}"


@pytest.mark.parametrize("params", [{}, {"lr": "auto"}, {"lr": None}])
def test_lr_has_its_home_here(params: dict[str, Any]):
    message = _refused(optimizer={"type": "AdamW", "params": params})
    assert re.match(r"ds\.json: optimizer\.params\.lr is .*: its home is here; write a number", message)


@pytest.mark.parametrize("lr", ["1e-4", True, -1e-4, [1e-4]])
def test_an_lr_that_is_no_number(lr: Any):
    message = _refused(optimizer={"type": "AdamW", "params": {"lr": lr}})
    assert message == f"ds.json: optimizer.params.lr = {lr!r}: must be a number of at least 0"


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "adamw"])
def test_torch_s_adam_is_the_default_as_it_needs_no_build(kind: str):
    assert _resolve(optimizer={"type": kind, "params": {"lr": 1}})["optimizer"]["params"] == {
        "lr": 1,
        "torch_adam": True,
        "fused": True,
    }


@pytest.mark.parametrize(
    "params", [{"lr": 1e-3, "torch_adam": False}, {"lr": 1e-3, "torch_adam": True}, {"lr": 1e-3, "fused": False}]
)
def test_what_is_written_of_adam_stays(params: dict[str, Any]):
    resolved = _resolve(optimizer={"type": "AdamW", "params": params})["optimizer"]["params"]
    assert {**resolved, **params} == resolved


def test_adam_on_the_host_and_other_optimizers_are_left_alone():
    offload = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    assert _resolve(zero_optimization=offload)["optimizer"] == ADAMW
    muon = {"type": "Muon", "params": {"lr": 1e-3}}
    assert _resolve(optimizer=muon)["optimizer"] == muon
    none = {"stage": 2, "offload_optimizer": {"device": "none"}}
    assert _resolve(zero_optimization=none)["optimizer"]["params"]["torch_adam"] is True


# -- the schedule


def test_auto_is_filled_from_its_homes():
    auto = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"), "auto")
    resolved = _resolve(scheduler=_schedule(**auto, warmup_type="linear"), steps=20, warmup=4)
    assert resolved["scheduler"]["params"] == {
        "warmup_min_lr": 0.0,
        "warmup_max_lr": 1e-3,
        "warmup_num_steps": 4,
        "total_num_steps": 20,
        "warmup_type": "linear",
    }


def test_what_is_missing_is_filled_like_auto():
    """Case L2: DeepSpeed would take 1e-3 for a missing warmup_max_lr, whatever the optimizer's lr."""
    optimizer = {"type": "AdamW", "params": {"lr": 2e-5}}
    resolved = _resolve(optimizer=optimizer, scheduler={"type": "WarmupDecayLR"}, steps=20, warmup=4)
    assert resolved["scheduler"]["params"] == {"warmup_max_lr": 2e-5, "warmup_num_steps": 4, "total_num_steps": 20}


def test_only_what_a_schedule_takes_is_filled():
    assert _resolve(scheduler=_schedule("WarmupLR"), warmup=4)["scheduler"]["params"] == {
        "warmup_max_lr": 1e-3,
        "warmup_num_steps": 4,
    }
    assert _resolve(scheduler=_schedule("WarmupCosineLR"), warmup=4)["scheduler"]["params"] == {
        "warmup_num_steps": 4,
        "total_num_steps": 20,
    }
    one_cycle = _schedule("OneCycle", cycle_min_lr=1e-5, cycle_max_lr=1e-3)
    assert _resolve(scheduler=one_cycle)["scheduler"] == one_cycle


def test_warmup_steps_can_live_in_the_json_alone():
    scheduler = _schedule(warmup_num_steps=4, total_num_steps=20)
    assert _resolve(scheduler=scheduler, warmup=None)["scheduler"]["params"]["warmup_num_steps"] == 4


def test_equal_values_in_two_homes_are_let_be():
    scheduler = _schedule(warmup_num_steps=4, total_num_steps=20, warmup_max_lr=1e-3)
    assert _resolve(scheduler=scheduler, warmup=4)["scheduler"]["params"] == scheduler["params"]


def test_c4_two_homes_every_mismatch_in_one_error():
    scheduler = _schedule(warmup_num_steps=5, total_num_steps=30, warmup_max_lr=5e-4)
    mismatches = (
        "warmup_num_steps = 5, but training.warmup_steps of the recipe = 4",
        "total_num_steps = 30, but training.steps of the recipe = 20",
        "warmup_max_lr = 0.0005, but optimizer.params.lr = 0.001",
    )
    assert _refused(scheduler=scheduler, warmup=4).splitlines() == [
        f'ds.json: scheduler.params.{mismatch}: write "auto" here' for mismatch in mismatches
    ]


@pytest.mark.parametrize("written", [{}, {"warmup_num_steps": "auto"}])
def test_auto_that_nothing_fills(written: dict[str, Any]):
    message = _refused(scheduler=_schedule(**written), warmup=None)
    assert message == (
        'ds.json: scheduler.params.warmup_num_steps is "auto" or missing, and so is what fills it: '
        "training.warmup_steps of the recipe"
    )


def test_l2_warmup_0_is_refused():
    message = _refused(scheduler=_schedule(), warmup=0)
    assert message == "ds.json: scheduler.params.warmup_num_steps = 0: must be an integer of at least 1"


def test_l2_a_total_below_the_warmup_is_refused():
    message = _refused(scheduler=_schedule(), steps=3, warmup=6)
    assert message.startswith("ds.json: scheduler.params.warmup_num_steps = 6 is above total_num_steps = 3")


@pytest.mark.parametrize("value", ["4", 4.0, True, -1])
def test_warmup_steps_that_are_no_count(value: Any):
    message = _refused(scheduler=_schedule(warmup_num_steps=value), warmup=None)
    assert message == f"ds.json: scheduler.params.warmup_num_steps = {value!r}: must be an integer of at least 1"


@pytest.mark.parametrize("kind", ["lin", "Linear", "cosine", None])
def test_a_warmup_type_that_deepspeed_would_take_for_log(kind: Any):
    message = _refused(scheduler=_schedule(warmup_type=kind), warmup=4)
    assert message == f"ds.json: scheduler.params.warmup_type = {kind!r}: must be 'linear' or 'log'"


@pytest.mark.parametrize("params", [[], None, "auto"])
def test_schedule_params_that_are_no_object(params: Any):
    message = _refused(scheduler={"type": "WarmupLR", "params": params}, warmup=4)
    assert message == f"ds.json: scheduler.params = {params!r}: must be an object {{...}}"


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("WarmupDecay", " (did you mean 'WarmupDecayLR'?)"),
        ("warmuplr", ""),
        (None, ""),
        (["WarmupLR"], ""),
    ],
)
def test_a_schedule_that_deepspeed_does_not_know(kind: Any, hint: str):
    message = _refused(scheduler={"type": kind}, warmup=4)
    assert message.startswith(
        f"ds.json: scheduler.type = {str(kind)!r}: must be one of BudgetLR, LRRangeTest, OneCycle, "
    )
    if hint:
        assert message.endswith(hint)


def test_warmup_without_a_schedule_is_refused():
    assert _refused(warmup=4).startswith("ds.json: no scheduler, but the recipe has training.warmup_steps = 4: ")
    assert "scheduler" not in _resolve(warmup=0)
    assert "scheduler" not in _resolve(warmup=None)


# -- the rest


def test_the_default_clipping_of_deepspeed_is_written_down():
    assert _resolve()["gradient_clipping"] == 1.0
    assert _resolve(gradient_clipping=0)["gradient_clipping"] == 0


@pytest.mark.parametrize("value", ["1.0", True, -1, None])
def test_a_clipping_that_is_no_number(value: Any):
    message = _refused(gradient_clipping=value)
    assert message == f"ds.json: gradient_clipping = {value!r}: must be a number of at least 0"


def test_deepspeed_prints_only_when_asked():
    assert _resolve()["steps_per_print"] == 10**9
    assert _resolve(steps_per_print=5)["steps_per_print"] == 5


def test_gradients_are_averaged_over_ranks():
    assert _refused(gradient_allreduce_op="sum") == (
        "ds.json: gradient_allreduce_op = 'sum': must be 'mean'; the loss is scaled for an average over ranks"
    )
    assert _resolve(gradient_allreduce_op="mean")["gradient_allreduce_op"] == "mean"


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"steps_per_print": "auto"}, "steps_per_print"),
        ({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}, "zero_optimization.reduce_bucket_size"),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "auto"}}},
            "zero_optimization.offload_optimizer.device",
        ),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1, "betas": "auto"}}}, "optimizer.params.betas"),
        ({"scheduler": _schedule("OneCycle", cycle_min_lr="auto")}, "scheduler.params.cycle_min_lr"),
    ],
)
def test_auto_that_is_left_is_refused_with_its_place(config: dict[str, Any], place: str):
    assert _refused(**config) == f'ds.json: {place} = "auto": nothing here fills it; write a value or leave it out'


@pytest.mark.parametrize("batch", [{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4}])
def test_auto_of_a_batch_size_is_filled(batch: dict[str, Any]):
    assert _resolve(**batch)["train_batch_size"] == 4


def test_what_was_read_is_not_changed():
    config = {"train_batch_size": 8, "optimizer": deepcopy(ADAMW), "scheduler": {"type": "WarmupDecayLR"}}
    before = deepcopy(config)
    resolve_ds_config(config, path="ds.json", world_size=2, total_steps=20, warmup_steps=4, on_cuda=False)
    assert config == before


def test_a_resolved_json_resolves_to_itself():
    resolved = _resolve(scheduler={"type": "WarmupDecayLR"}, warmup=4, bf16={"enabled": True})
    again = resolve_ds_config(resolved, path="ds.json", world_size=1, total_steps=20, warmup_steps=4, on_cuda=False)
    assert again == resolved


def test_jsons_are_shipped():
    assert len(SHIPPED) >= 8


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_every_shipped_json_loads_and_resolves(path: Path, world_size: int):
    config = load_ds_config(path)
    if config["train_batch_size"] % (config["train_micro_batch_size_per_gpu"] * world_size):
        pytest.skip(f"{config['train_batch_size']} pairs do not divide by this world size")
    resolved = resolve_ds_config(
        config, path=path, world_size=world_size, total_steps=1000, warmup_steps=10, on_cuda=path.stem[:3] == "gpu"
    )
    train, micro, accumulation = (resolved[key] for key in BATCH_KEYS)
    assert train == micro * accumulation * world_size == config["train_batch_size"]
    assert "auto" not in json.dumps(resolved)
    assert resolved["scheduler"]["params"]["warmup_max_lr"] == config["optimizer"]["params"]["lr"]
    assert resolved["scheduler"]["params"]["warmup_type"] == "linear"
    # the file's name says what it does
    assert precision(resolved) in path.stem
    assert f"zero{zero_stage(resolved)}" in path.stem
    assert ("offload" in path.stem) == ("offload_optimizer" in resolved["zero_optimization"])
    assert max(resolved["zero_optimization"].get(f"{kind}_bucket_size", 0) for kind in ("reduce", "allgather")) <= 5e7


@pytest.mark.parametrize(
    ("stage", "on_cuda", "size"),
    [(1, False, 5_000_000), (2, False, 5_000_000), (1, True, 50_000_000), (2, True, 50_000_000), (0, True, None)],
)
def test_o1_buckets_fit_bert(stage: int, on_cuda: bool, size: int | None):
    """Case O1: DeepSpeed's own 5e8 elements are 2 GB, taken anew in every step; what the JSON says stays."""
    zero = _resolve(on_cuda=on_cuda, zero_optimization={"stage": stage})["zero_optimization"]
    assert zero.get("reduce_bucket_size") == zero.get("allgather_bucket_size") == size
    given = {"stage": stage, "reduce_bucket_size": 123}
    assert _resolve(on_cuda=on_cuda, zero_optimization=given)["zero_optimization"]["reduce_bucket_size"] == 123


@pytest.mark.parametrize(
    ("stage", "num_parameters", "size"), [(2, 4_386_177, 4_386_178), (2, 110_000_000, 50_000_000), (3, 4_000, 4_000)]
)
def test_o1_buckets_are_no_larger_than_the_model(stage: int, num_parameters: int, size: int):
    """Case O1: even, and on stage 3 the one that gradients are reduced in."""
    config = {"train_batch_size": 8, "optimizer": ADAMW, "zero_optimization": {"stage": stage}}
    settings: dict[str, Any] = {"path": "j", "world_size": 1, "total_steps": 2, "warmup_steps": None, "on_cuda": True}
    zero = resolve_ds_config(config, num_parameters=num_parameters, **settings)["zero_optimization"]
    assert zero["reduce_bucket_size"] == size
    assert zero.get("allgather_bucket_size", size) == size
    assert ("allgather_bucket_size" in zero) == (stage < 3)


def test_all_faults_of_a_file_stand_together(tmp_path: Path):
    """What is misspelt or of a wrong type is told when the file is read, and what does not fit when it is resolved."""
    text = (
        '{"zero_optimisation": {}, "fp16": {"enabled": "true", "los_scale": 1}, "aio": {"blocksize": 1}, '
        '"zero_optimization": {"stage": "2", "offload_optimizer": {"devic": "cpu"}}}'
    )
    with pytest.raises(ConfigError) as refusal:
        load_ds_config(_write(tmp_path, text))
    places = [line.split(": ")[1].split(" = ")[0] for line in str(refusal.value).splitlines()]
    assert places == [
        "zero_optimisation",
        "fp16.enabled",
        "fp16.los_scale",
        "aio.blocksize",
        "zero_optimization.stage",
        "zero_optimization.offload_optimizer.devic",
    ]
    message = _refused(train_batch_size=0, optimizer={"type": "AdamW", "params": {"lr": "x"}}, gradient_clipping=-1)
    assert [line.split(" = ")[0] for line in message.splitlines()] == [
        "ds.json: train_batch_size",
        "ds.json: optimizer.params.lr",
        "ds.json: gradient_clipping",
    ]


def test_every_auto_that_is_left_is_named():
    message = _refused(steps_per_print="auto", zero_optimization={"stage": 2, "reduce_bucket_size": "auto"})
    assert len(message.splitlines()) == 2


def test_sums_in_fp32_are_sent_in_fp32_on_a_cpu():
    """ZeRO 1 in bf16: what was added up in fp32 is not rounded to be sent; what the JSON says stays."""
    zero_1: dict[str, Any] = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}
    resolved = _resolve(on_cuda=False, **zero_1)
    assert resolved["communication_data_type"] == "fp32"
    assert resolved["bf16"] == {"enabled": True, "immediate_grad_update": True}
    given = {"communication_data_type": "bf16", "bf16": {"enabled": True, "immediate_grad_update": False}}
    kept = _resolve(on_cuda=False, **{**zero_1, **given})
    assert {key: kept[key] for key in given} == given


@pytest.mark.parametrize(
    ("on_cuda", "config"),
    [
        (True, {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}),
        (False, {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}),
        (False, {"bf16": {"enabled": True}}),
        (False, {"bf16": {"enabled": False}, "zero_optimization": {"stage": 1}}),
        (
            False,
            {
                "bf16": {"enabled": True},
                "zero_optimization": {"stage": 1},
                "data_types": {"grad_accum_dtype": "bf16"},
            },
        ),
    ],
)
def test_elsewhere_deepspeed_says_how_gradients_are_sent(on_cuda: bool, config: dict[str, Any]):
    resolved = _resolve(on_cuda=on_cuda, **config)
    assert "communication_data_type" not in resolved
    assert resolved.get("bf16", {}).keys() <= {"enabled"}
