"""Small corpora for the tests of the data path: documents of random tokens, written as real shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.data.masking import Vocabulary
from pretrain.data.pairing import PairingSettings
from pretrain.data.reader import PairReader
from pretrain.data.store import SentenceIndex
from runtime.files import write_json
from tokenization.indexed import IndexedWriter
from tokenization.manifest import Manifest, ShardInfo, SplitInfo, load_manifest

Corpus = Sequence[Sequence[Sequence[int]]]  # documents of sentences of token ids


class Corpora:
    """Makes corpora, shards and readers. Ids 0 to 4 are [PAD] [UNK] [CLS] [SEP] [MASK]."""

    unk_id = 1
    vocabulary = Vocabulary(size=30_522, pad_id=0, cls_id=2, sep_id=3, mask_id=4, special_ids=(0, 1, 2, 3, 4))

    def random(
        self,
        seed: int,
        documents: int,
        *,
        sentences: tuple[int, int] = (10, 30),
        tokens: tuple[int, int] = (3, 40),
    ) -> list[list[list[int]]]:
        """Return documents of random sizes (both ends included), of ids that are not special."""
        generator = np.random.default_rng(seed)

        def sentence() -> list[int]:
            size = generator.integers(tokens[0], tokens[1] + 1)
            return generator.integers(5, self.vocabulary.size, size).tolist()

        return [
            [sentence() for _ in range(generator.integers(sentences[0], sentences[1] + 1))] for _ in range(documents)
        ]

    def write(
        self,
        directory: Path,
        train: Sequence[Corpus],
        validation: Sequence[Corpus] = (),
        dtype: Any = np.uint16,
    ) -> Manifest:
        """Write one shard for each corpus of a split, and the manifest."""
        directory.mkdir(parents=True, exist_ok=True)
        splits = {}
        for split, corpora in {"train": train, "validation": validation}.items():
            shards = [
                self._shard(directory / f"{split}-{number:05d}", corpus, dtype) for number, corpus in enumerate(corpora)
            ]
            splits[split] = SplitInfo.of(tuple(shards))
        self.write_manifest(directory, splits, np.dtype(dtype).name)
        return load_manifest(directory)

    def write_manifest(self, directory: Path, splits: Mapping[str, SplitInfo], dtype: str) -> None:
        """Write a manifest.json."""
        value = {
            "format": "zerobert-shards",
            "version": 1,
            "tokenizer": {"fingerprint": "0" * 64, "vocab_size": self.vocabulary.size},
            "dtype": dtype,
            "splits": {name: asdict(split) for name, split in splits.items()},
            "sources": [],
            "settings": {},
            "dropped": {},
            "text_bytes": 0,
        }
        write_json(directory / "manifest.json", value)

    def _shard(self, prefix: Path, corpus: Corpus, dtype: Any) -> ShardInfo:
        with IndexedWriter(prefix, dtype) as writer:
            for document in corpus:
                writer.add_document(document)
            counts = writer.close()
        return ShardInfo.of(prefix, counts)

    def index(self, sentence_lengths: Sequence[Sequence[int]]) -> SentenceIndex:
        """Return the index of documents given by their sentences' lengths, without files."""
        lengths = [length for document in sentence_lengths for length in document]
        arrays = [
            np.concatenate([[0], np.cumsum(values)]).astype(np.int64)
            for values in (lengths, [len(document) for document in sentence_lengths], [sum(lengths)])
        ]
        for array in arrays:
            array.setflags(write=False)
        return SentenceIndex(*arrays)

    def reader(self, manifest: Manifest, split: str = "train", **changes: Any) -> PairReader:
        """Return a reader of short pairs (seq_len 32); `changes` are fields of either class."""
        pairing = {"seed": 1234, "seq_len": 32, "short_seq_prob": 0.1, "nsp": True}
        pairing.update({name: changes.pop(name) for name in list(changes) if name in pairing})
        fields = {"mlm_probability": 0.15, "vocabulary": self.vocabulary, **changes}
        return PairReader(manifest=manifest, split=split, pairing=PairingSettings(**pairing), **fields)


@pytest.fixture(scope="session")
def corpora() -> Corpora:
    """Maker of corpora."""
    return Corpora()


@pytest.fixture(scope="session")
def manifest(corpora: Corpora, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Four train shards of 12 documents, and one validation shard."""
    train = [corpora.random(seed, 12, tokens=(3, 20)) for seed in range(4)]
    return corpora.write(tmp_path_factory.mktemp("shards"), train, [corpora.random(9, 6, tokens=(3, 20))])
