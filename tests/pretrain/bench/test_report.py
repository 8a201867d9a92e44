"""The figures of a measurement against each other and by hand, and the table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pretrain.bench.report import Measures, render, report_values
from pretrain.engine.ds_config import BatchSizes
from pretrain.flops import ModelShape, WorkCounts

# 192 operations a token, 24 a squared token, 120 a masked one.
MEASURES = Measures(
    name="tiny",
    data="random tokens",
    seq_len=100,
    shape=ModelShape(num_hidden_layers=1, hidden_size=2, intermediate_size=4, vocab_size=8),
    parameters=1_234_567,
    device="NVIDIA H200",
    world_size=2,
    precision="parameters bfloat16",
    zero_stage=1,
    sizes=BatchSizes(train_batch_size=40, train_micro_batch_size_per_gpu=10, gradient_accumulation_steps=2),
    counts=WorkCounts(tokens=16_000, squared_tokens=1_600_000, masked_tokens=2400, pairs=160),
    padding_tokens=4000,
    step_seconds=[1.0, 2.0, 3.0, 10.0],
    part_seconds={"data_wait": 2.0, "forward": 4.0, "backward": 8.0, "optimizer": 2.0},
    skipped_steps=0,
    peak_flops=13.05e6,
    peak_memory_gib=1.25,
)


def test_figures_by_hand():
    values = report_values(MEASURES)
    assert values["seconds"] == 16.0
    assert values["steps"] == 4
    assert values["tokens_per_step"] == 4000
    assert values["tokens_per_second"] == 1000
    assert values["pairs_per_second"] == 10
    flops = 192 * 16_000 + 24 * 1_600_000 + 120 * 2400
    assert values["model_tflops_per_device"] == pytest.approx(flops / 16 / 2 / 1e12)
    assert values["mfu"] == pytest.approx(0.1)
    assert values["peak_tflops"] == pytest.approx(1.305e-5)
    assert values["step_milliseconds"]["median"] == pytest.approx(2500)
    assert values["step_milliseconds"]["percentile_10"] == pytest.approx(1300)
    assert values["step_milliseconds"]["percentile_90"] == pytest.approx(7900)
    assert values["shares"] == {"data_wait": 0.125, "forward": 0.25, "backward": 0.5, "optimizer": 0.125}
    assert values["padding_share"] == 0.2
    assert (values["train_batch_size"], values["gradient_accumulation_steps"]) == (40, 2)


def test_table():
    table = render(MEASURES)
    assert "tiny: 1 layers x 2, feed-forward 4, 8 tokens; 1.2M parameters\n" in table
    assert "2 x NVIDIA H200\n" in table
    assert "40 pairs = 10 a micro-batch x 2 micro-steps x 2 ranks\n" in table
    assert "random tokens, pairs of up to 100 tokens\n" in table
    assert "4 steps in 16.0 s\n" in table
    assert "4,000 a step, 1,000 a second, padding 20.0 %\n" in table
    assert "(MFU 10.0 % of 1.305e-05)\n" in table
    assert "2,500.0 ms (10 %: 1,300.0, 90 %: 7,900.0)\n" in table
    assert "data wait 12.5 %, forward 25.0 %, backward 50.0 %, optimizer 12.5 %\n" in table
    assert max(map(len, table.splitlines())) <= 100


def test_without_a_peak_the_table_says_how_to_give_it():
    unknown = replace(MEASURES, peak_flops=None)
    assert report_values(unknown)["mfu"] is None
    assert "(peak unknown: give tracking.peak_tflops)\n" in render(unknown)


def test_skipped_updates_are_told():
    assert "4 steps in 16.0 s, 2 skipped (fp16 overflow)\n" in render(replace(MEASURES, skipped_steps=2))


def test_every_field_is_in_the_docs():
    docs = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    values = report_values(MEASURES)
    names = [*values, *values["step_milliseconds"], *values["shares"]]
    assert [name for name in names if f"`{name}`" not in docs] == ["benchmark"]
