from __future__ import annotations

import math

import pytest

from demo.run import unigram_entropy
from tokenization.indexed import IndexedReader
from tokenization.manifest import load_manifest


def test_unigram_entropy_is_that_of_the_validation_tokens(shard_dir):
    manifest = load_manifest(shard_dir)
    counts: dict[int, int] = {}
    for shard in manifest.splits["validation"].shards:
        for token in IndexedReader(shard_dir / shard.name).tokens.tolist():
            counts[token] = counts.get(token, 0) + 1
    total = sum(counts.values())
    assert total == manifest.splits["validation"].tokens
    expected = -sum(count / total * math.log(count / total) for count in counts.values())
    assert unigram_entropy(manifest) == pytest.approx(expected, rel=1e-12)
