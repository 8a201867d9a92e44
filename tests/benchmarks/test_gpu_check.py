"""The nine-minute check: what its driver does when stages hang and crash, its arithmetic, and a rehearsal of all."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu_check import __main__ as command
from benchmarks.gpu_check import driver, peer
from benchmarks.gpu_check.driver import Outcome, Stage, run_stages
from benchmarks.gpu_check.engine import compare_losses
from benchmarks.gpu_check.stage import Results
from benchmarks.gpu_check.training import Timing, figures, own_counts, predicted_gib, time_steps
from benchmarks.gpu_check.workload import (
    FULL_128,
    FULL_512,
    SCALES,
    WIKIPEDIA_512,
    micro_batches,
    one_global_batch,
)
from pretrain.flops import WorkCounts
from runtime.command import ConfigError

FAKE_STAGES = """
import json, os, signal, subprocess, sys, time
from pathlib import Path


def quick(results):
    results.record("value", 1.5)
    results.headline("1.5 of it")


def hangs(results):
    child = subprocess.Popen(["sleep", "600"])
    results.record("child", child.pid)
    time.sleep(600)


def raises(results):
    results.record("before", 1)
    print("what was printed")
    raise ValueError("broken kernel")


def dies(results):
    results.record("before", 2)
    os.kill(os.getpid(), signal.SIGSEGV)


def nothing_here(results):
    results.absent("no such device")


def one_of_two(results):
    results.attempt("bad", lambda: 1 / 0)
    results.attempt("good", lambda: 7)


def reads_json(results):
    found = json.loads(Path(__file__).with_name("figures.json").read_text())
    results.record("stages_so_far", list(found["stages"]))

