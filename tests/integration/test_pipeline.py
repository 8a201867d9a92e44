"""From shards to a stock model through the real launcher, and what it refuses there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, BertForPreTraining, pipeline

from pretrain import export
from pretrain.initial import build_model
from pretrain.recipe import load_recipe
from pretrain.tokenizer import load_tokenizer_info
from tests.integration.launching import losses, metrics

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def finished(recipe_path, ds_config_path, tmp_path_factory):
    """One run on two processes, ZeRO 2, bf16, W&B offline and TensorBoard: many checks share it."""
    from tests.integration.launching import Launcher

    root = tmp_path_factory.mktemp("finished")
    (root / "logs").mkdir()
    run_dir = root / "run"
    tracked = ("--set", "tracking.wandb=offline", "--set", "tracking.tensorboard=true")
    ended = Launcher(recipe_path, root / "logs").run(2, ds_config_path(2, "bf16"), run_dir, *tracked)
    assert ended.code == 0, ended.output
    return run_dir, ended.output


def test_it_learns_and_reports(finished):
    run_dir, output = finished
    assert [step for step, _, _ in losses(run_dir)] == list(range(1, 11))
    first, last = losses(run_dir)[0], losses(run_dir)[-1]
    assert first[1] == pytest.approx(6.9, abs=0.15)  # ln 1000 = 6.908
    assert first[2] == pytest.approx(0.693, abs=0.1)  # ln 2
    assert last[1] < first[1]
    evaluations = [entry["step"] for entry in metrics(run_dir) if "eval/loss" in entry]
    assert evaluations == [5, 10]
    assert "starting from scratch" in output
    assert "tokens/s" in output
    assert "Traceback" not in output


def test_one_wandb_run_and_one_event_file(finished):
    """Case W1: two processes, one run, one event file."""
    run_dir, _ = finished
    assert len(list((run_dir / "wandb").glob("offline-run-*"))) == 1
    assert len(list((run_dir / "tensorboard").glob("events.*"))) == 1


def test_checkpoints_are_kept_whole(finished):
    run_dir, _ = finished
    assert sorted(path.name for path in (run_dir / "checkpoints").glob("step_*")) == ["step_00000005", "step_00000010"]
    assert (run_dir / "checkpoints" / "latest").read_text() == "step_00000010"
    # Every rank saved its part of the optimizer (case Z1).
    parts = list((run_dir / "checkpoints" / "step_00000010").glob("*zero_pp_rank_*_optim_states.pt"))
    assert len(parts) == 2


def test_export_is_the_trained_model(finished, tmp_path):
    run_dir, _ = finished
    to = tmp_path / "model"
    proof = export.export(run_dir, to)
    assert proof.largest_logit_difference <= 1e-5
    model, report = BertForPreTraining.from_pretrained(to, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert model.config.pad_token_id == AutoTokenizer.from_pretrained(to).pad_token_id == 0
    assert model.config.vocab_size == model.cls.predictions.bias.shape[0] == len(AutoTokenizer.from_pretrained(to))
    assert len(pipeline("fill-mask", model=str(to), device="cpu")("The [MASK] of the union.")) == 5
    card = (to / "README.md").read_text()
    assert "10 steps" in card
    assert "validation MLM loss" in card


def test_an_older_step_is_exported(finished, tmp_path):
    run_dir, _ = finished
    export.export(run_dir, tmp_path / "five", step=5)
    export.export(run_dir, tmp_path / "ten")
    five, ten = (BertForPreTraining.from_pretrained(tmp_path / name) for name in ("five", "ten"))
    assert not torch.equal(five.cls.predictions.bias, ten.cls.predictions.bias)


def test_the_next_phase_starts_from_the_weights_of_this_one(finished, recipe_path, tmp_path):
    run_dir, _ = finished
    export.export(run_dir, tmp_path / "model")
    trained = BertForPreTraining.from_pretrained(tmp_path / "model").state_dict()
    recipe = load_recipe(recipe_path, [f"training.init_from={run_dir}", "data.seq_len=64"])
    model = build_model(recipe, load_tokenizer_info(recipe.tokenizer))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor[: len(trained[name])], trained[name]), name
    # Resuming the phase does not need the one before any more.
    gone = load_recipe(recipe_path, [f"training.init_from={tmp_path / 'gone'}"])
    build_model(gone, load_tokenizer_info(recipe.tokenizer), is_resumed=True)


def test_a_finished_run_is_left_alone(finished, launcher, ds_config_path):
    run_dir, _ = finished
    before = (run_dir / "metrics.jsonl").read_bytes()
    ended = launcher.run(2, ds_config_path(2, "bf16"), run_dir)
    assert ended.code == 0, ended.output
    assert (run_dir / "metrics.jsonl").read_bytes() == before


def test_bad_input_through_the_launcher(launcher, ds_config_path, tmp_path):
    """Exit code 2, a message, no traceback, nothing written."""
    ended = launcher.run(2, ds_config_path(2, "fp32"), tmp_path / "run", "--set", "data.seq_len=65")
    assert ended.code == 2
    assert "data.seq_len = 65 is above model.max_position_embeddings = 64" in ended.output
    assert "Traceback" not in ended.output
    assert not (tmp_path / "run").exists()


def test_started_as_a_script_on_one_process(recipe_path, ds_config_path, tmp_path):
    """`python pretrain/train.py`: its own folder does not shadow other modules; no launcher needed."""
    script = Path(__file__).parents[2] / "pretrain" / "train.py"
    command = [sys.executable, str(script), "--recipe", str(recipe_path), "--run-dir", str(tmp_path / "run")]
    command += ["--deepspeed_config", str(ds_config_path(0, "fp32")), "--set", "training.steps=2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
    assert len(losses(tmp_path / "run")) == 2
