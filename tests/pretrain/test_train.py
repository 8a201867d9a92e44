"""What a launch refuses, before anything is written: in this process, through the command's own main."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pretrain import launch_check, train
from pretrain.engine.checkpoint import Checkpoint, TrainingState
from pretrain.initial import build_model
from pretrain.recipe import load_recipe
from runtime.command import ConfigError
from runtime.dist import World
from tokenization import shard
from tokenization import train as tokenizer_command

ONE = World(rank=0, local_rank=0, size=1)


def check(recipe: Path, ds_config: Path, *arguments: str, world: World = ONE) -> launch_check.Launch:
    parsed = train._parse(["--recipe", str(recipe), "--deepspeed_config", str(ds_config), *arguments])
    return launch_check.check_launch(parsed, world)


def test_a_good_launch_is_resolved(recipe_path, ds_config_path, tmp_path):
    launch = check(recipe_path, ds_config_path(1), "--run-dir", str(tmp_path / "run"))
    assert launch.checkpoint is None
    assert launch.ds_config["gradient_accumulation_steps"] == 4
    assert launch.ds_config["scheduler"]["params"]["total_num_steps"] == 10
    assert launch.fingerprints["tokenizer"] == launch.manifest.tokenizer_fingerprint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.seq_len=65", r"data.seq_len = 65 is above model.max_position_embeddings = 64"),
        ("data.seqlen=65", r"data.seqlen: there is no such key in a recipe \(did you mean 'data.seq_len'\?\)"),
        ("data.mlm_probability=1.5", r"data.mlm_probability = 1.5: input should be less than 1"),
        ("training.steps=-1", r"training.steps = -1"),
        ("model.vocab_size=500", r"model.vocab_size = 500 is below the 1000 tokens of"),
        ("tokenizer=/nowhere", r"/nowhere"),
        ("shards=/nowhere", r"/nowhere"),
    ],
)
def test_bad_recipe(setting, message, recipe_path, ds_config_path, tmp_path):
    with pytest.raises(ConfigError, match=message):
        check(recipe_path, ds_config_path(1), "--run-dir", str(tmp_path / "run"), "--set", setting)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"zero_optimisation": {}}, r"zero_optimisation: .* \(did you mean 'zero_optimization'\?\)"),
        ({"gradient_clipp1ng": 1.0}, r"did you mean 'gradient_clipping'"),
        ({"train_batch_size": 10}, r"train_batch_size = 10 ≠ 4"),
        ({"fp16": {"enabled": True}}, r"fp16.enabled = true: DeepSpeed has no fp16 on CPU"),
    ],
)
def test_bad_deepspeed_json(changes, message, recipe_path, ds_config_path):
    with pytest.raises(ConfigError, match=message):
        check(recipe_path, ds_config_path(1, **changes))


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_zero_says_once_what_is_worth_a_second_look(rank, recipe_path, ds_config_path, caplog):
    """Case O1: a bucket that is larger than the model, before the engine takes the memory for it."""
    zero = {"stage": 2, "reduce_bucket_size": 500_000_000, "stage3_max_live_parameters": 5}
    path = ds_config_path(2, zero_optimization=zero, train_batch_size=8, train_micro_batch_size_per_gpu=4)
    launch = check(recipe_path, path, world=World(rank=rank, local_rank=rank, size=2))
    train._warn(launch, build_model(launch.recipe, launch.tokenizer), str(path))
    starts = [f"{path}: zero_optimization.{key} = " for key in ("stage3_max_live_parameters", "reduce_bucket_size")]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (2 if rank == 0 else 0)
    assert all(message.startswith(start) for message, start in zip(messages, starts, strict=rank == 0))


def test_buckets_are_fitted_to_the_recipe_s_model(recipe_path, ds_config_path):
    """Case O1: the tests' model has fewer parameters than the bucket that is filled in otherwise."""
    launch = check(recipe_path, ds_config_path(2, zero_optimization={"stage": 2}))
    parameters = sum(parameter.numel() for parameter in build_model(launch.recipe, launch.tokenizer).parameters())
    assert parameters < 5_000_000
    assert launch.ds_config["zero_optimization"]["reduce_bucket_size"] == parameters + parameters % 2


def test_missing_files(recipe_path, ds_config_path, tmp_path):
    with pytest.raises(ConfigError, match=r"nothing.toml: no such file"):
        check(tmp_path / "nothing.toml", ds_config_path(1))
    with pytest.raises(ConfigError, match=r"nothing.json: no such file"):
        check(recipe_path, tmp_path / "nothing.json")


def test_shards_of_another_tokenizer(corpus, recipe_path, ds_config_path, tmp_path):
    other = tmp_path / "other"
    tokenizer_command.main(["--input", str(corpus), "--output", str(other), "--vocab-size", "900"])
    with pytest.raises(
        ConfigError, match=r"manifest.json was made with another tokenizer .* than .*other/tokenizer.json"
    ):
        check(recipe_path, ds_config_path(1), "--set", f"tokenizer={other}")


