from __future__ import annotations

import pytest

from pretrain.engine.ds_blocks import check_blocks
from runtime.command import ConfigError

GOOD = {
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9, "warmup_num_steps": 2}},
    "zero_optimization": {"stage": 2, "overlap_comm": True},
    "bf16": {"enabled": True},
}


@pytest.mark.parametrize(
    ("block", "value", "message"),
    [
        ("zero_optimization", {"stge": 2}, r"j.json: zero_optimization.stge: DeepSpeed knows no such key .*'stage'"),
        ("zero_optimization", {"offload_optimizer": {"device": "disk"}}, r"zero_optimization.offload_optimizer.device"),
        ("bf16", {"enable": True}, r"bf16.enable: .* \(did you mean 'enabled'\?\)"),
        ("fp16", {"loss_scale": -1}, r"fp16.loss_scale = -1: .*>= 0"),
        (
            "optimizer",
            {"type": "AdamZ"},
            r"optimizer.type = 'AdamZ': neither DeepSpeed nor torch.optim has it .*'Adam'",
        ),
        (
            "scheduler",
            {"type": "WarmupLR", "params": {"warmup_steps": 2}},
            r"scheduler.params.warmup_steps: WarmupLR takes no such parameter .*'warmup_num_steps'",
        ),
        (
            "scheduler",
            {"type": "WarmupCosineLR", "params": {"warmup_max_lr": 1}},
            r"scheduler.params.warmup_max_lr: WarmupCosineLR takes no such parameter",
        ),
        ("optimizer", {"type": "lr_scheduler"}, r"optimizer.type = 'lr_scheduler': neither"),
        (
            "optimizer",
            {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True, "bogus": 1}},
            r"optimizer.params: .*unexpected keyword argument 'bogus'",
        ),
        ("optimizer", {"type": "AdamW", "params": {"torch_adam": True, "betas": "x"}}, r"optimizer.params: "),
        ("optimizer", {"type": "SGD", "params": {"lr": 1e-3, "weight_decay": "0.01"}}, r"optimizer.params: "),
        ("optimizer", {"type": "AdamW", "parms": {}}, r"optimizer.parms: .* \(did you mean 'params'\?\)"),
        ("scheduler", {"type": "WarmupLR", "parms": {}}, r"scheduler.parms: .* \(did you mean 'params'\?\)"),
        ("scheduler", {"type": "OneCycle"}, r"scheduler.params.cycle_max_lr is missing; OneCycle has no default"),
        ("scheduler", {"type": "OneCycle", "params": 5}, r"scheduler.params = 5: must be an object"),
        ("scheduler", {"type": "WarmupLR", "params": {"warmup_min_lr": "x"}}, r"scheduler.params: "),
        ("data_types", {"grad_acum_dtype": "fp32"}, r"data_types.grad_acum_dtype: .*'grad_accum_dtype'"),
        ("data_types", {"grad_accum_dtype": "fp99"}, r"grad_accum_dtype = 'fp99': must be one of fp32, fp16, bf16"),
        ("communication_data_type", "fp99", r"communication_data_type = 'fp99': must be one of"),
        ("checkpoint", {"load_univ": True}, r"checkpoint.load_univ: .*'load_universal'"),
    ],
)
def test_a_fault_inside_a_block_is_named(block, value, message):
    with pytest.raises(ConfigError, match=message):
        check_blocks({**GOOD, block: value}, "j.json")


def test_all_faults_at_once():
    with pytest.raises(ConfigError) as caught:
        check_blocks(
            {**GOOD, "zero_optimization": {"stge": 2, "overlap_com": True}, "bf16": {"enable": True}}, "j.json"
        )
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "Lion", "Muon", "SGD"])
def test_what_deepspeed_takes_is_taken(kind):
    check_blocks({**GOOD, "optimizer": {"type": kind}}, "j.json")
    check_blocks({"optimizer": {"type": kind}}, "j.json")
