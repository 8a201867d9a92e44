"""The formula against published figures and hand-worked sums; the table of peaks by the names that torch gives."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pretrain.data.stream import BatchCounts
from pretrain.flops import PEAK_FLOPS, ModelShape, WorkCounts, model_flops, peak_flops

BASE = ModelShape(num_hidden_layers=12, hidden_size=768, intermediate_size=3072, vocab_size=30_522)
LARGE = ModelShape(num_hidden_layers=24, hidden_size=1024, intermediate_size=4096, vocab_size=30_522)


def pairs_of(tokens: int, masked: int, pairs: int = 1) -> WorkCounts:
    return WorkCounts(
        tokens=tokens * pairs, squared_tokens=tokens**2 * pairs, masked_tokens=masked * pairs, pairs=pairs
    )


@pytest.mark.parametrize(
    ("shape", "tokens", "masked", "gflop"),
    [(BASE, 128, 20, 69.9), (BASE, 512, 80, 301.4), (LARGE, 128, 20, 240.6), (LARGE, 512, 80, 1020.5)],
)
def test_bert_base_and_large(shape: ModelShape, tokens: int, masked: int, gflop: float):
    assert model_flops(shape, pairs_of(tokens, masked)) / 1e9 == pytest.approx(gflop, abs=0.05)


@pytest.mark.parametrize(("pairs", "tokens", "masked", "tflops"), [(272, 128, 20, 65.5), (52, 512, 80, 53.1)])
def test_deepspeeds_published_speed_on_a_v100(pairs: int, tokens: int, masked: int, tflops: float):
    """2020-05-28, "the fastest BERT training": 272 and 52 pairs/s of BERT-large, 64 and 53 TFLOP/s."""
    assert model_flops(LARGE, pairs_of(tokens, masked, pairs)) / 1e12 == pytest.approx(tflops, abs=0.05)


def test_every_term_by_hand():
    shape = ModelShape(num_hidden_layers=3, hidden_size=2, intermediate_size=5, vocab_size=7)
    # A layer: query, key, value and output 4 x 2 x 2 = 16 weights, feed-forward 2 x 2 x 5 = 20; the head 2 x 2 + 2 x 7.
    assert model_flops(shape, WorkCounts(tokens=1)) == 6 * 3 * 36
    # Scores and their sum: 2 products x 2 operations x H forward, twice that backward.
    assert model_flops(shape, WorkCounts(squared_tokens=1)) == 3 * 12 * 2
    assert model_flops(shape, WorkCounts(masked_tokens=1)) == 6 * 18
    assert model_flops(shape, WorkCounts(pairs=9)) == 0


def test_a_wide_feed_forward_layer_counts_as_wide_as_it_is():
    wide = ModelShape(num_hidden_layers=12, hidden_size=768, intermediate_size=6144, vocab_size=30_522)
    more = model_flops(wide, WorkCounts(tokens=1)) - model_flops(BASE, WorkCounts(tokens=1))
    assert more == 6 * 12 * 2 * 768 * 3072


def test_work_adds_up():
    one, two = pairs_of(128, 20), pairs_of(57, 9, pairs=3)
    assert one + two == WorkCounts(tokens=128 + 171, squared_tokens=128**2 + 3 * 57**2, masked_tokens=20 + 27, pairs=4)
    assert model_flops(BASE, one + two) == model_flops(BASE, one) + model_flops(BASE, two)


def test_counts_of_a_global_batch_by_name():
    counts = BatchCounts(masked_tokens=1, pairs=2, tokens=3, squared_tokens=4)
    assert WorkCounts.of(counts) == WorkCounts(tokens=3, squared_tokens=4, masked_tokens=1, pairs=2)


def test_rows_that_pad_the_vocabulary_are_no_work():
    config = SimpleNamespace(num_hidden_layers=1, hidden_size=2, intermediate_size=3, vocab_size=64)
    shape = ModelShape.of(SimpleNamespace(config=config, real_vocab_size=50))
    assert shape == ModelShape(num_hidden_layers=1, hidden_size=2, intermediate_size=3, vocab_size=50)


@pytest.mark.parametrize(
    ("name", "fp32", "fp16", "bf16"),
    [
        ("NVIDIA H200", 67, 989.4, 989.4),
        ("NVIDIA H200 NVL", 60, 835.5, 835.5),
        ("NVIDIA GH200 480GB", 67, 989.4, 989.4),
        ("NVIDIA H100 80GB HBM3", 67, 989.4, 989.4),
        ("NVIDIA H100 PCIe", 51.2, 756.5, 756.5),
        ("NVIDIA H100 NVL", 60, 835.5, 835.5),
        ("NVIDIA H20", 44, 148, 148),
        ("NVIDIA B200", 75, 2250, 2250),
        ("NVIDIA A100-SXM4-80GB", 19.5, 312, 312),
        ("NVIDIA A100 80GB PCIe", 19.5, 312, 312),
        ("NVIDIA A10", 31.2, 125, 125),
        ("NVIDIA A10G", 35, 70, 70),
        ("NVIDIA L4", 30.3, 121, 121),
        ("NVIDIA L40", 90.5, 181, 181),
        ("NVIDIA L40S", 91.6, 362, 362),
        ("Tesla V100-SXM2-16GB", 15.7, 125, None),
        ("Tesla V100-PCIE-32GB", 14, 112, None),
        ("Tesla V100S-PCIE-32GB", 16.4, 130, None),
        ("Tesla T4", 8.1, 65, None),
        ("NVIDIA GeForce RTX 4090", 82.6, 165.2, 165.2),
        ("NVIDIA GeForce RTX 3090", 35.6, 71, 71),
        ("AMD Instinct MI300X", 163.4, 1307.4, 1307.4),
        ("AMD Instinct MI250X", 47.9, 191.5, 191.5),
    ],
)
def test_peaks_by_the_names_that_torch_gives(name: str, fp32: float, fp16: float, bf16: float | None):
    found = [peak_flops(name, dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)]
    assert found == [None if value is None else value * 1e12 for value in (fp32, fp16, bf16)]


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",  # a part of one
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA H1000",
        "NVIDIA TITAN V",
        "AMD Instinct MI100",
        "cpu",
        "",
    ],
)
def test_what_is_not_in_the_table_has_no_peak(name: str):
    assert peak_flops(name, torch.bfloat16) is None


def test_another_dtype_has_no_peak():
    assert peak_flops("NVIDIA H200", torch.float64) is None


def test_every_device_of_the_table_is_found_by_its_own_name():
    for name, peaks in PEAK_FLOPS.items():
        assert peak_flops(f"NVIDIA {name}", torch.float16) == peaks[torch.float16]
