"""Shards of byte-level BPE and of Unigram are audited, and their text is read as it was written."""

from __future__ import annotations

import html
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pretrain.audit import collect, command
from pretrain.audit.command import main
from pretrain.audit.reading import TokenReader
from pretrain.audit.samples import Mark, Sample
from pretrain.audit.text import read_sample
from runtime.files import read_json
from tokenization import shard, train

ANIMALS = ("zebra", "whale", "Mäuse", "東京", "😀")
TEXTS = [
    f"Ancient cafés in Köln — don’t “open” early, number {number} (x=1,024)! A {animal} 😀 sees {number * 37} houses. "
    f"The end of it; was {number * 91} miles away, naïve friends said. And then [MASK] left {animal} {number} times."
    for number in range(80)
    for animal in ANIMALS
]
VOCAB_SIZES = {"bpe": 330, "unigram": 180}


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def outputs(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the report of such shards as a.txt, a.json and a.html."""
    root = tmp_path_factory.mktemp(kind)
    corpus = root / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    source = ["--input", str(corpus)]
    made = ["--model", kind, "--cased", "--vocab-size", str(VOCAB_SIZES[kind])]
    assert train.main([*source, "--output", str(root / "tokenizer"), *made]) == 0
    flags = ["--tokenizer", str(root / "tokenizer"), "--output", str(root / "shards"), "--validation-share", "0.2"]
    assert shard.main([*source, *flags]) == 0
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "AuditSettings", lambda **fields: collect.AuditSettings(**fields, num_draws=2000))
        patch.setattr(command.sys, "stdout", type("Lines", (), {"write": staticmethod(lines.append)}))
        files = ["--json", str(root / "a.json"), "--html", str(root / "a.html")]
        assert main([str(root / "shards"), *files, "--samples", "60", "--seq-len", "96"]) == 0
    (root / "a.txt").write_text("".join(lines), encoding="utf-8")
    return root


def restored(marks: list[dict[str, Any]]) -> str:
    """Return what a segment said before it was masked; characters cut into bytes are put together again."""
    text = ""
    for mark in marks:
        said = (mark["original"] or mark["text"]).replace("␣", "")
        text += said if mark["is_joined"] else f" {said}"
    parts = re.split("⟨0x(..)⟩", text)
    found = b"".join(bytes.fromhex(part) if number % 2 else part.encode() for number, part in enumerate(parts))
    return found.decode("utf-8", "ignore").strip(" …")  # a pair may end, or begin, inside a character


def test_samples_say_what_was_written(outputs: Path) -> None:
    samples = read_json(outputs / "a.json")["samples"]
    assert len(samples) == 60
    assert {sample["label"] for sample in samples} == {"next", "random"}
    for sample in samples:
        ends = [number for number, mark in enumerate(sample["marks"]) if mark["kind"] == "special"]
        assert [sample["marks"][number]["text"] for number in ends] == ["[CLS]", "[SEP]", "[SEP]"]
        segments = [restored(sample["marks"][first + 1 : last]) for first, last in pairwise(ends)]
        for segment in segments:
            assert any(segment in text for text in TEXTS), segment
        if sample["label"] == "next":
            assert any(0 <= text.find(segments[0]) < text.find(segments[1]) for text in TEXTS), segments


def test_each_report_is_free_of_marks_of_the_model(outputs: Path) -> None:
    for name in ("a.txt", "a.json", "a.html"):
        text = (outputs / name).read_text(encoding="utf-8")
        assert not re.findall("[Ġ▁\ufffdâã]", text), name
        assert "Ancient" in text or "cient cafés" in text
    samples = read_json(outputs / "a.json")["samples"]
    page = (outputs / "a.html").read_text(encoding="utf-8")
    text = re.sub(r"\s+", "", (outputs / "a.txt").read_text(encoding="utf-8"))
    first = {sample["label"]: sample for sample in reversed(samples)}
    for sample in first.values():
        marks = tuple(Mark(**mark) for mark in sample["marks"])
        line = read_sample(Sample(sample["pair"], sample["label"], sample["tokens"], marks))
        assert re.sub(r"\s+", "", line[:200]) in text
        for mark in sample["marks"]:
            assert f"<bdi>{html.escape(mark['original'] or mark['text'])}</bdi>" in page


def test_tokens_of_the_table_show_their_space(outputs: Path) -> None:
    figures = read_json(outputs / "a.json")
    names = [token["token"] for token in figures["vocabulary"]["most_frequent"]]
    assert any(name.startswith("␣") for name in names)
    repeated = [sentence["text"] for sentence in figures["splits"]["train"]["most_repeated"]]
    assert all(any(sentence.removesuffix(" …") in text for text in TEXTS) for sentence in repeated)


def test_a_sentence_cut_inside_a_character_ends_before_it(outputs: Path, kind: str) -> None:
    tokenizer = train.load_tokenizer(outputs / "tokenizer")
    ids = tokenizer.encode("A 東京 😀 zebra", add_special_tokens=False).ids
    reader = TokenReader(outputs / "tokenizer")
    assert reader.text(ids) == "A 東京 😀 zebra"
    for most in range(1, len(ids)):
        assert re.fullmatch(r"A( 東京?)?( 😀)?( z\w*)? …", reader.text(ids, most))
