"""Cases Z2 and Z4: one command goes on with another number of processes, ZeRO stage and precision."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

from pretrain.engine.checkpoint import find_checkpoint
from pretrain.engine.checkpoint.states import read_states
from runtime.files import read_json
from tests.integration.launching import DEEPSPEED, ROOT, free_port, kill_group, losses, metrics
from tests.integration.resize_ranks import CHAIN as CHAIN_OF_RANKS
from tests.integration.resize_ranks import KINDS, folder_of

pytestmark = [pytest.mark.slow, pytest.mark.distributed, pytest.mark.timeout(600)]

SETTINGS = {
    "training.steps": "20",
    "checkpoint.keep_last": "9",
    "evaluation.interval_steps": "0",
    "model.hidden_dropout_prob": "0.0",  # its generator depends on the rank
    "model.attention_probs_dropout_prob": "0.0",
}
PLAIN = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]

CHAIN = [
    # name, processes, stage, precision, goes on from, at step, told
    ("one", 1, 2, "fp32", "whole", 5, "world size 2 → 1"),
    ("four", 4, 2, "fp32", "one", 10, "world size 1 → 4"),
    ("two", 2, 2, "fp32", "four", 15, "world size 4 → 2"),
    ("stage3", 4, 3, "fp32", "whole", 5, "world size 2 → 4, stage 2 → 3"),
    ("stage0", 1, 0, "fp32", "stage3", 10, "world size 4 → 1, stage 3 → 0"),
    ("stage1", 2, 1, "fp32", "stage0", 15, "world size 1 → 2, stage 0 → 1"),
]


def test_losses_are_those_of_a_run_that_was_not_changed(launcher, ds_config_path, tmp_path):
    """2, 1, 4, 2 processes at steps 0, 5, 10, 15 of 20, and 2, 3, 0, 1 of ZeRO; then bf16 and back."""
    ended = launcher.run(2, ds_config_path(2, "fp32"), tmp_path / "whole", *PLAIN)
    assert ended.code == 0, ended.output
    expected = losses(tmp_path / "whole")
    assert [step for step, _, _ in expected] == list(range(1, 21))
    assert expected[-1][1] < expected[0][1] - 0.1
    rates = {entry["step"]: entry["lr"] for entry in metrics(tmp_path / "whole") if "lr" in entry}
    largest = 0.0
    for name, num_processes, stage, precision, before, step, told in CHAIN:
        source = tmp_path / before / "checkpoints"
        if not (source / f"step_{step:08d}").is_dir():
            pytest.fail(f"{source} has no step {step}")
        ended = launcher.run(
            num_processes,
            ds_config_path(stage, precision),
            tmp_path / name,
            *PLAIN,
            *("--resume", str(source / f"step_{step:08d}")),
        )
        assert ended.code == 0, ended.output
        assert f"resumed with: {told}\n" in ended.output
        assert re.search(r"needs about \d\.\d\d GiB on .*, free \d+\.\d\d GiB, about \d+ s", ended.output)
        assert list(source.glob("universal*")) == []
        now = losses(tmp_path / name)
        assert [entry[0] for entry in now] == list(range(step + 1, 21))
        for entry, wanted in zip(now, expected[step:], strict=True):
            assert entry == pytest.approx(wanted, abs=1e-5), name
            largest = max(largest, *(abs(a - b) for a, b in zip(entry, wanted, strict=True)))
        assert {e["step"]: e["lr"] for e in metrics(tmp_path / name) if "lr" in e}.items() <= rates.items()
        states = [
            read_json(tmp_path / run / "checkpoints" / "step_00000020" / "checkpoint.json")["state"]
            for run in (name, "whole")
        ]
        assert states[0] == states[1]  # pairs and tokens seen
    print(f"largest difference of a loss: {largest:.1e}")  # noqa: T201


def test_to_bf16_and_back(launcher, ds_config_path, tmp_path):
    """From fp32 to BF16_Optimizer's file format on another number of processes, and back: masters are not rounded."""
    ended = launcher.run(2, ds_config_path(2, "fp32"), tmp_path / "whole", *PLAIN)
    assert ended.code == 0, ended.output
    at = tmp_path / "whole" / "checkpoints" / "step_00000015"
    ended = launcher.run(1, ds_config_path(1, "bf16"), tmp_path / "bf16", *PLAIN, "--resume", str(at))
    assert ended.code == 0, ended.output
    assert "precision fp32 → bf16" in ended.output
    for now, wanted in zip(losses(tmp_path / "bf16"), losses(tmp_path / "whole")[15:], strict=True):
        assert now == pytest.approx(wanted, abs=0.05)
    at = tmp_path / "bf16" / "checkpoints" / "step_00000020"
    more = [*PLAIN, "--set", "training.steps=22", "--resume", str(at)]
    ended = launcher.run(2, ds_config_path(3, "fp32"), tmp_path / "back", *more)
    assert ended.code == 0, ended.output
    assert "precision bf16 → fp32" in ended.output
    assert len(losses(tmp_path / "back")) == 2


