"""The command from its arguments to its exit code, on real shards and on broken ones."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from pretrain.audit import collect, command, work
from pretrain.audit.command import main
from pretrain.audit.measure import measure_shard
from runtime.command import ConfigError
from runtime.files import read_json
from tests.pretrain.audit.workshop import random_documents, write_tokenizer
from tokenization.manifest import load_manifest


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr(command, "AuditSettings", lambda **fields: collect.AuditSettings(**fields, num_draws=2000))


@pytest.fixture
def shards(workshop) -> Path:
    documents = random_documents(0, 24, (12, 20), (8, 20))
    return workshop.shards([documents[:8], documents[8:16], documents[16:20]], [documents[20:]])


def audit(shards, tokenizer, *more) -> int:
    return main([str(shards), "--tokenizer", str(tokenizer), *map(str, more)])


def test_real_shards_from_end_to_end(shard_dir, tokenizer_dir, tmp_path, capsys, monkeypatch):
    monkeypatch.undo()
    outputs = ("--json", tmp_path / "a.json", "--html", tmp_path / "a.html")
    assert audit(shard_dir, tokenizer_dir, *outputs, "--work-dir", tmp_path / "work") == 0
    text = capsys.readouterr().out
    figures = read_json(tmp_path / "a.json")
    manifest = load_manifest(shard_dir)
    assert figures["fingerprint"] == manifest.fingerprint
    for name, split in manifest.splits.items():
        found = figures["splits"][name]
        assert [found[key] for key in ("documents", "sentences", "tokens")] == [
            split.documents,
            split.sentences,
            split.tokens,
        ]
    assert figures["settings"] == {
        "seed": 0,
        "seq_len": 128,
        "short_seq_prob": 0.1,
        "nsp": True,
        "mlm_probability": 0.15,
    }
    assert figures["masks"]["predictions"] >= 200_000
    assert f"{figures['splits']['train']['documents']:,}" in text
    assert "[MASK→" in text
    assert not {finding["name"] for finding in figures["findings"] if finding["severity"] == "severe"}
    assert (tmp_path / "a.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert not (tmp_path / "work").exists()


def test_the_keys_of_the_json_file_stay(shards, workshop, tmp_path):
    assert audit(shards, workshop.tokenizer_dir, "--json", tmp_path / "a.json") == 0
    figures = read_json(tmp_path / "a.json")
    assert (
        list(figures)
        == (
            "format version shards_dir fingerprint tokenizer_dir settings damaged incomplete splits overlap vocabulary "
            "pairs not_paired masks dropped repaired places samples findings"
        ).split()
    )
    assert (figures["format"], figures["version"]) == ("zerobert-audit", 1)
    assert set(figures["splits"]["train"]) >= {"unk_share", "single_sentence_share", "sentence_tokens", "most_repeated"}
    assert set(figures["findings"][0]) == {"name", "severity", "text", "remedy"}


def test_strict_fails_on_severe_findings_alone(workshop, shards, capsys):
    assert audit(shards, workshop.tokenizer_dir, "--strict") == 0
    one = workshop.shards([random_documents(0, 1, (12, 20), (8, 20))])
    assert audit(one, workshop.tokenizer_dir) == 0
    assert audit(one, workshop.tokenizer_dir, "--strict") == 1
    assert "--strict: severe findings: nsp_documents" in capsys.readouterr().err


def test_a_flipped_byte_is_a_severe_finding(workshop, shards, tmp_path, capsys):
    path = shards / "train-00001.bin"
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    assert audit(shards, workshop.tokenizer_dir, "--strict", "--json", tmp_path / "a.json") == 1
    figures = read_json(tmp_path / "a.json")
    assert str(path) in figures["damaged"][0]
    assert figures["findings"][0]["name"] == "damaged"
    assert "train-00001.bin" in figures["findings"][0]["text"]
    # the others are measured all the same
    assert figures["splits"]["train"]["documents"] == 12
    assert "shards are damaged" in capsys.readouterr().out


def test_a_shard_damaged_after_it_was_measured_is_seen(workshop, shards, tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        _interrupted(shards, workshop, monkeypatch, after=2)
    path = shards / "train-00000.idx"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert audit(shards, workshop.tokenizer_dir, "--strict") == 1


def test_another_tokenizer_is_refused_by_both_fingerprints(workshop, shards, tmp_path):
    other = write_tokenizer(tmp_path / "other", 201)
    with pytest.raises(
        ConfigError, match=r"other: its tokenizer.json has sha256 \w{64}, but .*shards-1 was made with \w"
    ):
        audit(shards, other)


def test_the_tokenizer_that_the_manifest_names_is_the_default(workshop, capsys):
    documents = [random_documents(0, 8, (12, 20), (8, 20))]
    named = workshop.shards(documents, settings={"tokenizer": str(workshop.tokenizer_dir)})
    assert main([str(named)]) == 0
    gone = workshop.shards(documents, settings={"tokenizer": "/nowhere/tokenizer"})
    with pytest.raises(ConfigError, match=r"--tokenizer: is needed: /nowhere/tokenizer, which .* names, is gone"):
        main([str(gone)])
    with pytest.raises(ConfigError, match=r"--tokenizer: is needed: the manifest of .* names no tokenizer"):
        main([str(workshop.shards(documents))])


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--seq-len", "4", "seq_len = 4"),
        ("--mlm-probability", "0", "mlm_probability = 0.0"),
        ("--short-seq-prob", "2", "short_seq_prob = 2.0"),
        ("--seed", "-1", "seed = -1"),
        ("--samples", "-1", "--samples -1: must be 0 or more"),
        ("--html", "/nowhere/a.html", "--html /nowhere/a.html: must be a file in a folder that is there"),
        ("--json", "/tmp", "--json /tmp: must be a file"),
        ("--work-dir", "/proc/nothing", "--work-dir /proc/nothing: can't be written"),
    ],
)
def test_bad_arguments_are_refused_before_the_work(workshop, shards, flag, value, message):
    with pytest.raises(ConfigError, match=message):
        audit(shards, workshop.tokenizer_dir, flag, value)


@pytest.mark.parametrize("flag", ["--json", "--html"])
def test_outputs_may_not_replace_what_is_read(workshop, shards, tmp_path, monkeypatch, flag):
    before = {path: path.read_bytes() for folder in (shards, workshop.tokenizer_dir) for path in folder.iterdir()}
    (tmp_path / "link").symlink_to(shards)
    (shards / "out.json").symlink_to(tmp_path / "elsewhere.json")
    monkeypatch.setattr(command, "collect", None)
    monkeypatch.chdir(shards)
    shard_paths = (shards / "manifest.json", Path("new.json"), tmp_path / "link" / "train-00000.bin", "out.json")
    for path in shard_paths:
        with pytest.raises(ConfigError, match=rf"{flag} .*: must be outside the folder of shards .*shards-1$"):
            audit(shards, workshop.tokenizer_dir, flag, path)
    with pytest.raises(ConfigError, match=rf"{flag} .*tokenizer.json: must be outside the tokenizer folder"):
        audit(shards, workshop.tokenizer_dir, flag, workshop.tokenizer_dir / "tokenizer.json")
    assert all(path.read_bytes() == content for path, content in before.items())


def test_outputs_may_not_replace_each_other(workshop, shards, tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(ConfigError, match=r"--json and --html .*/x/../a: must be two files"):
        audit(shards, workshop.tokenizer_dir, "--json", tmp_path / "a", "--html", tmp_path / "x" / ".." / "a")


def test_outputs_beside_the_shards_are_fine(workshop, shards):
    beside = shards.with_name(f"{shards.name}.html")
    assert audit(shards, workshop.tokenizer_dir, "--html", beside) == 0
    assert beside.is_file()


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_other_split_of_damaged_shards_is_looked_at(workshop, shards, tmp_path, capsys, split):
    path = shards / f"{split}-00000.bin"
    path.write_bytes(bytes(path.stat().st_size))
    assert audit(shards, workshop.tokenizer_dir, "--json", tmp_path / "a.json", "--html", tmp_path / "a.html") == 0
    figures = read_json(tmp_path / "a.json")
    whole = {"train": "validation", "validation": "train"}[split]
    assert figures["incomplete"] == [split]
    assert figures["not_paired"] == {split: "shards of it are damaged"}
    assert list(figures["pairs"]) == [whole]
    assert (figures["masks"] is None) == (split == "train")
    text = capsys.readouterr().out
    assert f"incomplete      {split}: figures are of the sound shards alone" in text
    assert f"<th>{split}, sound shards alone</th>" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_no_shards(workshop, tmp_path):
    with pytest.raises(ConfigError, match="no such folder of shards"):
        audit(tmp_path / "none", workshop.tokenizer_dir)


def test_a_second_call_measures_only_what_is_missing(workshop, shards, tmp_path, monkeypatch, capsys):
    outputs = ("--json", tmp_path / "a.json")
    assert audit(shards, workshop.tokenizer_dir, *outputs) == 0
    whole, text = (tmp_path / "a.json").read_bytes(), capsys.readouterr().out
    with pytest.raises(KeyboardInterrupt):
        _interrupted(shards, workshop, monkeypatch, after=2)
    work_dir = shards.with_name(f"{shards.name}.audit-work")
    assert len(list(work_dir.glob("audit-*/shard-*"))) == 2
    measured = []
    monkeypatch.setattr(
        collect, "measure_shard", lambda prefix, *rest: measured.append(prefix.name) or measure_shard(prefix, *rest)
    )
    assert audit(shards, workshop.tokenizer_dir, *outputs) == 0
    assert measured == ["train-00002", "validation-00000"]
    assert (tmp_path / "a.json").read_bytes() == whole
    assert capsys.readouterr().out == text
    assert not work_dir.exists()


def test_other_settings_do_not_take_over_old_measures(workshop, shards, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        _interrupted(shards, workshop, monkeypatch, after=2)
    measured = []
    monkeypatch.setattr(
        collect, "measure_shard", lambda prefix, *rest: measured.append(prefix.name) or measure_shard(prefix, *rest)
    )
    assert audit(shards, workshop.tokenizer_dir, "--seq-len", 64) == 0
    assert len(measured) == 4


def _interrupted(shards, workshop, monkeypatch, after: int) -> None:
    """Run an audit that is stopped by Ctrl-C after some shards."""
    done = []

    def measure(prefix, *rest):
        if len(done) == after:
            raise KeyboardInterrupt
        done.append(prefix)
        return measure_shard(prefix, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(collect, "measure_shard", measure)
        audit(shards, workshop.tokenizer_dir)


@pytest.mark.timeout(120)
def test_killed_and_called_again(workshop, shards, tmp_path):
    assert audit(shards, workshop.tokenizer_dir, "--json", tmp_path / "a.json") == 0

    def killed() -> None:
        def measure(prefix, *rest):
            if prefix.name == "train-00001":
                os.kill(os.getpid(), signal.SIGKILL)
            return measure_shard(prefix, *rest)

        collect.measure_shard = measure
        audit(shards, workshop.tokenizer_dir)

    process = multiprocessing.get_context("fork").Process(target=killed)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    work_dir = shards.with_name(f"{shards.name}.audit-work")
    assert len([path for path in work_dir.glob("audit-*/shard-*") if "partial" not in path.name]) == 1
    assert audit(shards, workshop.tokenizer_dir, "--json", tmp_path / "b.json") == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert not work_dir.exists()


def test_what_else_is_in_the_work_folder_stays(workshop, shards, tmp_path):
    work_dir = tmp_path / "mine"
    work_dir.mkdir()
    (work_dir / "thesis.txt").write_text("ten years of work")
    assert audit(shards, workshop.tokenizer_dir, "--work-dir", work_dir) == 0
    assert [path.name for path in work_dir.iterdir()] == ["thesis.txt"]


def test_two_audits_at_once_do_not_share_a_folder(workshop, shards, tmp_path):
    with work.work_folder(shards, tmp_path / "w", "key"), pytest.raises(ConfigError, match="another audit of these"):
        with work.work_folder(shards, tmp_path / "w", "key"):
            pass
    assert not (tmp_path / "w").exists()


def test_shards_that_can_only_be_read(workshop, shards, monkeypatch):
    monkeypatch.setattr(work.os, "access", lambda path, mode: False)
    with work.work_folder(shards, None, "key") as folder:
        assert folder.is_dir()
        assert not folder.is_relative_to(shards.parent)
    assert not folder.exists()


def test_large_corpora_plan_on_disk(workshop, shards, monkeypatch, tmp_path):
    assert audit(shards, workshop.tokenizer_dir, "--json", tmp_path / "a.json") == 0
    monkeypatch.setattr(collect, "_IN_MEMORY_SENTENCES", 10)
    assert audit(shards, workshop.tokenizer_dir, "--json", tmp_path / "b.json") == 0
    assert json.loads((tmp_path / "a.json").read_text()) == json.loads((tmp_path / "b.json").read_text())


def test_a_manifest_that_says_more_than_the_shards_hold(workshop, shards):
    manifest = load_manifest(shards)
    wrong = replace(manifest.splits["train"], documents=21)
    with pytest.raises(ConfigError, match="documents"):
        workshop.audit(
            replace(
                manifest,
                splits={
                    **manifest.splits,
                    "train": replace(wrong, shards=(replace(wrong.shards[0], documents=9), *wrong.shards[1:])),
                },
            )
        )
