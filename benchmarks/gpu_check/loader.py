"""Stage about the data path alone: pairs and tokens a second that one process makes ready, with its thread ahead."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.gpu_check.stage import Results
from pretrain.bench.synthetic import write_train_manifest
from pretrain.data.masking import Vocabulary
from pretrain.data.order import Cursor
from pretrain.data.pairing import PairingSettings
from pretrain.data.reader import TRAIN_SPLIT, PairReader
from pretrain.data.stream import PairStream
from tokenization.indexed import IndexedWriter
from tokenization.manifest import Manifest, ShardInfo, load_manifest

SENTENCES, MEDIAN_TOKENS, SIGMA = 25, 21.0, 0.6
BATCH_PAIRS = {128: 256, 512: 64}
SECONDS = 4.0
SPECIALS = (0, 1, 2, 3, 4)


def loader(results: Results) -> None:
    """Go through global batches of pairs of 128 and of 512."""
    on_cuda = results.device.type == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Vocabulary(
            size=results.scale.word_ids, pad_id=0, cls_id=2, sep_id=3, mask_id=4, special_ids=SPECIALS
        )
        manifest = write_shards(Path(folder), results.scale.documents, vocabulary.size)
        seconds = SECONDS if on_cuda else SECONDS / 4
        said = []
        for seq_len, num_pairs in BATCH_PAIRS.items():
            reader = PairReader(
                manifest=manifest,
                split=TRAIN_SPLIT,
                pairing=PairingSettings(seed=1, seq_len=seq_len, short_seq_prob=0.1, nsp=True),
                mlm_probability=0.15,
                vocabulary=vocabulary,
            )
            stream = PairStream(
                reader=reader,
                train_batch_size=num_pairs,
                train_micro_batch_size_per_gpu=num_pairs,
                gradient_accumulation_steps=1,
                rank=0,
                world_size=1,
                pad_to_multiple=seq_len,
                mask_multiple=64,
                pin_memory=on_cuda,
            )
            found = results.attempt(f"seq_len {seq_len}", partial(rates, stream, seconds))
            if found:
                said.append(f"{seq_len}: {found['pairs_per_second']:,} pairs/s")
        results.headline(", ".join(said) + " ready for training")


def rates(stream: PairStream, seconds: float) -> dict[str, float]:
    """Return pairs and tokens a second, epochs planned on the way included."""
    with stream.iterate(Cursor()) as batches:
        # The first epoch and a batch of the next: all is compiled then.
        for _ in range(stream.reader.num_pairs(0) // stream.train_batch_size + 1):
            (first,), _ = next(batches)
        pairs = tokens = 0
        begin = time.perf_counter()
        while (passed := time.perf_counter() - begin) < seconds:
            (micro_batch,), _ = next(batches)
            pairs += micro_batch.num_pairs
            tokens += micro_batch.num_tokens
    mean = first.num_tokens / first.num_pairs
    return {
        "pairs_per_second": round(pairs / passed),
        "tokens_per_second": round(tokens / passed),
        "mean_tokens": round(mean, 1),
    }


def write_shards(directory: Path, num_documents: int, vocab_size: int) -> Manifest:
    """Write a shard of random ids: sentences of about 25 tokens, documents of 25 sentences.

    Args:
        directory: an empty folder.
        num_documents: in the train split.
        vocab_size: ids stay below, and above the special ones.
    """
    draw = np.random.default_rng(0)
    lengths = np.rint(draw.lognormal(np.log(MEDIAN_TOKENS), SIGMA, num_documents * SENTENCES)).clip(1).astype(np.int32)
    prefix = directory / "train-00000"
    with IndexedWriter(prefix, np.int16) as writer:
        ids = draw.integers(len(SPECIALS), vocab_size, int(lengths.sum()), dtype=np.int16)
        writer.add_documents(ids, lengths, np.full(num_documents, SENTENCES))
        counts = writer.close()
    write_train_manifest(directory, ShardInfo.of(prefix, counts), "0" * 64, vocab_size, np.int16)
    return load_manifest(directory)
