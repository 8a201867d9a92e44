"""Every shipped recipe and DeepSpeed JSON trains two steps; what a CPU lacks is swapped, as its README says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pretrain import train
from pretrain.data.order import Cursor
from pretrain.engine.build import build_engine
from pretrain.engine.ds_config import load_ds_config, resolve_ds_config
from pretrain.engine.ds_warnings import warnings_of
from pretrain.forward import forward_sums
from pretrain.initial import build_model
from pretrain.launch_check import Launch
from pretrain.model.loss import micro_batch_loss
from pretrain.recipe import load_recipe
from pretrain.tokenizer import load_tokenizer_info
from runtime.dist import World
from tokenization.manifest import load_manifest

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(200), pytest.mark.usefixtures("one_rank")]

ROOT = Path(__file__).parents[2]
ONE = World(rank=0, local_rank=0, size=1)


def for_cpu(path: Path) -> dict:
    config = load_ds_config(path) | {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4}
    if config.pop("fp16", {}).get("enabled"):
        config["bf16"] = {"enabled": True}
    config["optimizer"]["params"]["lr"] = 1e-3
    if config["optimizer"]["type"] == "AdamW":
        config["optimizer"]["params"]["torch_adam"] = True
    return config


def two_steps(recipe, ds_config: dict, tmp_path: Path) -> list[float]:
    resolved = resolve_ds_config(ds_config, path="j.json", world_size=1, total_steps=2, warmup_steps=1, on_cuda=False)
    tokenizer = load_tokenizer_info(recipe.tokenizer)
    launch = Launch(recipe, resolved, tmp_path, load_manifest(recipe.shards), tokenizer, None, ONE)
    engine = build_engine(build_model(recipe, tokenizer), resolved)
    reader = train.open_reader(launch, "train")
    losses = []
    for _ in range(2):  # the same batch, so that the loss must fall
        stream = train.open_stream(reader, engine, ONE)
        micro_batches, _ = stream.batch(Cursor(0, 0))
        total = 0.0
        for micro_batch in micro_batches:
            loss = micro_batch_loss(
                forward_sums(engine, micro_batch, torch.device("cpu")),
                global_masked_tokens=micro_batch.global_masked_tokens,
                global_pairs=micro_batch.global_pairs,
                world_size=1,
                accumulation=len(micro_batches),
            )
            engine.backward(loss)
            engine.step()
            total += loss.item() / len(micro_batches)
        losses.append(total)
    return losses


@pytest.mark.parametrize("path", sorted((ROOT / "ds_configs").glob("*.json")), ids=lambda path: path.stem)
def test_every_deepspeed_json(path, recipe_path, tmp_path):
    recipe = load_recipe(recipe_path, ["model.hidden_dropout_prob=0.0", "model.attention_probs_dropout_prob=0.0"])
    # The first update has lr 0 under warmup, so it is left out here.
    config = for_cpu(path)
    config["scheduler"]["params"] |= {"warmup_min_lr": 1e-3}
    first, second = two_steps(recipe, config, tmp_path)
    assert second < first


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe(path, tokenizer_dir, shard_dir, tmp_path):
    """With the shape made small and the corpus of the tests; seq_len and all else as shipped."""
    small = ["model.hidden_size=32", "model.num_hidden_layers=1", "model.num_attention_heads=2"]
    small += ["model.intermediate_size=64", f"tokenizer={tokenizer_dir}", f"shards={shard_dir}"]
    recipe = load_recipe(path, small)
    recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update={"init_from": None})})
    losses = two_steps(recipe, for_cpu(ROOT / "ds_configs" / "cpu_zero2_bf16.json"), tmp_path)
    assert all(7.0 < loss < 8.3 for loss in losses)  # ln 1000 + ln 2 = 7.6


def test_readme_says_of_every_json_what_ran():
    table = (ROOT / "ds_configs" / "README.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line.split("|")[-2].strip() for line in table.splitlines() if line.startswith("| `")}
    assert rows.keys() == {path.name for path in (ROOT / "ds_configs").glob("*.json")}
    for name, ran in rows.items():
        config = load_ds_config(ROOT / "ds_configs" / name)
        assert ("bf16 for fp16" in ran) == ("fp16" in config), name
        assert ("torch's Adam for DeepSpeed's" in ran) == ("offload_optimizer" in config["zero_optimization"]), name


@pytest.mark.parametrize("path", sorted((ROOT / "ds_configs").glob("*.json")), ids=lambda path: path.stem)
def test_a_shipped_json_has_no_warning_for_bert_base(path):
    on_cuda = path.stem.startswith("gpu")
    resolved = resolve_ds_config(
        load_ds_config(path), path=path, world_size=1, total_steps=9, warmup_steps=1, on_cuda=on_cuda
    )
    assert warnings_of(resolved, on_cuda=on_cuda, num_parameters=110_111_042) == []
