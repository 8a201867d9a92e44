"""Invariant 4: N steps equal k steps, kill -9, resume, N - k steps; bit for bit in fp32 with dropout on."""

from __future__ import annotations

import pytest

from tests.integration.launching import kill_group, losses, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.distributed, pytest.mark.timeout(300)]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_killed_run_resumes_bit_for_bit(stage, launcher, ds_config_path, tmp_path):
    ds_config = ds_config_path(stage, "fp32")
    # Large enough that five steps outlast the poll below: the run is killed between its two checkpoints.
    large = ("model.hidden_size=256", "model.num_hidden_layers=4", "model.intermediate_size=1024")
    settings = [part for setting in large for part in ("--set", setting)]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert launcher.run(2, ds_config, whole, *settings).code == 0

    with launcher.started(2, ds_config, broken, *settings) as (process, _):
        wait_for((broken / "checkpoints" / "latest").exists)
        kill_group(process)
    assert (broken / "checkpoints" / "latest").read_text() == "step_00000005"

    ended = launcher.run(2, ds_config, broken, *settings, "--resume", "auto")
    assert ended.code == 0, ended.output
    assert "step 5 of 10" in ended.output
    assert [step for step, _, _ in losses(broken)] == list(range(1, 11))
    assert losses(broken) == losses(whole)  # not approximately


def test_losses_do_not_depend_on_the_number_of_processes(launcher, ds_config_path, tmp_path):
    """The same train_batch_size on 1, 2 and 4 processes, ZeRO 0 to 3: equal to 1e-5 for 20 steps without dropout."""
    plain = ("--set", "training.steps=20", "--set", "evaluation.interval_steps=0")
    plain += ("--set", "model.hidden_dropout_prob=0.0", "--set", "model.attention_probs_dropout_prob=0.0")
    runs = {}
    for name, num_processes, stage in (("a", 1, 0), ("b", 2, 0), ("c", 4, 0), ("d", 2, 1), ("e", 2, 2), ("f", 4, 3)):
        ended = launcher.run(num_processes, ds_config_path(stage, "fp32"), tmp_path / name, *plain)
        assert ended.code == 0, ended.output
        runs[name] = losses(tmp_path / name)
    reference = runs.pop("a")
    assert len(reference) == 20
    assert reference[-1][1] < reference[0][1] - 0.1  # it learns: ZeRO 3 with a fresh BERT as well
    for name, run in runs.items():
        for expected, actual in zip(reference, run, strict=True):
            assert actual == pytest.approx(expected, abs=1e-5), name


def test_stage_zero_resumes_on_another_number_of_processes(launcher, ds_config_path, tmp_path):
    """The same pairs, and losses within float error, from DeepSpeed's own files; ZeRO is in test_resize.py."""
    plain = ("--set", "model.hidden_dropout_prob=0.0", "--set", "model.attention_probs_dropout_prob=0.0")
    whole = ds_config_path(0, "fp32")
    assert launcher.run(1, whole, tmp_path / "one", *plain).code == 0
    with launcher.started(2, whole, tmp_path / "two", *plain) as (process, _):
        wait_for((tmp_path / "two" / "checkpoints" / "latest").exists)
        kill_group(process)
    ended = launcher.run(1, whole, tmp_path / "two", *plain)
    assert ended.code == 0, ended.output
    assert "resumed with: world size 2 → 1" in ended.output
    assert "converting" not in ended.output
    for expected, actual in zip(losses(tmp_path / "one"), losses(tmp_path / "two"), strict=True):
        assert actual == pytest.approx(expected, abs=1e-5)
