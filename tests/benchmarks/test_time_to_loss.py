"""The clock and the corpus of `time_to_loss`, and both arms on a tiny model and corpus."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import fetch, time_to_loss, trainer_peer
from benchmarks.curve import Curve, check_equal
from benchmarks.harness import UnequalError
from benchmarks.time_to_loss import Setup
from pretrain.data.stream import validation_batches

ROOT = Path(__file__).parents[2]
TINY = {"layers": 1, "hidden": 32, "seq_len": 48, "steps": 12, "warmup_steps": 2, "pairs": 4, "lr": 5e-3}


@pytest.fixture
def setup(tmp_path: Path, tokenizer_dir: Path, shard_dir: Path) -> Setup:
    (tmp_path / "tokenizer").symlink_to(tokenizer_dir)
    (tmp_path / "shards").symlink_to(shard_dir)
    return Setup(tmp_path, **TINY, evaluate_every=4, validation_pairs=16)


def test_the_time_is_read_off_a_line_between_two_evaluations():
    curve = Curve([(10.0, 9.0), (20.0, 8.0), (30.0, 7.0), (40.0, 7.5)])
    assert curve.seconds_to(7.25) == pytest.approx(27.5)
    assert curve.seconds_to(8.0) == pytest.approx(20.0)
    assert curve.seconds_to(7.0) == pytest.approx(30.0)
    with pytest.raises(UnequalError, match=r"came down to 7\.000, not to 6\.9"):
        curve.seconds_to(6.9)


def test_evaluations_take_no_time(monkeypatch: pytest.MonkeyPatch):
    now = iter([100.0, 103.0, 150.0, 152.0, 190.0])
    monkeypatch.setattr("benchmarks.curve.time.process_time", lambda: next(now))
    curve = Curve()
    curve.begin()
    for loss in (9.0, 8.0):
        curve.pause()
        curve.go_on(loss)
    assert curve.points == [(3.0, 9.0), (5.0, 8.0)]


def test_documents_are_the_addresses_in_pieces():
    documents = time_to_loss.read_documents(time_to_loss.CORPUS)
    sizes = [len(document) for document in documents]
    assert documents == time_to_loss.read_documents(time_to_loss.CORPUS)
    assert len(documents) > 2000
    assert np.median(sizes) == pytest.approx(12, abs=2)
    assert max(sizes) > 40
    assert all(sentence.strip() for document in documents for sentence in document)


def test_both_arms_start_from_the_same_weights_and_see_the_same_pairs(setup: Setup):
    setup.save()
    assert Setup.load(setup.folder) == setup
    ours = setup.model()
    stock = trainer_peer.stock_model(ours)
    assert stock.config.vocab_size == ours.real_vocab_size == 1000
    table = stock.bert.embeddings.word_embeddings.weight
    assert torch.equal(table, ours.bert.embeddings.word_embeddings.weight[:1000])
    assert torch.equal(stock.bert.pooler.dense.weight, ours.bert.pooler.dense.weight)
    assert stock.config.hidden_dropout_prob == ours.config.hidden_dropout_prob == 0.1

    batches = list(setup.batches())
    assert len(batches) == setup.steps
    again = list(setup.batches())
    assert all(np.array_equal(a.input_ids, b.input_ids) for a, b in zip(batches, again, strict=True))
    batch = batches[0]
    mask_id = setup.reader("train").vocabulary.mask_id
    assert mask_id in batch.input_ids
    rows = trainer_peer.rows_of(batch)
    assert [len(row["input_ids"]) for row in rows] == batch.pair_lengths
    assert [row["next_sentence_label"] for row in rows] == batch.next_sentence_label.tolist()
    whole = np.concatenate([row["input_ids"] for row in rows])
    assert mask_id not in whole
    assert np.array_equal(whole[batch.masked_positions], batch.labels)
    rest = np.setdiff1d(np.arange(len(whole)), batch.masked_positions)
    assert np.array_equal(whole[rest], batch.input_ids[0][rest])


def test_the_settings_are_the_same(setup: Setup):
    config = setup.ds_config()
    assert config["optimizer"]["params"] == {
        **{"lr": setup.lr, "eps": 1e-8, "weight_decay": 0.01},  # betas: both leave torch's
        **{"torch_adam": True, "fused": True},
    }
    assert config["gradient_clipping"] == 1.0
    assert config["scheduler"]["params"]["total_num_steps"] == 12
    assert config["scheduler"]["params"]["warmup_num_steps"] == 2
    assert sum(batch.num_pairs for batch in setup.validation(setup.reader("validation"))) == 16
    held_out = validation_batches(setup.reader("validation"), micro_batch=8, rank=0, world_size=1, max_pairs=16)
    again = setup.validation(setup.reader("validation"))
    assert all(np.array_equal(a.labels, b.labels) for a, b in zip(held_out, again, strict=True))


def test_curves_that_differ_are_refused():
    ours, near, far = (Curve([(1.0, 7.0), (2.0, second)]) for second in (6.5, 6.6, 6.7))
    assert check_equal(ours, near) == pytest.approx(0.1)
    with pytest.raises(UnequalError, match=r"validation losses of zerobert and the peer: .*6\.7"):
        check_equal(ours, far)


COMPARE = """
import sys
from pathlib import Path
import deepspeed
from benchmarks import harness, time_to_loss
from runtime.dist import process_group

# a shared-memory collective that DeepSpeed would compile for a minute
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
options = harness.parser("time_to_loss", None).parse_args(["--goal", "0.001"])
report = harness.Report("time_to_loss", options)
with process_group(time_to_loss.ONE):
    time_to_loss.compare(report, time_to_loss.Setup.load(Path(sys.argv[1])), 6.7)
sys.exit(report.finish())
"""


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(200)
def test_both_arms_come_to_the_same_loss(setup: Setup):
    """In processes of their own; from ln 1,000 = 6.9 to the target."""
    try:
        fetch.peer("accelerate")
    except fetch.UnreachableError as error:
        pytest.skip(str(error))
    setup.save()
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, str(setup.folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "zerobert, CPU time to a validation MLM loss of 6.7" in done.stdout
    assert (
        "transformers.Trainer / zerobert, CPU time to a validation MLM loss of 6.7; 12 steps of 4 pairs" in done.stdout
    )
