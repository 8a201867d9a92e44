"""A small real corpus, its tokenizer and its shards, made once by the real commands."""

from __future__ import annotations

import json
import lzma
import signal
from pathlib import Path

import pytest

from tokenization import shard, train

# A shell starts what runs in its background with Ctrl-C ignored, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

CORPUS = Path(__file__).parent.parent / "demo" / "corpus" / "state_of_the_union.jsonl.xz"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """Sixty addresses of the demo corpus, the first 6,000 characters of each: about 360 kB."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    with lzma.open(CORPUS, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"][:6000] for line, _ in zip(lines, range(60), strict=False)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer_dir(corpus, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer"
    assert train.main(["--input", str(corpus), "--output", str(path), "--vocab-size", "1000"]) == 0
    return path


@pytest.fixture(scope="session")
def shard_dir(corpus, tokenizer_dir, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("shards") / "shards"
    arguments = ["--input", str(corpus), "--tokenizer", str(tokenizer_dir), "--output", str(path)]
    assert shard.main([*arguments, "--validation-share", "0.2"]) == 0
    return path


RECIPE = """
name = "tiny"
tokenizer = "{tokenizer}"
shards = "{shards}"

[model]
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 64
max_position_embeddings = 64

[data]
seq_len = 48

[training]
steps = 10
warmup_steps = 2
log_interval_steps = 1

[evaluation]
interval_steps = 5
max_pairs = 60

[checkpoint]
interval_steps = 5

[tracking]
wandb = "off"
"""


@pytest.fixture(scope="session")
def recipe_path(tokenizer_dir, shard_dir, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    path.write_text(RECIPE.format(tokenizer=tokenizer_dir, shards=shard_dir), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def ds_config_path(tmp_path_factory):
    """Return a function that writes a DeepSpeed JSON: (stage, precision, **changes) -> path."""
    root = tmp_path_factory.mktemp("ds_configs")

    def make(stage: int = 2, precision: str = "fp32", **changes) -> Path:
        config = {
            "train_batch_size": 16,
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": {
                "type": "AdamW",
                "params": {"lr": 2e-3, "weight_decay": 0.01, "torch_adam": True, "fused": True},
            },
            "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "linear"}},
            "zero_optimization": {"stage": stage},
            "gradient_clipping": 1.0,
        }
        if precision != "fp32":
            config[precision] = {"enabled": True}
        config.update(changes)
        path = root / f"{len(list(root.iterdir()))}.json"
        path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
        return path

    return make
