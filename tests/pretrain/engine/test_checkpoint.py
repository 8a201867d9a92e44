"""Checkpoints of every ZeRO stage and precision, on one process with the real engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from deepspeed.utils import safe_get_full_fp32_param
from transformers import BertConfig

from pretrain.engine.build import build_engine
from pretrain.engine.checkpoint import (
    Retention,
    TrainingState,
    begin_save,
    find_checkpoint,
    load_checkpoint,
    load_fp32_weights,
    read_checkpoint,
    saving,
)
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.engine.optim import named_groups
from pretrain.model.bert import StreamBert
from runtime.command import ConfigError

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

LENGTHS = [9, 9, 6]


@pytest.fixture(scope="module", autouse=True)
def group(one_rank):
    return one_rank


def make_model() -> StreamBert:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    return StreamBert(config, vocab_size=61)


def make_config(stage: int, precision: str) -> dict:
    config = {
        "train_batch_size": 3,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 2}},
        "zero_optimization": {"stage": stage},
    }
    if precision != "fp32":
        config[precision] = {"enabled": True}
    return resolve_ds_config(config, path="j.json", world_size=1, total_steps=9, warmup_steps=2, on_cuda=False)


def train_a_step(engine) -> None:
    torch.manual_seed(7)  # of dropout
    generator = torch.Generator().manual_seed(1)
    total = sum(LENGTHS)
    output = engine(
        input_ids=torch.randint(0, 61, (1, total), generator=generator),
        token_type_ids=torch.zeros(1, total, dtype=torch.long),
        position_ids=torch.cat([torch.arange(length) for length in LENGTHS])[None],
        cu_seqlens=torch.tensor([0, *LENGTHS]).cumsum(0).int(),
        masked_positions=torch.arange(total),
        pair_lengths=LENGTHS,
    )
    engine.backward(output.mlm_logits.float().square().mean() + output.nsp_logits.float().square().mean())
    engine.step()


def save(engine, config: dict, run_dir: Path, step: int = 3, keep_last: int = 3) -> Path:
    return begin_save(
        engine,
        run_dir,
        TrainingState(step=step, epoch=1, consumed=6, pairs_seen=9, tokens_seen=72),
        world_size=1,
        recipe={"name": "x"},
        ds_config=config,
        fingerprints={"tokenizer": "t", "shards": "s"},
        retention=Retention(keep_last),
    ).finish()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_fp32_master_weights_come_back(stage, precision, tmp_path):
    """Case H6: not the rounded weights that the model computes with."""
    config = make_config(stage, precision)
    model = make_model()
    masters_of = {name: parameter for group in named_groups(model) for name, parameter in group}
    engine = build_engine(model, config)
    for _ in range(3):
        train_a_step(engine)
    save(engine, config, tmp_path)
    found = find_checkpoint(tmp_path)
    weights = load_fp32_weights(found, make_model())

    assert set(weights) == set(make_model().state_dict())
    if precision == "bf16" and stage == 0:
        flat = [master for group in engine.optimizer.fp32_groups for master in group]
        names = [name for group in named_groups(model) for name, _ in group]
        expected = dict(zip(names, flat, strict=True))
    elif stage == 0:
        expected = dict(model.named_parameters())
    else:
        expected = {name: safe_get_full_fp32_param(parameter) for name, parameter in masters_of.items()}
    for name, master in expected.items():
        assert weights[name].dtype == torch.float32
        assert torch.equal(weights[name], master.detach().cpu().view_as(weights[name])), name
    if precision == "bf16":
        name = "bert.encoder.layer.0.output.dense.weight"
        assert not torch.equal(weights[name], weights[name].bfloat16().float())
    tied = "cls.predictions.decoder.weight"
    assert torch.equal(weights[tied], weights["bert.embeddings.word_embeddings.weight"])


def test_state_and_schedule_are_loaded(tmp_path):
    config = make_config(1, "fp32")
    engine = build_engine(make_model(), config)
    for _ in range(3):
        train_a_step(engine)
    save(engine, config, tmp_path)
    resumed = build_engine(make_model(), config)
    load_checkpoint(resumed, find_checkpoint(tmp_path))
    assert resumed.get_lr() == engine.get_lr()
    assert find_checkpoint(tmp_path).state == TrainingState(3, 1, 6, 9, 72)
    for _ in range(2):
        train_a_step(engine)
        train_a_step(resumed)
    for one, other in zip(engine.module.parameters(), resumed.module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_old_ones_go_and_latest_is_last(tmp_path):
    config = make_config(0, "fp32")
    engine = build_engine(make_model(), config)
    for step in (1, 2, 3):
        save(engine, config, tmp_path, step=step, keep_last=2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "latest",
        "step_00000002",
        "step_00000003",
    ]
    assert find_checkpoint(tmp_path).tag == "step_00000003"
    assert find_checkpoint(tmp_path, step=2).tag == "step_00000002"
    with pytest.raises(ConfigError, match="no checkpoint of step 9; there are: 2, 3"):
        find_checkpoint(tmp_path, step=9)


def test_a_save_that_dies_leaves_the_older_one(tmp_path, monkeypatch):
    """Whatever is cut short, `latest` names a whole checkpoint; the leftover is replaced later."""
    config = make_config(0, "fp32")
    engine = build_engine(make_model(), config)
    save(engine, config, tmp_path, step=1)

    def die(*_):
        raise KeyboardInterrupt

    for name in ("write_json", "write_text"):
        with monkeypatch.context() as patch:
            patch.setattr(saving, name, die)
            with pytest.raises(KeyboardInterrupt):
                save(engine, config, tmp_path, step=2)
        assert find_checkpoint(tmp_path).state.step == 1
    save(engine, config, tmp_path, step=2)
    assert find_checkpoint(tmp_path).state.step == 2


def test_damage_is_named(tmp_path):
    config = make_config(0, "fp32")
    path = save(build_engine(make_model(), config), config, tmp_path)
    weights = path / "mp_rank_00_model_states.pt"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-7])
    with pytest.raises(ConfigError, match=rf"{weights}: {len(whole) - 7} bytes long, .* says {len(whole)}"):
        find_checkpoint(tmp_path)
    weights.unlink()
    with pytest.raises(ConfigError, match=r"model_states.pt: missing"):
        find_checkpoint(tmp_path)
    listing = path / "checkpoint.json"
    listing.write_text(json.dumps({"format": "other"}))
    with pytest.raises(ConfigError, match="not a checkpoint list of version 1"):
        read_checkpoint(path)
    listing.unlink()
    with pytest.raises(ConfigError, match=r"checkpoint.json is missing, its save was cut short"):
        find_checkpoint(tmp_path)


def test_nothing_there_is_none(tmp_path):
    assert find_checkpoint(tmp_path) is None
