"""Both arms of `load` on a tiny text, and what stands before a ratio."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import harness, load, prepare
from benchmarks.harness import UnequalError

WORDS = ["the", "fox", "dog", "sees", "and", "a", "cat", ".", *"bcdefghijklmnopqrstuvwxyz"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
DOCUMENTS = [
    [f"The fox sees {'a dog and ' * (number % 5)} {WORDS[8 + (number * document) % 25]} cat." for number in range(50)]
    for document in range(60)
]
EPOCHS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("load")
    vocabulary = path / "vocab.txt"
    vocabulary.write_text("".join(f"{token}\n" for token in VOCABULARY), encoding="utf-8")
    prepare.write_text(DOCUMENTS, path / "text.txt")
    tokenizer_dir = prepare.write_tokenizer(vocabulary, path / "tokenizer")
    prepare.make_shards(path / "text.txt", tokenizer_dir, path / "shards")
    return path


@pytest.fixture(scope="module")
def ours(folder: Path) -> load.Ours:
    return load.open_ours(folder, EPOCHS)


@pytest.fixture(scope="module")
def peer(folder: Path, ours: load.Ours) -> load.Peer:
    for epoch in range(EPOCHS):
        load.write_rows(ours, folder / "rows" / str(epoch), epoch)
    return load.open_peer(folder / "rows", folder / "tokenizer", EPOCHS)


@pytest.mark.timeout(120)
def test_both_arms_give_the_same(ours: load.Ours, peer: load.Peer):
    load.check_rows(ours, peer)
    own, theirs = ours.run(EPOCHS), peer.run(EPOCHS)
    expected = sum(ours.reader.num_pairs(epoch) // 64 * 64 for epoch in range(EPOCHS))
    assert own.pairs == theirs.pairs == expected > 0
    assert load.check_totals(own, theirs).startswith("the rows of an epoch; ")
    assert 0.14 < own.masked / own.tokens < 0.16


@pytest.mark.timeout(120)
def test_other_rows_are_refused(ours: load.Ours, peer: load.Peer):
    with pytest.raises(UnequalError, match=r"the peer: .* rows are not those of the shards"):
        load.check_rows(ours, load.Peer(peer.loaders[1:]))


def test_other_totals_are_refused():
    assert load.check_totals(load.Totals(64, 6400, 960), load.Totals(64, 6400, 930))
    with pytest.raises(UnequalError, match="64 pairs, the peer has 63"):
        load.check_totals(load.Totals(64, 6400, 960), load.Totals(63, 6300, 945))
    with pytest.raises(UnequalError, match=r"0\.1500 of the tokens masked, the peer has 0\.1200"):
        load.check_totals(load.Totals(64, 6400, 960), load.Totals(64, 6400, 768))


@pytest.mark.timeout(120)
def test_the_comparison_is_reported(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    options = harness.parser("load", "").parse_args(["--goal", "0"])
    # a folder of its own for the rows, that the other tests' are not written twice
    for name in ("shards", "tokenizer"):
        (tmp_path / name).symlink_to(folder / name)
    report = harness.Report("load", options)
    load.compare(report, tmp_path, 1)
    assert report.finish() == 0
    assert "batches of 64 pairs, seq_len 128" in capsys.readouterr().out
