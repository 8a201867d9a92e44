"""Nothing is said that is only so because a damaged shard is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pretrain.audit.figures import Overlap
from pretrain.audit.findings import find
from tests.pretrain.audit.test_findings import CLEAN, lengths, train, validation, vocabulary

SUMS = {  # what may be due to a missing shard of a split: not said where one is damaged
    "no_training_text": (train(documents=0), ("train",)),
    "one_long_document": (train(document_tokens=lengths(500.0, 13_000_000)), ("train",)),
    "nsp_documents": (train(documents=1), ("train",)),
    "small_corpus": (train(tokens=900_000), ("train",)),
    "unused_tokens": (vocabulary(unused=9100), ("train",)),
    "validation_empty": (validation(documents=0), ("validation",)),
    "validation_nsp": (validation(documents=1), ("validation",)),
    "validation_large": (validation(tokens=6_000_000), ("train", "validation")),
    "overlap_sentences": (replace(CLEAN, overlap=Overlap(0, 0.21)), ("train", "validation")),
    "dropped": (replace(CLEAN, dropped={"short documents": 60_000}), ("train", "validation")),
    "repaired": (replace(CLEAN, repaired={"bad bytes": 2000}), ("train", "validation")),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_nothing_is_concluded_from_what_a_damaged_shard_lacks(name, split):
    audit, silent = SUMS[name]
    assert name in {finding.name for finding in find(audit)}
    damaged = {finding.name for finding in find(replace(audit, damaged=("x",), incomplete=(split,)))}
    assert (name in damaged) == (split not in silent)
    assert "damaged" in damaged


def test_what_sound_shards_share_is_the_least():
    audit = replace(CLEAN, overlap=Overlap(3, 0.0), damaged=("x",), incomplete=("train",))
    texts = {finding.name: finding.text for finding in find(audit)}
    assert texts["overlap_documents"].startswith("at least 3 documents stand in both splits")
    assert "1 shards are damaged, and in no figure: x" == texts["damaged"]


def test_unknown_ids_without_a_train_split():
    audit = replace(validation(unknown_ids=2), vocabulary=None)
    assert "2 token ids are no token of the tokenizer" in {finding.text for finding in find(audit)}