"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run fake stages by name; returns the exit code and the JSON."""
    (tmp_path / "fake_stages.py").write_text(FAKE_STAGES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(driver, "LEAST_SECONDS", 0.5)
    path = tmp_path / "figures.json"

    def run_names(
        *names: str, limits: dict[str, float] | None = None, seconds: float = 120
    ) -> tuple[int, dict[str, Any]]:
        stages = [Stage(name, f"fake_stages:{name}", (limits or {}).get(name, 60)) for name in names]
        code = run_stages(stages, "tiny", seconds=seconds, facts={"scale": "tiny"}, json_path=path)
        return code, json.loads(path.read_text())

    return run_names


def _is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def test_what_fails_or_hangs_does_not_stop_the_rest(run, capsys: pytest.CaptureFixture[str]):
    names = ("quick", "hangs", "raises", "dies", "nothing_here", "one_of_two", "reads_json")
    code, found = run(*names, limits={"hangs": 2.0})
    stages = found["stages"]
    assert code == 1
    assert found["scale"] == "tiny"
    assert {name: stage["status"] for name, stage in stages.items()} == {
        "quick": "done",
        "hangs": "out of time",
        "raises": "failed",
        "dies": "failed",
        "nothing_here": "absent",
        "one_of_two": "failed",
        "reads_json": "done",
    }
    # What was found before the end is kept.
    assert stages["quick"]["results"] == {"value": 1.5, "headline": "1.5 of it"}
    assert stages["raises"]["results"] == {"before": 1}
    assert stages["dies"]["results"] == {"before": 2}
    assert stages["one_of_two"]["results"] == {
        "bad": {"error": "bad: ZeroDivisionError: division by zero"},
        "good": 7,
    }
    # Why is said.
    assert "what was printed" in stages["raises"]["reason"]
    assert stages["raises"]["reason"].endswith("ValueError: broken kernel")
    assert stages["hangs"]["reason"] == "cut after 2 s"
    assert "exit code -11" in stages["dies"]["reason"] or "Segmentation" in stages["dies"]["reason"]
    assert stages["one_of_two"]["reason"].endswith("bad: ZeroDivisionError: division by zero")
    # What a stage started ends with it, and the file was whole when the next one began.
    assert not _is_running(stages["hangs"]["results"]["child"])
    assert stages["reads_json"]["results"]["stages_so_far"] == list(names[:-1])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["quick", "done", *printed[0].split()[2:4], "1.5", "of", "it"]
    assert printed[-1] == "not measured: hangs, raises, dies, one_of_two"


def test_the_time_for_all_is_kept(run):
    code, found = run("quick", "hangs", "reads_json", seconds=6)
    stages = found["stages"]
    assert code == 1
    assert [stage["status"] for stage in stages.values()] == ["done", "out of time", "skipped"]
    assert stages["reads_json"]["reason"] == "no time left"
    assert sum(stage["seconds"] for stage in stages.values()) < 8


def test_where_cuda_refuses_a_fork_processes_are_started_anew(monkeypatch: pytest.MonkeyPatch):
    methods = []

    def fake_run(stage: Stage, scale: str, limit: float, context: Any) -> Outcome:
        methods.append(context.get_start_method())
        if methods[-1] == "forkserver":
            return Outcome("failed", reason="RuntimeError: Cannot re-initialize CUDA in forked subprocess.")
        return Outcome("done")

    monkeypatch.setattr(driver, "_run", fake_run)
    stages = [Stage("a", "fake:a", 10), Stage("b", "fake:b", 10)]
    assert run_stages(stages, "tiny", seconds=60, facts={}) == 0
    assert methods == ["forkserver", "spawn", "spawn"]


def test_every_stage_is_there_and_the_most_valuable_fit():
    for stage in command.STAGES:
        module, _, name = stage.function.partition(":")
        assert callable(getattr(importlib.import_module(module), name))
    assert len({stage.name for stage in command.STAGES}) == len(command.STAGES)
    assert sum(stage.seconds for stage in command.STAGES[:8]) <= 540


def test_an_unknown_stage_is_named():
    with pytest.raises(ConfigError, match="--stage lader: no such stage; there are attention, "):
        command.main(["--stage", "lader"])


@pytest.mark.parametrize("kind", [FULL_128, FULL_512, WIKIPEDIA_512])
def test_micro_batches_can_have_one_static_shape(kind: str):
    batches = micro_batches(SCALES["tiny"], kind, is_static=True)
    first = batches[0]
    assert first.input_ids.size % 128 == 0
    assert first.labels.size % 64 == 0
    for batch in batches:
        for name in ("input_ids", "token_type_ids", "position_ids", "cu_seqlens", "masked_positions", "labels"):
            assert getattr(batch, name).shape == getattr(first, name).shape
        assert batch.cu_seqlens.dtype == np.int32
        assert len(batch.cu_seqlens) == batch.num_pairs + 2  # the padding is a piece, be it empty
        assert batch.cu_seqlens[-1] == batch.input_ids.size
        assert batch.counts.masked_tokens == (batch.labels >= 0).sum()
        assert batch.counts.tokens == batch.num_tokens == batch.input_ids.size - batch.padding_tokens


def test_micro_batches_have_few_sizes_as_in_training():
    batches = micro_batches(SCALES["tiny"], WIKIPEDIA_512, number=8)
    real = [batch.num_tokens for batch in batches]
    assert [batch.input_ids.size for batch in batches] == [-(-tokens // 128) * 128 for tokens in real]
    assert len({batch.input_ids.size for batch in batches}) > 1
    assert all(batch.labels.size == -(-batch.counts.masked_tokens // 64) * 64 for batch in batches)


def test_full_scale_wastes_little():
    batches = micro_batches(SCALES["full"], WIKIPEDIA_512)
    assert sum(batch.padding_tokens for batch in batches) < 0.01 * sum(batch.num_tokens for batch in batches)
    assert all(32_256 < batch.num_tokens < 33_280 for batch in batches)


def test_parts_of_one_global_batch_know_its_counts():
    batches = micro_batches(SCALES["tiny"], FULL_128, number=3)
    parts = one_global_batch(batches)
    assert {part.global_pairs for part in parts} == {6}
    assert {part.global_tokens for part in parts} == {768}
    # a part's own are those of its arrays: 2 pairs of 128 with 19 predictions each
    assert own_counts(parts[0]) == WorkCounts(256, 2 * 128**2, 38, 2)


def test_rates_by_hand():
    """2 pairs of 128 a step, 0.5 s: 4 pairs/s; 2 layers of 128, 38 predictions of 1,024 words."""
    scale = SCALES["tiny"]
    batches = micro_batches(scale, FULL_128)
    timing = Timing([0.4, 0.5, 0.9], 7.5, 7.25, 0, 1.0)
    found = figures(timing, scale, scale.large, batches)
    assert (found["pairs_per_second"], found["real_tokens_per_second"]) == (4.0, 512)
    encoder = 2 * 12 * 128**2
    flops = 6 * encoder * 256 + 12 * 2 * 128 * 2 * 128**2 + 6 * (128**2 + 128 * 1024) * 38
    assert found["tflops"] == pytest.approx(flops / 0.5 / 1e12, abs=1e-4)
    assert (found["step_ms"], found["step_ms_worst"], found["first_loss"]) == (500.0, 900.0, 7.5)
    # two micro-batches a step in the same time: twice as much of all
    assert figures(timing, scale, scale.large, batches, accumulation=2)["pairs_per_second"] == 8.0


def test_memory_by_hand():
    """BERT-large's 335M parameters at T = 32,768: 6.2 GiB of states, 25.5 of activations, 1.7 of logits."""
    scale = SCALES["full"]
    (batch,) = micro_batches(scale, FULL_128, number=1)
    states = 20 * 335_000_000 / 2**30
    activations = 34 * 24 * 1024 * 32_768 / 2**30
    logits = 12 * 4864 * 30_528 / 2**30
    assert batch.labels.size == 4864  # 256 x 19
    assert predicted_gib(scale, scale.large, 335_000_000, batch) == pytest.approx(states + activations + logits)


def test_steps_are_timed_one_by_one():
    calls = []

    def step(number: int) -> torch.Tensor:
        calls.append(number)
        return torch.tensor(float(number))

    timing = time_steps(step, torch.device("cpu"), warm=2, timed=3)
    assert calls == [0, 1, 2, 3, 4]
    assert (len(timing.seconds), timing.first_loss, timing.last_loss) == (3, 0.0, 4.0)


@pytest.mark.slow
def test_a_rehearsal_of_all_stages(tmp_path: Path):
    path = tmp_path / "figures.json"
    assert command.main(["--scale", "tiny", "--seconds", "240", "--json", str(path)]) == 0
    stages = json.loads(path.read_text())["stages"]
    assert list(stages) == [stage.name for stage in command.STAGES]
    assert stages["large Wikipedia-512"]["results"][WIKIPEDIA_512]["pairs_per_second"] > 0
    assert stages["against Wikipedia-512"]["results"]["ratio"] > 0
    assert stages["engine"]["results"]["ZeRO 1 / bare loop"] > 0
    assert len(stages["ladder"]["results"]) == 8  # seven rungs and the headline
    losses = stages["falling loss"]["results"]["losses"]
    assert losses[-1] < losses[0]


def test_no_ratio_of_what_is_not_the_same(monkeypatch, tmp_path: Path):
    """A gradient that is off, or an engine whose losses are, leaves nothing to compare times of."""

    def off(*_: object) -> None:
        raise AssertionError("gradients differ")

    monkeypatch.setattr(peer, "compare_gradients", off)
    monkeypatch.setattr(peer, "time_rows", lambda *_: pytest.fail("was timed"))
    results = Results(tmp_path / "found.json", SCALES["tiny"], torch.device("cpu"))
    peer.against_128(results)
    assert results.faults == ["gradient errors: AssertionError: gradients differ"]
    assert "ratio" not in results.found
    with pytest.raises(AssertionError, match="losses differ by"):
        compare_losses({"first_loss": 7.0, "last_loss": 6.0}, {"first_loss": 7.0, "last_loss": 6.2})
    assert compare_losses({"first_loss": 7.0, "last_loss": 6.0}, {"first_loss": 7.07, "last_loss": 6.0}) < 0.011
