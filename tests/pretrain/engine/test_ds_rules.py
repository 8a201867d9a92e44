"""Settings that do not go together: faults, and warnings."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from pretrain.engine import ds_rules
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.engine.ds_refused import REFUSED
from pretrain.engine.ds_shape import SHAPE, shape_faults
from pretrain.engine.ds_warnings import warnings_of
from runtime.command import ConfigError

CPU = {"device": "cpu"}
ADAMW = {"type": "AdamW", "params": {"lr": 1e-3}}
BERT_BASE = 110_111_042


def resolve(config: dict[str, Any], *, on_cuda: bool = True) -> dict[str, Any]:
    given = {"train_batch_size": 8, "optimizer": deepcopy(ADAMW), **config}
    return resolve_ds_config(
        given,
        path="ds.json",
        world_size=1,
        total_steps=20,
        warmup_steps=None,
        on_cuda=on_cuda,
        num_parameters=BERT_BASE,
    )


def zero(stage: int, **settings: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **settings}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (zero(0, offload_optimizer=CPU), r"offload_optimizer.device = 'cpu' at stage 0: .* write .*stage = 1"),
        (zero(2, offload_param=CPU), r"offload_param.device = 'cpu' at stage 2: .* write .*stage = 3"),
        (zero(2, offload_optimizer={"device": "nvme", "nvme_path": "/"}), r"'nvme' at stage 2: .*host's memory"),
        (zero(3, offload_optimizer={"device": "nvme"}), r"offload_optimizer.nvme_path is missing"),
        (
            zero(3, offload_param={"device": "nvme", "nvme_path": "/no/disk"}),
            r"nvme_path = '/no/disk': there is no such",
        ),
        ({**zero(2), "prescale_gradients": True}, r"prescale_gradients = True at stage 2: .*stage = 1"),
        ({**zero(3), "gradient_predivide_factor": 2.0}, r"gradient_predivide_factor = 2.0 at stage 3"),
        (zero(2, zero_quantized_weights=True), r"zero_quantized_weights = True at stage 2: .*stage = 3"),
        (zero(1, zero_hpz_partition_size=8), r"zero_hpz_partition_size = 8 at stage 1"),
        (zero(2, allgather_bucket_size=5_000_001), r"allgather_bucket_size = 5000001: must be even"),
        (zero(1, compute_grad_norm=False), r"compute_grad_norm = false: the norm is logged"),
        ({"compile": {"deepcompile": True}}, r"compile.deepcompile = true: model.compile"),
        (
            {"bf16": {"enabled": True}, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
            r"torch_autocast.enabled and bf16.enabled are both true",
        ),
        ({"torch_autocast": {"enabled": True}}, r"torch_autocast.dtype is missing"),
        ({"data_types": {"param_dtype": "bf16"}}, r"param_dtype = 'bf16', but the parameters are in fp32"),
        (
            {**zero(2), "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
            r"bf16.bf16_master_weights_and_grads = true: .*offload_optimizer",
        ),
        (
            {**zero(2), "optimizer": {"type": "SGD", "params": {"lr": 1}}, "zero_allow_untested_optimizer": False},
            r"optimizer.type = 'SGD' at stage 2: .*untested",
        ),
        ({"optimizer": {"type": "OneBitAdam", "params": {"lr": 1}}}, r"DeepSpeed 0.19 has no 1-bit optimizers"),
        (
            {"optimizer": {"type": "AdamW", "params": {"lr": 1, "max_grad_norm": 1}}},
            r"optimizer.params.max_grad_norm: its home is gradient_clipping",
        ),
        (
            {
                **zero(3, offload_optimizer={"device": "cpu", "ratio": 0.5}),
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            },
            r"ratio below 1 needs DeepSpeed's own Adam",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(config: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        resolve(config)


@pytest.mark.parametrize(
    "config",
    [
        zero(1, offload_optimizer=CPU),
        zero(3, offload_param=CPU),
        zero(0, offload_optimizer={"device": "none"}),
        {**zero(1), "prescale_gradients": True},
        {**zero(2, reduce_scatter=False), "prescale_gradients": True},
        zero(3, zero_quantized_weights=True, zero_hpz_partition_size=8),
        {**zero(2), "optimizer": {"type": "SGD", "params": {"lr": 1}}, "zero_allow_untested_optimizer": True},
        {"optimizer": {"type": "SGD", "params": {"lr": 1}}},
    ],
)
def test_what_goes_together_is_taken(config: dict[str, Any]):
    resolve(config)


def test_what_a_cpu_lacks_is_refused_there():
    autocast = {"torch_autocast": {"enabled": True, "dtype": "float16"}}
    for config in (zero(3, zero_quantized_weights=True), autocast):
        resolve(config)
        with pytest.raises(ConfigError, match="CPU"):
            resolve(config, on_cuda=False)


@pytest.mark.parametrize("is_there", [True, False])
def test_nvme_without_libaio_is_refused_before_anything_starts(is_there: bool, tmp_path, monkeypatch):
    monkeypatch.setattr(ds_rules, "has_async_io", lambda: is_there)
    config = zero(3, offload_optimizer={"device": "nvme", "nvme_path": str(tmp_path)})
    if is_there:
        resolve(config)
    else:
        with pytest.raises(
            ConfigError, match=r"offload_optimizer.device = 'nvme': .*install libaio-dev .*or write 'cpu'"
        ):
            resolve(config)


@pytest.mark.parametrize("place", sorted(REFUSED))
def test_a_key_that_is_not_taken_has_its_reason(place: str):
    config: dict[str, Any] = {}
    *blocks, leaf = place.split(".")
    inner = config
    for block in blocks:
        inner = inner.setdefault(block, {})
    inner[leaf] = {"enabled": True}
    assert shape_faults(config) == [f"{place}: refused: {REFUSED[place]}"]
    assert place not in SHAPE


def test_deepspeed_s_own_list_of_removed_keys_is_refused():
    from deepspeed.runtime import config

    removed = set(config._REMOVED_TOP_LEVEL_CONFIG_KEYS)
    removed |= {f"zero_optimization.{key}" for key in config._REMOVED_ZERO_CONFIG_KEYS}
    assert removed <= set(REFUSED)


@pytest.mark.parametrize(
    ("config", "warning"),
    [
        (
            zero(2, stage3_max_live_parameters=5),
            "zero_optimization.stage3_max_live_parameters = 5: has no effect at stage 2",
        ),
        (zero(1, sub_group_size=5), "zero_optimization.sub_group_size = 5: has no effect at stage 1"),
        (
            zero(3, round_robin_gradients=True),
            "zero_optimization.round_robin_gradients = true: has no effect at stage 3",
        ),
        (
            zero(2, contiguous_gradients=False, offload_optimizer=CPU),
            "zero_optimization.contiguous_gradients = false: with offload_optimizer DeepSpeed takes true",
        ),
        (
            {**zero(1, overlap_comm=True), "bf16": {"enabled": True}},
            "zero_optimization.overlap_comm = true: has no effect at stage 1 in bf16 with sums in fp32",
        ),
        ({"aio": {"block_size": 1}}, "aio: has no effect without an offload to NVMe"),
        (
            {"wandb": {"enabled": True}},
            "wandb.enabled = true: DeepSpeed writes a record of its own beside the run's; write",
        ),
        ({"csv_monitor": {"enabled": True}}, "csv_monitor.enabled = true: DeepSpeed writes a record of its own"),
        (
            {"communication_data_type": "fp16"},
            "communication_data_type = 'fp16' without fp16: gradients are sent without",
        ),
        (
            {"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-5}}},
            "optimizer.params.lr = 0.001: OneCycle passes over it, scheduler.params rules: cycle_min_lr = 1e-05 to "
            "cycle_max_lr = 0.001",
        ),
        (
            {"scheduler": {"type": "LRRangeTest"}},
            "optimizer.params.lr = 0.001: LRRangeTest passes over it, scheduler.params rules: lr_range_test_min_lr = ",
        ),
    ],
)
def test_what_does_nothing_is_named(config: dict[str, Any], warning: str):
    found = warnings_of(resolve(config), on_cuda=True, num_parameters=BERT_BASE)
    assert len(found) == 1
    assert found[0].startswith(warning)


def test_o1_a_bucket_above_the_model_is_named_with_its_bytes():
    """Case O1: 5e8 elements of 2 bytes for 110,111,042 parameters leave 779,777,916 bytes unused."""
    config = {**zero(2, reduce_bucket_size=5e8), "bf16": {"enabled": True}}
    assert warnings_of(resolve(config), on_cuda=True, num_parameters=BERT_BASE) == [
        "zero_optimization.reduce_bucket_size = 500,000,000: the model has 110,111,042 parameters, "
        "0.73 GiB (779,777,916 bytes) would never be used; write 50000000"
    ]
    assert warnings_of(resolve(config), on_cuda=True) == []


def test_overlap_doubles_the_bucket():
    """A bucket of 1e8 fp32 elements is 400,000,000 bytes, and there are two."""
    config = zero(2, reduce_bucket_size=10**8, overlap_comm=True)
    assert warnings_of(resolve(config), on_cuda=True, num_parameters=BERT_BASE) == [
        "zero_optimization.overlap_comm = true: doubles the bucket, 0.37 GiB (400,000,000 bytes) more; "
        "write zero_optimization.reduce_bucket_size = 50000000"
    ]
    both = warnings_of(
        resolve({**zero(2, reduce_bucket_size=5e8, overlap_comm=True), "bf16": {"enabled": True}}),
        on_cuda=True,
        num_parameters=BERT_BASE,
    )
    assert "(1,559,555,832 bytes) would never be used" in both[0]  # twice 779,777,916
    on_cpu = warnings_of(resolve(zero(2, overlap_comm=True), on_cuda=False), on_cuda=False)
    assert [line.split(": ")[0] for line in on_cpu] == ["zero_optimization.overlap_comm = true"]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_plain_json_has_no_warning(stage: int):
    for precision in ("fp32", "bf16"):
        config = resolve({**zero(stage), precision: {"enabled": True}} if precision == "bf16" else zero(stage))
        assert warnings_of(config, on_cuda=True, num_parameters=BERT_BASE) == []
