"""`zerobert bench`: its arguments, what it writes, and the launcher."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pretrain.bench import command
from runtime.command import ConfigError
from tests.integration.launching import DEEPSPEED, ROOT, free_port, kill_group

RECIPE = ROOT / "recipes" / "demo.toml"
CONFIG = ROOT / "ds_configs" / "cpu_zero2_bf16.json"


def test_without_a_name_it_lists_what_there_is(capsys):
    assert command.main([]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^ +step +training steps of a recipe", out, re.MULTILINE)


def test_an_unknown_name_lists_what_there_is(capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["stepp"])
    assert "invalid choice: 'stepp'" in (err := capsys.readouterr().err)
    assert "step" in err.split("choose from")[1]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_time_that_is_none_is_refused(seconds: str):
    words = ["step", "--recipe", str(RECIPE), "--deepspeed_config", str(CONFIG), f"--seconds={seconds}"]
    with pytest.raises(ConfigError, match=r"--seconds .*: must be a number above 0"):
        command.main(words)


def test_a_json_file_that_cannot_be_written_is_refused_at_once(tmp_path):
    for path in (tmp_path, tmp_path / "none" / "out.json"):
        words = ["step", "--recipe", "x", "--deepspeed_config", "y", "--json", str(path)]
        with pytest.raises(ConfigError, match=r"--json .*: must be a file in a folder that is there"):
            command.main(words)


@pytest.mark.distributed
@pytest.mark.timeout(120)
def test_the_command(one_rank, recipe_path, ds_config_path, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "process_group", lambda _: contextlib.nullcontext(one_rank))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    out = tmp_path / "out.json"
    words = ["--local_rank=0", "step", "--recipe", str(recipe_path), "--deepspeed_config", str(ds_config_path(1))]
    assert command.main([*words, "--seconds", "0.2", "--json", str(out)]) == 0
    values = json.loads(out.read_text())
    assert values["recipe"] == "tiny"
    table = capsys.readouterr().out
    assert f"{values['steps']} steps in {values['seconds']:.1f} s" in table
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(200)
def test_two_processes_under_the_launcher(recipe_path, ds_config_path, tmp_path: Path):
    out, printed = tmp_path / "out.json", tmp_path / "printed"
    words = [
        *(str(DEEPSPEED), "--num_gpus", "2", "--master_port", str(free_port()), "--module", "pretrain.bench"),
        *("step", "--recipe", str(recipe_path), "--deepspeed_config", str(ds_config_path(2, "bf16"))),
        *("--seconds", "2", "--json", str(out)),
    ]
    with printed.open("w") as stream:
        process = subprocess.Popen(words, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(timeout=180)
        finally:
            kill_group(process)
    assert code == 0, printed.read_text()
    values = json.loads(out.read_text())
    assert (values["world_size"], values["train_batch_size"]) == (2, 16)
    assert values["pairs"] == 16 * values["steps"]
    assert sum(values["shares"].values()) == pytest.approx(1)
    assert printed.read_text().count("\nmeasured ") == 1  # by rank 0 alone


@pytest.mark.slow
def test_bad_input_under_the_console_script():
    words = ["bench", "step", "--recipe", "nothing.toml", "--deepspeed_config", str(CONFIG)]
    done = subprocess.run(
        [sys.executable, "-m", "zerobert", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.endswith("zerobert bench: error: nothing.toml: no such file\n")
