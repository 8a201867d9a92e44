"""BERT-large, 24 x 1024 with 30,528 rows of vocabulary, on two CPU processes: trains, saves, resumes, exports."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from pretrain import export
from tests.integration.launching import Launcher, losses, metrics
from tokenization import shard
from tokenization.vocabulary import wordpiece

pytestmark = [pytest.mark.slow, pytest.mark.distributed, pytest.mark.timeout(600)]

RECIPE = Path(__file__).parents[2] / "recipes" / "bert_large_phase1.toml"


@pytest.fixture(scope="module")
def data(corpus, tmp_path_factory):
    """A tokenizer of 30,522 tokens: the small corpus' own, filled up with made-up pieces."""
    root = tmp_path_factory.mktemp("large")
    words = {word for line in corpus.read_text().splitlines() for word in json.loads(line)["text"].lower().split()}
    letters = sorted({letter for word in words for letter in word})
    pieces = [*letters, *(f"##{letter}" for letter in letters)]
    pieces += [word for word in sorted(words) if word not in set(pieces)]
    pieces += [f"piece{number}" for number in range(30_522)]
    wordpiece.save_tokenizer([*wordpiece.SPECIAL_TOKENS, *pieces][:30_522], wordpiece.Casing(True, True), root / "tok")
    arguments = ["--input", str(corpus), "--tokenizer", str(root / "tok"), "--output", str(root / "shards")]
    assert shard.main(arguments) == 0
    return root


def test_it_trains_saves_resumes_and_exports(data, ds_config_path, tmp_path):
    (tmp_path / "logs").mkdir()
    launcher = Launcher(RECIPE, tmp_path / "logs")
    ds_config = ds_config_path(2, "bf16", train_batch_size=8, train_micro_batch_size_per_gpu=4)
    run_dir = tmp_path / "run"
    short = [f"tokenizer={data / 'tok'}", f"shards={data / 'shards'}", "training.warmup_steps=1"]
    short += ["evaluation.interval_steps=0", "training.log_interval_steps=1", "checkpoint.keep_last=1"]
    short += ["tracking.wandb=off"]
    arguments = [part for setting in short for part in ("--set", setting)]

    shown: list[str] = []
    for steps in (2, 3):  # three steps, the third after a resume
        ended = launcher.run(2, ds_config, run_dir, *arguments, "--set", f"training.steps={steps}", seconds=280)
        assert ended.code == 0, ended.output
        shown += [line for line in ended.output.splitlines() if line.startswith(("step ", "bert_large", "resumed"))]
    assert "step 2 of 3" in ended.output
    assert [step for step, _, _ in losses(run_dir)] == [1, 2, 3]
    # The schedule of three steps: warmup of one, then half way down.
    assert metrics(run_dir)[-1]["train/lr"] == pytest.approx(1e-3)
    assert losses(run_dir)[0][1] == pytest.approx(10.33, abs=0.4)  # ln 30522

    proof = export.export(run_dir, tmp_path / "model")
    assert proof.largest_logit_difference <= 1e-5
    assert proof.num_tensors == 398
    assert len(AutoTokenizer.from_pretrained(tmp_path / "model")) == 30_522
    assert json.loads((tmp_path / "model" / "config.json").read_text())["vocab_size"] == 30_522
    shutil.rmtree(run_dir)
    sys.stdout.write("\n".join(shown) + "\n")  # pytest -s shows it: the figures of docs/architecture.md