def test_a_conversion_that_fails_ends_every_rank(launcher, ds_config_path, tmp_path):
    """Rank zero cannot write; the other one does not wait for it."""
    few = [*PLAIN, "--set", "training.steps=6"]
    assert launcher.run(2, ds_config_path(2, "fp32"), tmp_path / "run", *few).code == 0
    (tmp_path / "run" / "checkpoints" / "universal_step_00000005.part").write_text("in the way")
    at = tmp_path / "run" / "checkpoints" / "step_00000005"
    ended = launcher.run(2, ds_config_path(3, "fp32"), tmp_path / "other", *few, "--resume", str(at), seconds=90)
    assert ended.code != 0
    assert "universal_step_00000005.part: File exists" in ended.output


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> Path:
    """Saves of two ranks, and of three after them; see resize_ranks.py."""
    root = tmp_path_factory.mktemp("chain")
    for num_processes, part in ((2, "start"), (3, "chain")):
        script = [str(ROOT / "tests" / "integration" / "resize_ranks.py"), str(root), part]
        command = [str(DEEPSPEED), "--num_gpus", str(num_processes), "--master_port", str(free_port()), *script]
        log = root / f"{part}.log"
        with log.open("w") as stream:
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            process = subprocess.Popen(
                command, stdout=stream, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True
            )
            try:
                assert process.wait(timeout=300) == 0, log.read_text(encoding="utf-8")[-5000:]
            finally:
                kill_group(process)
    return root


@pytest.mark.parametrize("kind", KINDS)
def test_three_ranks_hold_the_bits_that_two_saved(chain, kind):
    """Odd sizes, so that every stage pads; through every stage and precision one after the other."""
    start = find_checkpoint(folder_of(chain, kind, 0))
    assert start.world_size == 2
    states = read_states(start).parameters
    for number, (stage, precision) in enumerate(CHAIN_OF_RANKS, 1):
        now = find_checkpoint(folder_of(chain, kind, number))
        assert now.world_size == 3
        found = read_states(now).parameters
        assert found.keys() == states.keys()
        for name, of in states.items():
            assert set(of.parts) == {"fp32", "exp_avg", "exp_avg_sq"}
            assert float(found[name].others["step"]) == float(of.others["step"]) == 3
            for key in of.parts:
                assert torch.equal(found[name].tensor(key), of.tensor(key)), (stage, precision, name, key)
        # DeepSpeed's own reader, which knows neither stage 0 nor BF16_Optimizer's files.
        if stage and (stage, precision) != (1, "bf16"):
            masters = get_fp32_state_dict_from_zero_checkpoint(str(now.path.parent), tag=now.tag)
            for name, of in states.items():
                assert torch.equal(masters[name], of.tensor("fp32")), (stage, precision, name)
