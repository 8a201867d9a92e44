"""Random text in our own formats: what the readers of training make of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pretrain.bench.synthetic import write_shards, write_tokenizer
from pretrain.data.pairing import PairingSettings
from pretrain.data.reader import PairReader
from pretrain.tokenizer import load_tokenizer_info
from tokenization.manifest import load_manifest, verify


def reader_of(root: Path, *, vocab_size: int, seq_len: int, nsp: bool) -> PairReader:
    write_tokenizer(root / "tokenizer", vocab_size)
    write_shards(root / "shards", root / "tokenizer", vocab_size, seq_len)
    tokenizer, manifest = load_tokenizer_info(root / "tokenizer"), load_manifest(root / "shards")
    verify(manifest)
    assert tokenizer.fingerprint == manifest.tokenizer_fingerprint
    assert tokenizer.size == manifest.vocab_size == vocab_size
    return PairReader(
        manifest=manifest,
        split="train",
        pairing=PairingSettings(seed=1, seq_len=seq_len, short_seq_prob=0.0, nsp=nsp),
        mlm_probability=0.15,
        vocabulary=tokenizer.vocabulary,
    )


@pytest.mark.parametrize("nsp", [True, False])
@pytest.mark.parametrize(
    ("vocab_size", "seq_len", "dtype"), [(30_522, 64, "int16"), (32_769, 8, "int32"), (6, 8, "int16")]
)
def test_every_pair_is_of_full_length(tmp_path: Path, vocab_size: int, seq_len: int, dtype: str, nsp: bool):
    reader = reader_of(tmp_path, vocab_size=vocab_size, seq_len=seq_len, nsp=nsp)
    assert reader.manifest.dtype == dtype
    pairs = np.arange(reader.num_pairs(0))
    assert len(pairs) == 16_384
    assert (reader.pair_tokens(np.zeros_like(pairs), pairs) == seq_len).all()
    stream = reader.read(np.zeros(100, dtype=np.int64), pairs[:100])
    assert stream.labels.min() >= 5
    assert stream.labels.max() < vocab_size


def test_the_same_on_every_rank(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one, two = (reader_of(tmp_path / name, vocab_size=100, seq_len=16, nsp=True) for name in ("a", "b"))
    assert one.manifest.fingerprint == two.manifest.fingerprint