def test_one_document_with_nsp(tokenizer_dir, recipe_path, ds_config_path, tmp_path):
    """Case N1: refused, or NSP off when asked."""
    (tmp_path / "one.jsonl").write_text(json.dumps({"text": "One fox. Two foxes. Three foxes."}) + "\n")
    arguments = ["--input", str(tmp_path / "one.jsonl"), "--tokenizer", str(tokenizer_dir)]
    shard.main([*arguments, "--output", str(tmp_path / "one"), "--validation-share", "0"])
    shards = ("--set", f"shards={tmp_path / 'one'}")
    with pytest.raises(ConfigError, match=r"the train split has 1 document\(s\); with data.nsp = true"):
        check(recipe_path, ds_config_path(1), *shards)
    check(recipe_path, ds_config_path(1), *shards, "--set", "data.nsp=false")


def test_resume_with_nothing_to_resume(recipe_path, ds_config_path, tmp_path):
    """Case Z3: an error where a path was named; `auto` starts from scratch."""
    with pytest.raises(ConfigError, match=r"--resume .*: there is no checkpoint to resume from"):
        check(recipe_path, ds_config_path(1), "--resume", str(tmp_path))
    assert check(recipe_path, ds_config_path(1), "--run-dir", str(tmp_path)).checkpoint is None


@pytest.fixture
def saved(recipe_path, ds_config_path, tmp_path) -> tuple[Checkpoint, launch_check.Launch]:
    launch = check(recipe_path, ds_config_path(1), "--run-dir", str(tmp_path / "run"))
    checkpoint = Checkpoint(
        path=tmp_path / "run" / "checkpoints" / "step_00000005",
        state=TrainingState(step=5),
        world_size=1,
        recipe=launch.recipe.model_dump(mode="json"),
        ds_config=launch.ds_config,
        fingerprints=launch.fingerprints,
    )
    return checkpoint, launch


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.seed=1", r"training.seed: 42, now 1"),
        ("data.seq_len=40", r"data.seq_len: 48, now 40"),
        ("model.hidden_size=64", r"model.hidden_size: 32, now 64"),
    ],
)
def test_another_run_is_not_resumed(setting, message, saved, recipe_path):
    checkpoint, launch = saved
    changed = replace(launch, recipe=load_recipe(recipe_path, [setting]))
    with pytest.raises(ConfigError, match=message):
        launch_check._check_same_run(checkpoint, changed)
    launch_check._check_same_run(checkpoint, launch)


def test_other_data_is_not_resumed(saved):
    checkpoint, launch = saved
    with pytest.raises(ConfigError, match=r"sha256 of shards: 'x', now '[0-9a-f]{64}'"):
        launch_check._check_same_run(
            replace(checkpoint, fingerprints=checkpoint.fingerprints | {"shards": "x"}), launch
        )


def test_another_length_of_training_is_named(saved, recipe_path, caplog):
    """Case L1: another total at resume is said."""
    checkpoint, launch = saved
    launch_check._check_same_run(checkpoint, replace(launch, recipe=load_recipe(recipe_path, ["training.steps=20"])))
    assert "training.steps was 10, is now 20" in caplog.text


def test_none_refuses_a_run_that_is_there(saved, recipe_path, ds_config_path, monkeypatch):
    checkpoint, launch = saved
    monkeypatch.setattr(launch_check, "newest_readable", lambda _: checkpoint)
    with pytest.raises(ConfigError, match=r"--resume none: .*run holds a run at step 5"):
        check(recipe_path, ds_config_path(1), "--resume", "none", "--run-dir", str(launch.run_dir))


def test_too_few_validation_documents_are_said(saved, caplog):
    _, launch = saved
    splits = dict(launch.manifest.splits)
    splits["validation"] = replace(splits["validation"], documents=1)
    assert train._splits(launch) == ["train", "validation"]
    assert train._splits(replace(launch, manifest=replace(launch.manifest, splits=splits))) == ["train"]
    assert "the validation split has 1 document(s), too few to evaluate" in caplog.text


def test_damaged_tokenizers_are_refused(tokenizer_dir, recipe_path, ds_config_path, tmp_path):
    """Case T3: all five special tokens, by name."""
    broken = tmp_path / "tokenizer"
    shutil.copytree(tokenizer_dir, broken)
    content = json.loads((broken / "tokenizer.json").read_text())
    content["model"]["vocab"]["mask"] = content["model"]["vocab"].pop("[MASK]")
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "[MASK]"]
    (broken / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"special token \[MASK\] is missing"):
        check(recipe_path, ds_config_path(1), "--set", f"tokenizer={broken}")
    (broken / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer.json: not a tokenizer"):
        check(recipe_path, ds_config_path(1), "--set", f"tokenizer={broken}")
