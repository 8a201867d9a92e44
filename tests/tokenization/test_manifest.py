from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.command import ConfigError
from runtime.files import sha256_of
from tokenization.manifest import load_manifest, tokenizer_fingerprint, verify
from tokenization.shard import main


@pytest.fixture(scope="module")
def made(corpus: Path, tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("shards") / "out"
    flags = ["--tasks", "2", "--validation-share", "0.2"]
    assert main(["--input", str(corpus), "--tokenizer", str(tokenizer_dir), "--output", str(output), *flags]) == 0
    return output


@pytest.fixture
def shards(made: Path, tmp_path: Path) -> Path:
    """A folder of shards that may be broken."""
    return shutil.copytree(made, tmp_path / "shards")


def test_a_whole_folder_loads_and_verifies(shards: Path, tokenizer_dir: Path) -> None:
    manifest = load_manifest(shards)
    verify(manifest)
    assert manifest.fingerprint == sha256_of(shards / "manifest.json")
    assert manifest.tokenizer_fingerprint == tokenizer_fingerprint(tokenizer_dir)
    assert [shard.name for shard in manifest.splits["train"].shards] == ["train-00000", "train-00001"]
    assert manifest.directory == shards


def change(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest.update({key: value})


def change_shard(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["splits"]["train"]["shards"][0].update({key: value})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (change("format", "other"), "not a manifest of shards"),
        (change("version", 3), '"version" is 3; this program reads 1 and 2'),
        (change("dtype", "float32"), "\"dtype\" is 'float32'; known: int16, int32, uint16"),
        (change("dtype", ["int16"]), r"manifest\.json: \"dtype\" is \['int16'\]; must be a text"),
        (change("splits", {}), r'manifest\.json: "splits\.train" is missing'),
        (change("splits", [1]), r'"splits" is \[1\]; must be an object'),
        (change("splits", {"train": {"shards": [7]}}), r'"splits\.train\.shards\[0\]" is 7; must be an object'),
        (change("tokenizer", None), '"tokenizer" is None; must be an object'),
        (change("tokenizer", {"fingerprint": 1}), r'"tokenizer\.fingerprint" is 1; must be a text'),
        (change("tokenizer", {"fingerprint": "1"}), r'"tokenizer\.vocab_size" is missing'),
        (change("tokenizer", {"fingerprint": "1", "vocab_size": True}), '"tokenizer.vocab_size" is True; must be a wh'),
        (change("settings", []), r'"settings" is \[\]; must be an object'),
        (change("settings", {"tokenizer": 5}), r'"settings\.tokenizer" is 5; must be a text'),
        (change("sources", {}), r'"sources" is \{\}; must be a list of objects'),
        (change("sources", ["a"]), r"\"sources\[0\]\" is 'a'; must be an object"),
        (change("dropped", [1]), r'"dropped" is \[1\]; must be an object'),
        (change("dropped", {"a": "b"}), r"\"dropped\.a\" is 'b'; must be a whole number, 0 or more"),
        (change("dropped", {"a": 1.5}), r'"dropped\.a" is 1\.5; must be a whole number, 0 or more'),
        (change("repaired", None), '"repaired" is None; must be an object'),
        (change("repaired", {"a": -1}), r'"repaired\.a" is -1; must be a whole number, 0 or more'),
        (change("places", None), '"places" is None; must be a list of objects'),
        (change("places", [1]), r'"places\[0\]" is 1; must be an object'),
        (change("places", "x" * 200), r'"places" is \Wx{79}\.\.\.; must be a list'),
        (change("text_bytes", "much"), "\"text_bytes\" is 'much'; must be a whole number"),
        (change_shard("surprise", 1), r"\"splits\.train\.shards\[0\]\" has a field that no shard has: 'surprise'"),
        (change_shard("name", "../x"), r"\"splits\.train\.shards\[0\]\.name\" is '\.\./x'; must be a file name"),
        (change_shard("tokens", None), r'"splits\.train\.shards\[0\]\.tokens" is None; must be a whole number'),
        (change_shard("documents", 1), "splits.train: sums are not those of its shards"),
        (change_shard("bytes", 1), "shard train-00000: 1 bytes are not"),
        (change_shard("name", "none"), r"none\.bin: no such file, though manifest.json lists it"),
    ],
)
def test_a_bad_manifest_is_refused(shards: Path, edit: Callable[[dict[str, Any]], None], message: str) -> None:
    path = shards / "manifest.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    edit(value)
    path.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_manifest(shards)


def test_a_manifest_may_tell_of_no_repairs_and_no_tokenizer(shards: Path) -> None:
    path = shards / "manifest.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    del value["repaired"], value["places"]
    value.update(version=1, settings={"tokenizer": None})
    path.write_text(json.dumps(value), encoding="utf-8")
    manifest = load_manifest(shards)
    assert (manifest.repaired, manifest.places) == ({}, [])


@pytest.mark.parametrize("suffix", ["bin", "idx"])
def test_files_of_another_size_are_refused(shards: Path, suffix: str) -> None:
    path = shards / f"validation-00001.{suffix}"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(ConfigError, match=rf"validation-00001\.{suffix}: {len(content) - 1} bytes, manifest.json says"):
        load_manifest(shards)
    path.unlink()
    with pytest.raises(ConfigError, match=rf"validation-00001\.{suffix}: no such file, though manifest.json"):
        load_manifest(shards)


@pytest.mark.parametrize("suffix", ["bin", "idx"])
def test_one_changed_bit_is_found(shards: Path, suffix: str) -> None:
    path = shards / f"train-00001.{suffix}"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"train-00001\.{suffix}: .*manifest.json says"):
        verify(load_manifest(shards))


def test_missing_folders_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none: no such folder of shards"):
        load_manifest(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"manifest\.json: no such file"):
        load_manifest(tmp_path)
    with pytest.raises(ConfigError, match=r"tokenizer\.json: no such file"):
        tokenizer_fingerprint(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ConfigError, match=r"manifest\.json:1:\d+: not plain JSON"):
        load_manifest(tmp_path)
