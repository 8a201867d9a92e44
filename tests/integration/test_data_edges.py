"""Where data run out: unequal shards, the end of an epoch, a resume beyond it. Cases S1, S2, Z3."""

from __future__ import annotations

import json

import pytest

from pretrain.engine.checkpoint import find_checkpoint
from tests.integration.launching import losses, metrics
from tokenization import shard
from tokenization.manifest import load_manifest

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def unequal_shards(tokenizer_dir, tmp_path_factory):
    """Two shards of unequal size."""
    root = tmp_path_factory.mktemp("unequal")
    sentence = "the government of the people has the duty to keep the peace of the union. "
    texts = [f"number {number} . " + sentence * (12 if number < 6 else 6) for number in range(12)]
    (root / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    arguments = ["--input", str(root / "text.jsonl"), "--tokenizer", str(tokenizer_dir), "--tasks", "2"]
    assert shard.main([*arguments, "--output", str(root / "shards"), "--validation-share", "0"]) == 0
    first, second = load_manifest(root / "shards").splits["train"].shards
    assert first.tokens > 1.2 * second.tokens
    return root / "shards"


def test_a_run_goes_on_over_epochs_and_resumes_there(unequal_shards, launcher, ds_config_path, tmp_path):
    """Two ranks do as many steps on unequal shards; a run resumed at step 7 takes the pairs that it would have had."""
    # No total in the schedule, so that a run of 7 steps and one of 10 have the same lr.
    schedule = {"type": "WarmupLR", "params": {"warmup_type": "linear"}}
    ds_config = ds_config_path(1, "fp32", train_batch_size=16, train_micro_batch_size_per_gpu=8, scheduler=schedule)
    settings = ("--set", f"shards={unequal_shards}", "--set", "evaluation.interval_steps=0")

    # The first start of all may compile DeepSpeed's collective; the later ones have the 60 s of the case.
    whole = launcher.run(2, ds_config, tmp_path / "whole", *settings)
    assert whole.code == 0, whole.output
    assert metrics(tmp_path / "whole")[-1]["epoch"] >= 1
    assert [step for step, _, _ in losses(tmp_path / "whole")] == list(range(1, 11))

    part = launcher.run(2, ds_config, tmp_path / "part", *settings, "--set", "training.steps=7", seconds=60)
    assert part.code == 0, part.output
    assert find_checkpoint(tmp_path / "part").state.epoch >= 1

    source = tmp_path / "part" / "checkpoints" / "step_00000007"
    ended = launcher.run(2, ds_config, tmp_path / "on", *settings, "--resume", str(source), seconds=60)
    assert ended.code == 0, ended.output
    assert "training.steps was 7, is now 10" in ended.output
    assert losses(tmp_path / "on") == losses(tmp_path / "whole")[7:]
    assert find_checkpoint(tmp_path / "on").state == find_checkpoint(tmp_path / "whole").state

    refused = launcher.run(2, ds_config, tmp_path / "whole", *settings, "--resume", str(source), seconds=60)
    assert refused.code == 2
    assert "holds a run at step 10 already" in refused.output
