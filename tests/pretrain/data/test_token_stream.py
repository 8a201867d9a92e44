"""A stream by hand, its counts, and what its compiled code is kept for."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.data import masking, store
from pretrain.data.token_stream import IGNORE_INDEX, BatchCounts, empty_stream, read_pairs
from tokenization.manifest import Manifest


def test_streams_by_hand(corpora: Any, tmp_path: Path) -> None:
    # two documents: a pair of 3 + 4 tokens behind [CLS], and one of 4 + 3
    text = [[[11, 12, 13], [14, 15, 16, 17]], [[21, 22, 23, 24], [25, 26, 27]]]
    reader = corpora.reader(corpora.write(tmp_path, [text]), nsp=False, short_seq_prob=0.0)
    both = np.arange(reader.num_pairs(0))
    assert len(both) == 2
    stream = reader.read(np.zeros_like(both), both, pad_to_multiple=16, mask_multiple=4)
    ids = stream.input_ids.copy()
    ids[stream.masked_positions[:2]] = stream.labels[:2]
    assert ids.tolist() == [2, *range(11, 18), 3, 2, *range(21, 28), 3, *[0] * 14]
    assert stream.position_ids.tolist() == [*range(9), *range(9), *range(14)]
    assert stream.cu_seqlens.tolist() == [0, 9, 18, 32]
    assert stream.masked_positions[2:].tolist() == [0, 0]
    assert stream.labels[2:].tolist() == [IGNORE_INDEX] * 2
    assert stream.next_sentence_label.tolist() == [IGNORE_INDEX] * 2


def test_counts_by_hand(corpora: Any, manifest: Manifest) -> None:
    lengths = np.array([32, 10, 4])
    # 0.15 x 32 = 4.8, 0.15 x 10 = 1.5 to the even, at least 1
    assert corpora.reader(manifest).count(lengths) == BatchCounts(5 + 2 + 1, 3, 46, 1024 + 100 + 16)


@pytest.mark.parametrize(("multiples", "sizes"), [((1, 1), (46, 8, 4)), ((8, 4), (48, 8, 5)), ((23, 3), (46, 9, 5))])
def test_sizes_of_an_empty_stream(multiples: tuple[int, int], sizes: tuple[int, int, int]) -> None:
    stream = empty_stream(BatchCounts(8, 3, 46, 0), *multiples, pad_id=7)
    assert (len(stream.input_ids), len(stream.labels), len(stream.cu_seqlens)) == sizes
    assert len(stream.next_sentence_label) == 3
    assert stream.input_ids[46:].tolist() == [7] * (sizes[0] - 46)


def test_code_is_compiled_anew_when_what_it_calls_has_changed() -> None:
    sources = b"".join(Path(module.__file__ or "").read_bytes() for module in (masking, store))
    assert hashlib.sha256(sources).hexdigest()[:12] in read_pairs.__qualname__
