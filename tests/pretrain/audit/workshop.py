"""Tiny shards written by hand, and a tokenizer whose tokens try to become markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models

from pretrain.audit.collect import Subject, collect
from pretrain.audit.figures import Audit
from pretrain.audit.settings import AuditSettings
from pretrain.data.pairing import PairingSettings
from pretrain.tokenizer import load_tokenizer_info
from tokenization.indexed import IndexedWriter
from tokenization.manifest import (
    Contents,
    Manifest,
    ShardInfo,
    SplitInfo,
    load_manifest,
    tokenizer_fingerprint,
    write_manifest,
)

Corpus = Sequence[Sequence[Sequence[int]]]  # documents of sentences of token ids

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
UNK, SEP = 1, 3
HOSTILE = (
    "<script>alert(1)</script>",
    '"onload=',
    "'onerror='",
    "&amp;",
    "bell\x07",
    "esc\x1b[31m",
    "\u202eodd",
    "</bdi>",
)
FIRST_WORD = len(SPECIALS) + len(HOSTILE)
VOCAB_SIZE = 200


@dataclass
class Workshop:
    """Makes shards and audits them. Ids 5 to 12 are the hostile tokens, the others words w13 ... w199."""

    root: Path
    tokenizer_dir: Path
    made: int = 0

    def shards(
        self,
        train: Sequence[Corpus],
        validation: Sequence[Corpus] = (),
        dtype: Any = np.int16,
        **changes: Any,
    ) -> Path:
        """Write one shard for each corpus of a split; `changes` are fields of the manifest."""
        self.made += 1
        directory = self.root / f"shards-{self.made}"
        directory.mkdir()
        splits = {
            name: SplitInfo.of(
                tuple(
                    _shard(directory / f"{name}-{number:05d}", corpus, dtype) for number, corpus in enumerate(corpora)
                )
            )
            for name, corpora in {"train": train, "validation": validation}.items()
        }
        fields: dict[str, Any] = {
            "tokenizer_fingerprint": tokenizer_fingerprint(self.tokenizer_dir),
            "vocab_size": VOCAB_SIZE,
            "dtype": np.dtype(dtype).name,
            "splits": splits,
            "sources": [],
            "settings": {},
            "dropped": {},
            "repaired": {},
            "places": [],
            "text_bytes": 0,
        }
        write_manifest(directory, Contents(**{**fields, **changes}))
        return directory

    def audit(self, shards: Path | Manifest, **changes: Any) -> Audit:
        """Return the figures; `changes` are settings."""
        manifest = shards if isinstance(shards, Manifest) else load_manifest(shards)
        pairing = {"seed": 0, "seq_len": 128, "short_seq_prob": 0.1, "nsp": True}
        pairing.update({name: changes.pop(name) for name in list(changes) if name in pairing})
        settings = {"mlm_probability": 0.15, "num_draws": 2000, "num_samples": 4, **changes}
        self.made += 1
        work_dir = self.root / f"work-{self.made}"
        work_dir.mkdir()
        return collect(
            Subject(
                manifest=manifest,
                tokenizer_dir=self.tokenizer_dir,
                tokenizer=load_tokenizer_info(self.tokenizer_dir),
                settings=AuditSettings(pairing=PairingSettings(**pairing), **settings),
                work_dir=work_dir,
            )
        )


def _shard(prefix: Path, corpus: Corpus, dtype: Any) -> ShardInfo:
    with IndexedWriter(prefix, dtype) as writer:
        for document in corpus:
            writer.add_document(document)
        counts = writer.close()
    return ShardInfo.of(prefix, counts)


def write_tokenizer(directory: Path, size: int = VOCAB_SIZE) -> Path:
    words = [*SPECIALS, *HOSTILE]
    words += [f"##w{number}" if number % 3 == 0 else f"w{number}" for number in range(len(words), size)]
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    directory.mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def random_documents(seed: int, documents: int, sentences: tuple[int, int], tokens: tuple[int, int]) -> list[Any]:
    """Return documents of random sizes (both ends included) of words."""
    generator = np.random.default_rng(seed)

    def sentence() -> list[int]:
        size = generator.integers(tokens[0], tokens[1] + 1)
        return list(generator.integers(FIRST_WORD, VOCAB_SIZE, size).tolist())

    return [[sentence() for _ in range(generator.integers(sentences[0], sentences[1] + 1))] for _ in range(documents)]
