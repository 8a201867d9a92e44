"""A checkpoint that cannot be written, one that is broken, and one that would run code."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from pretrain import checkpoint_command
from pretrain.engine.build import build_engine
from pretrain.engine.checkpoint import (
    DamagedError,
    Retention,
    SaveError,
    TrainingState,
    begin_save,
    find_checkpoint,
    load_checkpoint,
    load_fp32_weights,
    settle_on_newest,
    verify_together,
)
from pretrain.engine.checkpoint.pickles import load_pickle
from pretrain.engine.ds_config import resolve_ds_config
from runtime.command import ConfigError

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.fixture(params=[0, 1, 2, 3])
def stage(request) -> int:
    return request.param


def config_of(stage: int) -> dict:
    config = {
        "train_batch_size": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": stage},
    }
    return resolve_ds_config(config, path="j.json", world_size=1, total_steps=9, warmup_steps=None, on_cuda=False)


def arguments_of(config: dict, **more: object) -> dict:
    retention = Retention(9)
    named = {"world_size": 1, "recipe": {}, "ds_config": config, "fingerprints": {}, "retention": retention}
    return named | more


@pytest.fixture
def saved(one_rank, tiny_bert, stage, tmp_path):
    config = config_of(stage)
    engine = build_engine(tiny_bert(), config)
    for step in (1, 2, 3):
        begin_save(engine, tmp_path, TrainingState(step=step), **arguments_of(config)).finish()
    return engine, config, tmp_path


def test_every_file_is_listed_with_its_sha256(saved):
    _, _, run = saved
    path = run / "checkpoints" / "step_00000003"
    listed = json.loads((path / "checkpoint.json").read_text())["files"]
    assert set(listed) == {file.name for file in path.iterdir()} - {"checkpoint.json"}
    assert all(len(entry["sha256"]) == 64 for entry in listed.values())


def test_a_checkpoint_from_a_stranger_runs_no_code(saved, tiny_bert):
    """Whichever of its files holds it, and whoever reads it; the lists have been made to fit."""
    _, config, run = saved
    marker = run / "marker"
    path = run / "checkpoints" / "step_00000003"
    for file in path.glob("*.pt"):
        whole = file.read_bytes()
        content = torch.load(file, weights_only=False)
        torch.save({**content, "x": Bomb(marker)}, file)
        for read in (
            lambda: load_checkpoint(build_engine(tiny_bert(), config), find_listed(path)),
            lambda: load_fp32_weights(find_listed(path), tiny_bert()),
            lambda file=file: load_pickle(file),
        ):
            with pytest.raises(ConfigError, match=rf"{file.name}: refused, it would run posix.system"):
                read()
        file.write_bytes(whole)
    assert not marker.exists()


def find_listed(path: Path):
    """Return the checkpoint with sizes that fit what is there, as a stranger would make them."""
    listing = path / "checkpoint.json"
    content = json.loads(listing.read_text())
    for name in content["files"]:
        content["files"][name]["bytes"] = (path / name).stat().st_size
    listing.write_text(json.dumps(content))
    return find_checkpoint(path)


@pytest.mark.parametrize("stage", [1], indirect=True)
def test_the_newest_whole_one_is_found_and_the_broken_kept(saved, caplog):
    _, _, run = saved
    root = run / "checkpoints"
    flip(root / "step_00000003" / "mp_rank_00_model_states.pt")
    (root / "step_00000002" / "mp_rank_00_model_states.pt").unlink()
    with pytest.raises(DamagedError, match=r"its sha256 is not that of checkpoint\.json"):
        verify_together(find_checkpoint(run, step=3))
    assert settle_on_newest(run).state.step == 1
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == [
        *("broken_step_00000002", "broken_step_00000003", "step_00000001")
    ]
    assert (root / "latest").read_text() == "step_00000001"
    assert "step_00000003 is not whole and is kept as broken_step_00000003" in caplog.text
    flip(root / "step_00000001" / "mp_rank_00_model_states.pt")
    with pytest.raises(ConfigError, match="no checkpoint of this run is whole"):
        settle_on_newest(run)
    assert (root / "step_00000001").is_dir()


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("stage", [2], indirect=True)
@pytest.mark.parametrize("in_background", [False, True])
def test_a_full_disk_leaves_the_one_before(saved, monkeypatch, in_background):
    engine, config, run = saved

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pretrain.engine.checkpoint.pickles.os.fsync", full)
    with pytest.raises(SaveError, match=r"step 4: .*model_states.pt: No space left on device"):
        begin_save(engine, run, TrainingState(step=4), **arguments_of(config, in_background=in_background)).finish()
    assert find_checkpoint(run).state.step == 3
    assert not (run / "checkpoints" / "step_00000004").exists()


@pytest.mark.parametrize("stage", [2], indirect=True)
def test_in_the_background_the_same_bytes_are_written(saved):
    engine, config, run = saved
    pending = begin_save(engine, run, TrainingState(step=3), **arguments_of(config, in_background=True))
    path = pending.finish()
    later = json.loads((path / "checkpoint.json").read_text())["files"]
    again = begin_save(engine, run, TrainingState(step=3), **arguments_of(config)).finish()
    now = json.loads((again / "checkpoint.json").read_text())["files"]
    # The archive inside names itself after the file, so sizes may differ by that; tensors may not.
    assert later.keys() == now.keys()
    weights = load_fp32_weights(find_checkpoint(run), engine.module)
    assert all(tensor.isfinite().all() for tensor in weights.values())


def test_milestones_stay():
    tags = [f"step_{step:08d}" for step in (10, 20, 30, 40, 50)]
    assert Retention(2).removed(tags) == tags[:3]
    assert Retention(2, 20).removed(tags) == [tags[0], tags[2]]
    assert Retention(9).removed(tags) == []


@pytest.mark.parametrize("stage", [1], indirect=True)
def test_the_command(saved, capsys):
    _, _, run = saved
    assert checkpoint_command.main(["ls", str(run), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["step"], row["is_latest"], row["zero_stage"]) for row in rows] == [
        *((1, False, 1), (2, False, 1), (3, True, 1))
    ]
    assert checkpoint_command.main(["verify", str(run)]) == 0
    assert checkpoint_command.main(["convert", str(run), "--step", "2", "--to", str(run / "universal")]) == 0
    assert (run / "universal" / "zero" / "cls.predictions.bias" / "fp32.pt").is_file()
    capsys.readouterr()
    assert checkpoint_command.main(["prune", str(run), "--keep-last", "1", "--milestones", "2", "--dry-run"]) == 0
    assert "would remove step_00000001\n1 of 3 checkpoints" in capsys.readouterr().out
    assert checkpoint_command.main(["prune", str(run), "--keep-last", "1", "--milestones", "2"]) == 0
    flip(run / "checkpoints" / "step_00000003" / "mp_rank_00_model_states.pt")
    assert checkpoint_command.main(["verify", str(run)]) == 1
    assert "step_00000002: whole\nstep_00000003: broken\n" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="no run dir"):
        checkpoint_command.main(["ls", str(run / "nothing")])
    shutil.rmtree(run / "checkpoints" / "step_00000002")


@pytest.mark.parametrize("stage", [1], indirect=True)
def test_a_save_that_was_cut_short_is_cleared_away_and_a_lost_list_is_not(saved, monkeypatch):
    engine, config, run = saved
    root = run / "checkpoints"
    with monkeypatch.context() as patch:
        patch.setattr("pretrain.engine.checkpoint.saving.write_json", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            begin_save(engine, run, TrainingState(step=4), **arguments_of(config)).finish()
    (root / ".latest.7.tmp").touch()
    (root / "step_00000001" / "checkpoint.json").unlink()
    assert (root / "step_00000004" / "unfinished").is_file()
    assert settle_on_newest(run).state.step == 3
    assert not (root / "step_00000004").exists()
    assert not (root / ".latest.7.tmp").exists()
    assert (root / "step_00000001").is_dir()
    assert not list(root.glob("*/unfinished"))
