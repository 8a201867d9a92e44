"""Pairs to token streams: the tokens of the text, and what a reader refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.data.pairing import PairingSettings
from runtime.command import ConfigError
from tokenization.manifest import Manifest


def test_tokens_are_those_of_the_text(corpora: Any, tmp_path: Path) -> None:
    shards = [corpora.random(seed, 4) for seed in range(3)]
    manifest = corpora.write(tmp_path, shards)
    text = [token for corpus in shards for document in corpus for sentence in document for token in sentence]
    reader = corpora.reader(manifest)
    columns = reader.plan(0).columns
    for pair in range(0, reader.num_pairs(0), 7):
        stream = reader.read(np.array([0]), np.array([pair]))
        ids = stream.input_ids.copy()
        ids[stream.masked_positions] = stream.labels
        a, b = int(columns.a_start[pair]), int(columns.b_start[pair])
        a_tokens, b_tokens = text[a : a + columns.a_length[pair]], text[b : b + columns.b_length[pair]]
        assert ids.tolist() == [2, *a_tokens, 3, *b_tokens, 3]
        assert stream.next_sentence_label.tolist() == [columns.next_sentence_label[pair]]


def test_pruning_keeps_the_epochs_needed(corpora: Any, manifest: Manifest, tmp_path: Path) -> None:
    reader = corpora.reader(manifest, cache_dir=tmp_path)
    names = []
    for epoch in range(3):
        reader.num_pairs(epoch)
        names.append(reader.plan_key(epoch).folder_name)
    assert [path.name for path in reader.prune(keep={2})] == names[:2]
    assert (tmp_path / names[2]).is_dir()
    assert corpora.reader(manifest).prune(keep=()) == []


def test_readers_refuse_what_does_not_fit(corpora: Any, manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="made with 30522 tokens, the tokenizer has 30528"):
        corpora.reader(manifest, vocabulary=replace(corpora.vocabulary, size=30_528))
    with pytest.raises(ConfigError, match=r"mlm_probability = 1.5"):
        corpora.reader(manifest, mlm_probability=1.5)
    with pytest.raises(ConfigError, match="no split 'test'"):
        corpora.reader(manifest, "test")
    one = corpora.write(tmp_path / "one", [corpora.random(1, 1)])
    with pytest.raises(ConfigError, match="split 'train': next-sentence prediction needs 2 documents"):
        corpora.reader(one)
    corpora.reader(one, nsp=False)


@pytest.mark.parametrize(("dtype", "token"), [(np.uint16, 30_522), (np.int32, -1)])
def test_unknown_tokens_in_a_shard_are_refused(corpora: Any, tmp_path: Path, dtype: Any, token: int) -> None:
    text = corpora.random(1, 2)
    text[0][0] = [token] * 40
    reader = corpora.reader(corpora.write(tmp_path, [text], dtype=dtype), nsp=False)
    every_pair = np.arange(reader.num_pairs(0))
    with pytest.raises(ConfigError, match=f"'train' holds token {token}; the tokenizer has 30522"):
        reader.read(np.zeros_like(every_pair), every_pair)


def test_settings_reach_the_plan(manifest: Manifest, corpora: Any) -> None:
    reader = corpora.reader(manifest, seq_len=64, short_seq_prob=0.0)
    assert reader.plan_key(2).settings == PairingSettings(seed=1234, seq_len=64, short_seq_prob=0.0, nsp=True)
    assert reader.plan(0).pair_tokens().max() == 64
