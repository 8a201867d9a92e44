"""`zerobert plan` through its own main, in this process: no process group, no model."""

from __future__ import annotations

import json

import pytest
import torch.distributed as dist

from pretrain.data.plan import build_epoch_plan
from pretrain.data.store import SentenceIndex
from pretrain.plan import command
from pretrain.plan.data import pairing_of
from pretrain.recipe import load_recipe
from runtime.command import ConfigError
from tokenization.manifest import load_manifest


def plan(recipe, ds_config, capsys, *arguments):
    code = command.main(["--recipe", str(recipe), "--deepspeed_config", str(ds_config), "--json", "-", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_a_good_setting(recipe_path, ds_config_path, tmp_path, capsys):
    was_initialized = dist.is_initialized()
    code, values = plan(recipe_path, ds_config_path(2), capsys, "--world-size", "2", "--run-dir", str(tmp_path / "run"))
    assert code == 0
    assert values["faults"] == []
    batch = values["batch"]
    assert batch["train_batch_size"] == (
        batch["train_micro_batch_size_per_gpu"] * batch["gradient_accumulation_steps"] * 2
    )
    recipe = load_recipe(recipe_path)
    real = build_epoch_plan(SentenceIndex.open(load_manifest(recipe.shards), "train"), pairing_of(recipe), 0)
    epoch = values["run"]["epoch"]
    assert epoch["is_exact"]
    assert epoch["pairs"] == pytest.approx(real.num_pairs)
    assert epoch["tokens"] == pytest.approx(int(real.pair_tokens().sum()))
    assert values["run"]["epochs"] == pytest.approx(10 * batch["train_batch_size"] / real.num_pairs)
    assert [stage["stage"] for stage in values["memory"]["stages"]] == [0, 1, 2, 3]
    assert dist.is_initialized() == was_initialized
    assert not (tmp_path / "run").exists()


def test_tables(recipe_path, ds_config_path, capsys, tmp_path):
    arguments = ["--recipe", str(recipe_path), "--deepspeed_config", str(ds_config_path(1)), "--device-gib", "1"]
    arguments += ["--suggest", "--tokens-per-second", "1000", "--run-dir", str(tmp_path), "--device", "cpu"]
    assert command.main(arguments) == 0
    text = capsys.readouterr().out
    for expected in ("embeddings", "ZeRO 1 *", "epochs of", "device-hours", "Fits into 1.00 GiB", "Suggested:", "lr"):
        assert expected in text


def test_every_fault_is_shown(recipe_path, ds_config_path, capsys):
    path = ds_config_path(1, train_batch_size=10, fp16={"enabled": True})
    code, values = plan(recipe_path, path, capsys, "--device", "cpu", "--set", "model.vocab_size=500")
    assert code == 2
    text = "\n".join(values["faults"])
    for expected in ("train_batch_size = 10", "fp16", "model.vocab_size = 500"):
        assert expected in text
    assert len(set(values["faults"])) == len(values["faults"])


def test_what_is_not_there_yet_is_a_note(recipe_path, ds_config_path, capsys, tmp_path):
    nothing = [f"--set={key}={tmp_path / 'nothing'}" for key in ("tokenizer", "shards")]
    code, values = plan(recipe_path, ds_config_path(1), capsys, *nothing)
    assert code == 0
    assert len(values["notes"]) == 2
    assert values["parameters"]["vocab_size"] == 30_528
    assert values["run"]["epochs"] is None


def test_suggestion_fits_and_keeps_the_batch(recipe_path, ds_config_path, capsys):
    path = ds_config_path(0, train_batch_size=64, train_micro_batch_size_per_gpu=1)
    _, roomy = plan(recipe_path, path, capsys, "--device-gib", "1", "--suggest", "--device", "cpu")
    found = roomy["memory"]["suggestion"]
    assert (found["stage"], found["micro_batch"], found["accumulation"]) == (0, 64, 1)
    _, tight = plan(recipe_path, path, capsys, "--device-gib", "0.006", "--suggest", "--device", "cpu")
    found = tight["memory"]["suggestion"]
    assert found["micro_batch"] * found["accumulation"] == 64
    assert found["micro_batch"] < 64
    assert found["peak"] <= 0.006 * 2**30
    _, none = plan(recipe_path, path, capsys, "--device-gib", "0.0001", "--suggest", "--device", "cpu")
    assert none["memory"]["suggestion"] is None
    assert none["memory"]["fits"] is False


def test_speed_of_a_run_and_of_a_benchmark(recipe_path, ds_config_path, capsys, tmp_path):
    lines = [{"step": step, "speed/tokens_per_second": speed} for step, speed in ((1, 100), (2, 300), (3, 200))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"cut')
    (tmp_path / "run.json").write_text('{"world_size": 1}')
    _, values = plan(recipe_path, ds_config_path(1), capsys, "--run-dir", str(tmp_path))
    assert values["time"]["tokens_per_second"] == 200
    assert values["time"]["seconds"] == pytest.approx(values["run"]["tokens"] / 200)
    bench = tmp_path / "bench.json"
    bench.write_text('{"tokens_per_second": 50.0, "world_size": 2}')
    _, values = plan(recipe_path, ds_config_path(1), capsys, "--tokens-per-second", str(bench))
    assert values["time"]["measured_on"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--world-size", "0"], "--world-size 0"),
        (["--device-gib", "nan"], "--device-gib nan"),
        (["--tokens-per-second", "-1"], "must be a number above 0"),
        (["--tokens-per-second", "/nowhere"], "neither a number"),
        (["--set", "data.seqlen=65"], "did you mean 'data.seq_len'"),
    ],
)
def test_bad_arguments(arguments, message, recipe_path, ds_config_path):
    with pytest.raises(ConfigError, match=message):
        command.main(["--recipe", str(recipe_path), "--deepspeed_config", str(ds_config_path(1)), *arguments])


def test_a_hostfile_gives_the_ranks(recipe_path, ds_config_path, capsys, tmp_path):
    path = tmp_path / "hostfile"
    path.write_text("a slots=2\nb slots=2\n")
    _, values = plan(recipe_path, ds_config_path(1), capsys, "--hostfile", str(path))
    assert values["world_size"] == 4


def test_no_stage_is_suggested_that_training_would_refuse(recipe_path, ds_config_path, capsys):
    path = ds_config_path(2, "bf16", data_types={"grad_accum_dtype": "fp32"})
    _, values = plan(recipe_path, path, capsys, "--device-gib", "1", "--suggest", "--device", "cpu")
    assert values["memory"]["suggestion"]["stage"] == 1
