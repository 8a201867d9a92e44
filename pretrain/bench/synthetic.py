"""Random text in the project's own formats: a tokenizer and shards that exist for one measurement."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from pretrain.tokenizer import SPECIAL_TOKENS
from tokenization.indexed import IndexedWriter
from tokenization.manifest import Contents, ShardInfo, SplitInfo, tokenizer_fingerprint, write_manifest

VOCAB_SIZE = 30_522
"""Of BERT's published English vocabulary, where the recipe names no other."""

_DOCUMENTS = 64
_SENTENCES = 256  # of a document: 16,384 pairs an epoch in all


def write_tokenizer(directory: Path, vocab_size: int) -> None:
    """Write a tokenizer of words that nobody uses.

    Args:
        directory: made here.
        vocab_size: its tokens, 6 or more, the five special ones first.
    """
    words = [*SPECIAL_TOKENS, *(f"word{number}" for number in range(len(SPECIAL_TOKENS), vocab_size))]
    directory.mkdir()
    model = WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    Tokenizer(model).save(str(directory / "tokenizer.json"))


def write_shards(directory: Path, tokenizer_dir: Path, vocab_size: int, seq_len: int) -> None:
    """Write a train split of random tokens.

    A sentence has seq_len tokens, so each makes a pair that is cut to full length, with a random B.

    Args:
        directory: made here.
        tokenizer_dir: of the tokenizer that the ids belong to.
        vocab_size: tokens of that tokenizer, 6 or more.
        seq_len: tokens of a sentence.
    """
    directory.mkdir()
    dtype: type[np.int16 | np.int32] = np.int16 if vocab_size <= np.iinfo(np.int16).max + 1 else np.int32
    generator = np.random.default_rng(0)
    prefix = directory / "train-00000"
    with IndexedWriter(prefix, dtype) as writer:
        for _ in range(_DOCUMENTS):
            ids = generator.integers(len(SPECIAL_TOKENS), vocab_size, _SENTENCES * seq_len, dtype=dtype)
            writer.add_documents(ids, np.full(_SENTENCES, seq_len), np.array([_SENTENCES]))
        counts = writer.close()
    write_train_manifest(
        directory, ShardInfo.of(prefix, counts), tokenizer_fingerprint(tokenizer_dir), vocab_size, dtype
    )


def write_train_manifest(
    directory: Path, shard: ShardInfo, fingerprint: str, vocab_size: int, dtype: type[np.int16 | np.int32]
) -> None:
    """Write the manifest of one train shard that was made from no text.

    Args:
        directory: of the shard.
        shard: the only one.
        fingerprint: of the tokenizer.
        vocab_size: tokens of the tokenizer.
        dtype: of the ids.
    """
    write_manifest(
        directory,
        Contents(
            tokenizer_fingerprint=fingerprint,
            vocab_size=vocab_size,
            dtype=np.dtype(dtype).name,
            splits={"train": SplitInfo.of((shard,)), "validation": SplitInfo.of(())},
            sources=[],
            settings={},
            dropped={},
            repaired={},
            places=[],
            text_bytes=0,
        ),
    )
