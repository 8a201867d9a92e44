"""Timed steps with the real engine, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pretrain.bench import step as bench_step
from pretrain.bench.command import build_parser
from pretrain.bench.report import Measures, report_values
from pretrain.bench.step import WARM_UP_STEPS, Stopwatch, measure, prepare
from pretrain.flops import WorkCounts, model_flops
from runtime.command import ConfigError
from runtime.dist import World

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120), pytest.mark.usefixtures("one_rank")]

ONE = World(rank=0, local_rank=0, size=1)
CPU = torch.device("cpu")


def take(recipe: Path, config: Path, scratch: Path, *arguments: str, seconds: float = 0.5) -> Measures:
    words = ["step", "--recipe", str(recipe), "--deepspeed_config", str(config), *arguments]
    return measure(prepare(build_parser().parse_args(words), ONE, scratch), CPU, seconds)


def check(measures: Measures, pairs: int) -> dict:
    """Hold the figures against each other."""
    values = report_values(measures)
    assert values["pairs"] == values["steps"] * pairs
    assert values["tokens"] == values["steps"] * values["tokens_per_step"]
    assert values["tokens_per_second"] * values["seconds"] == pytest.approx(values["tokens"])
    assert values["pairs_per_second"] * values["seconds"] == pytest.approx(values["pairs"])
    assert sum(values["shares"].values()) == pytest.approx(1)
    assert min(values["shares"].values()) > 0
    # one rank: the parts of the steps are the steps
    assert sum(measures.part_seconds.values()) == pytest.approx(values["seconds"])
    spread = values["step_milliseconds"]
    assert spread["percentile_10"] <= spread["median"] <= spread["percentile_90"]
    flops = model_flops(measures.shape, measures.counts)
    assert values["model_tflops_per_device"] == pytest.approx(flops / values["seconds"] / 1e12)
    assert json.loads(json.dumps(values)) == values
    return values


def test_the_recipes_own_text(recipe_path, ds_config_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the run dir would be
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    measures = take(
        recipe_path,
        ds_config_path(2, "bf16"),
        scratch,
        "--set",
        "tracking.peak_tflops=0.001",
        "--set",
        "data.short_seq_prob=1",
    )
    values = check(measures, pairs=16)
    assert values["mfu"] == pytest.approx(values["model_tflops_per_device"] / 0.001)
    assert 0.3 < values["seconds"] < 10  # a step may be longer than the time that is left
    assert (values["zero_stage"], values["gradient_accumulation_steps"], values["world_size"]) == (2, 4, 1)
    assert values["model"]["vocab_size"] == 1000
    embeddings = (1024 + 64 + 2 + 2) * 32  # 1,000 tokens of vocabulary are 1,024 rows
    layer = 4 * (32 * 32 + 32) + 2 * 32 * 64 + 64 + 32 + 4 * 32
    heads = (32 * 32 + 32) + (32 * 2 + 2) + (32 * 32 + 32 + 2 * 32) + 1024
    assert values["model"]["parameters"] == embeddings + 2 * layer + heads
    assert 16 * 8 < values["tokens_per_step"] < 16 * 48  # some pairs of the text are short
    assert values["peak_memory_gib"] > 0.1
    assert [path.name for path in tmp_path.iterdir()] == ["scratch"]


def test_random_tokens_of_full_length(ds_config_path, tmp_path, monkeypatch):
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'name = "r"\ntokenizer = "/nowhere/t"\nshards = "/nowhere/s"\n'
        "[model]\nhidden_size = 16\nnum_hidden_layers = 1\nnum_attention_heads = 2\nintermediate_size = 32\n"
        "vocab_size = 500\n[data]\nseq_len = 40\nshort_seq_prob = 0.5\n"
        '[training]\nsteps = 5\nwarmup_steps = 1\ninit_from = "/nowhere/run"\n'
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    values = check(take(recipe, ds_config_path(0, "fp32"), scratch, "--synthetic", seconds=0.2), pairs=16)
    assert values["tokens_per_step"] == 16 * 40
    assert values["squared_tokens"] == values["tokens"] * 40
    assert values["masked_tokens"] == values["pairs"] * 6
    assert values["model"]["vocab_size"] == 500
    assert values["data"] == "random tokens"
    assert values["mfu"] is None


def test_a_step_longer_than_the_time_is_measured_once(recipe_path, ds_config_path, tmp_path):
    values = check(take(recipe_path, ds_config_path(1, "fp32"), tmp_path, "--synthetic", seconds=1e-6), pairs=16)
    assert values["steps"] == 1


def test_without_text_it_is_the_error_of_training(recipe_path, ds_config_path, tmp_path):
    with pytest.raises(ConfigError, match=r"/nowhere/tokenizer.json: no such file"):
        take(recipe_path, ds_config_path(1), tmp_path, "--set", "tokenizer=/nowhere")
    with pytest.raises(ConfigError, match=r"data.seqlen: there is no such key"):
        take(recipe_path, ds_config_path(1), tmp_path, "--set", "data.seqlen=3", "--synthetic")
    with pytest.raises(ConfigError, match=r"train_batch_size = 10 ≠ 4"):
        take(recipe_path, ds_config_path(1, train_batch_size=10), tmp_path)


class Steps:
    """Stands in for the stepper: each step takes as long as it is told."""

    def __init__(self, clock: list[float], seconds: float) -> None:
        self.device, self.steps, self.rounds = CPU, WARM_UP_STEPS, []
        self._clock, self._seconds = clock, seconds

    def take(self, number: int, watch: object) -> None:
        self.steps += number
        self.rounds.append(number)
        self._clock[0] += number * self._seconds


@pytest.mark.parametrize(("pace", "rounds"), [(1.0, [6] * 10), (12.0, [1] * 5), (100.0, [1]), (0.01, [600] * 10)])
def test_rounds_fill_the_time(pace: float, rounds: list[int], monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(bench_step.time, "monotonic", lambda: clock[0])
    steps = Steps(clock, pace)
    bench_step._take_for(60.0, pace, steps, None)
    assert sum(steps.rounds) == pytest.approx(sum(rounds), rel=0.02)
    assert len(steps.rounds) == pytest.approx(len(rounds), abs=1)


def test_a_first_pace_that_was_slow_is_mended(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(bench_step.time, "monotonic", lambda: clock[0])
    steps = Steps(clock, 0.1)
    bench_step._take_for(60.0, 30.0, steps, None)  # a warm-up step that was compiled
    assert clock[0] == pytest.approx(60, abs=1)
    assert len(steps.rounds) <= 12


def test_parts_and_steps_of_a_stopwatch(monkeypatch):
    now = iter([0.0, 1.0, 3.0, 6.0, 10.0, 50.0, 51.0, 53.0, 56.0, 60.0, 65.0, 66.0, 67.0])
    monkeypatch.setattr(bench_step.time, "perf_counter", lambda: next(now))
    watch = Stopwatch(CPU)
    for micro_steps in (1, 2):
        watch.start()
        watch.mark("data_wait")
        for _ in range(micro_steps):
            for part in ("forward", "backward", "optimizer"):
                watch.mark(part)
    steps, parts = watch.read()
    assert steps == [10.0, 17.0]  # the 40 s between the rounds are nobody's
    assert parts == {"data_wait": 2.0, "forward": 9.0, "backward": 7.0 + 1.0 - 1.0, "optimizer": 9.0}
    assert sum(parts.values()) == 27.0


def test_counts_begin_behind_the_warm_up(recipe_path, ds_config_path, tmp_path):
    measures = take(recipe_path, ds_config_path(1), tmp_path, "--synthetic", seconds=1e-6)
    assert measures.counts == WorkCounts(tokens=16 * 48, squared_tokens=16 * 48**2, masked_tokens=16 * 7, pairs=16)
    assert len(measures.step_seconds) == 1
