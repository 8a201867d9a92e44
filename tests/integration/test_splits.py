"""Invariant 3 through the real launcher: how a global batch is split into micro-steps and ranks changes no loss."""

from __future__ import annotations

import pytest

from tests.integration.launching import losses

pytestmark = [pytest.mark.slow, pytest.mark.distributed, pytest.mark.timeout(400)]

SPLITS = {
    "1 rank x 1": (1, 16, 1),
    "1 rank x 2": (1, 8, 1),
    "1 rank x 8": (1, 2, 0),
    "2 ranks x 8": (2, 1, 2),
    "4 ranks x 2": (4, 2, 3),
}
"""Ranks, train_micro_batch_size_per_gpu and ZeRO stage; 16 pairs a step in each."""


def test_losses_do_not_depend_on_accumulation_and_ranks(launcher, ds_config_path, tmp_path):
    """Equal to 1e-5 for ten steps, fp32, no dropout; other numbers of ranks alone are in test_resume.py."""
    plain = ["model.hidden_dropout_prob=0.0", "model.attention_probs_dropout_prob=0.0", "evaluation.interval_steps=0"]
    settings = [part for setting in plain for part in ("--set", setting)]
    runs = {}
    for number, (name, (num_processes, micro, stage)) in enumerate(SPLITS.items()):
        ds_config = ds_config_path(stage, "fp32", train_micro_batch_size_per_gpu=micro)
        ended = launcher.run(num_processes, ds_config, tmp_path / str(number), *settings)
        assert ended.code == 0, ended.output
        assert f"{micro} a micro-batch x {16 // (micro * num_processes)} micro-steps x {num_processes} ranks" in (
            ended.output
        )
        runs[name] = losses(tmp_path / str(number))
    reference = runs.pop("1 rank x 1")
    assert len(reference) == 10
    assert reference[-1][1] < reference[0][1] - 0.1
    for name, run in runs.items():
        for expected, actual in zip(reference, run, strict=True):
            assert actual == pytest.approx(expected, abs=1e-5), name
