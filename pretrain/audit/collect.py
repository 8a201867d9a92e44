"""From a folder of shards to all figures of its audit.

1. Every shard is hashed and measured (`measure`); finished shards are kept in the work folder.
2. What they hold is added up by split, repeated documents and sentences are joined over the shards (`repeats`).
3. An epoch is planned for each split and compared with the text (`pairs`).
4. Masks are drawn, and a few pairs decoded (`masks`, `samples`).

Damaged shards are left out of 1 and 2, and there are no 3 and 4 of a split that has one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from pretrain.audit.figures import (
    Audit,
    Overlap,
    RepeatedSentence,
    SplitFigures,
    TokenCount,
    VocabularyFigures,
)
from pretrain.audit.lengths import NUM_BINS, Lengths, summarize
from pretrain.audit.masks import draw_masks
from pretrain.audit.measure import TOTALS, Rules, ShardMeasure, measure_shard
from pretrain.audit.pairs import PairFigures, measure_pairs
from pretrain.audit.reading import TokenReader, visible
from pretrain.audit.repeats import (
    MOST_SAMPLED,
    SentenceTable,
    document_repeats,
    most_repeated_places,
    sample_bits_for,
    sentence_repeats,
    shared_documents,
    shared_sentence_share,
)
from pretrain.audit.samples import draw_samples
from pretrain.audit.settings import AuditSettings
from pretrain.audit.work import has_measure, key_of, provide_measure
from pretrain.data.pairing import MIN_DOCUMENTS_NSP
from pretrain.data.reader import PairReader
from pretrain.data.store import SentenceIndex
from pretrain.tokenizer import TokenizerInfo
from runtime.command import ConfigError
from runtime.progress import Progress
from tokenization.indexed import IndexedReader, bin_path, idx_path
from tokenization.manifest import Manifest, ShardInfo, SplitInfo, verify

logger = logging.getLogger(__name__)

_IN_MEMORY_SENTENCES = 1 << 20
_MOST_REPEATED = 10
_MOST_FREQUENT = 15
_MOST_RANKS = 120


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is audited.

    Attributes:
        manifest: The shards'.
        tokenizer_dir: The tokenizer folder.
        tokenizer: What is known of it.
        settings: Those of the training that is to come.
        work_dir: Work folder of this audit.
    """

    manifest: Manifest
    tokenizer_dir: Path
    tokenizer: TokenizerInfo
    settings: AuditSettings
    work_dir: Path


@dataclass(frozen=True)
class _Measured:
    """The sound shards of a split, and their measures."""

    shards: tuple[ShardInfo, ...]
    measures: tuple[ShardMeasure, ...]


def collect(subject: Subject) -> Audit:
    """Take all figures.

    Raises:
        ConfigError: A file is missing, or the shards are none.
    """
    manifest = subject.manifest
    total = sum(split.sentences for split in manifest.splits.values())
    bits = sample_bits_for(total, MOST_SAMPLED)
    measured, damaged = _measure_all(subject, bits)
    tables = {name: SentenceTable(part.measures) for name, part in measured.items()}
    reader = TokenReader(subject.tokenizer_dir)
    splits = {name: _split(subject, reader, part, tables[name], bits) for name, part in measured.items()}
    train, validation = measured["train"].measures, measured["validation"].measures
    overlap = None
    if train and validation:
        overlap = Overlap(
            shared_documents(train, validation), shared_sentence_share(tables["train"], tables["validation"])
        )
    pairs, not_paired, readers = _pair_all(subject, splits, damaged)
    logger.info("drawing masks")
    settings = subject.settings
    return Audit(
        shards_dir=visible(str(manifest.directory)),
        fingerprint=manifest.fingerprint,
        tokenizer_dir=visible(str(subject.tokenizer_dir)),
        settings={**asdict(settings.pairing), "mlm_probability": settings.mlm_probability},
        damaged=tuple(fault for faults in damaged.values() for fault in faults),
        incomplete=tuple(name for name, faults in damaged.items() if faults),
        splits=splits,
        overlap=overlap,
        vocabulary=_vocabulary(subject.tokenizer, reader, train) if train else None,
        pairs=pairs,
        not_paired=not_paired,
        masks=draw_masks(readers["train"], settings.num_draws) if "train" in readers else None,
        dropped=manifest.dropped,
        repaired=manifest.repaired,
        places=manifest.places,
        samples=draw_samples(readers["train"], reader, settings.num_samples) if "train" in readers else (),
    )


def rules_of(tokenizer: TokenizerInfo, settings: AuditSettings) -> Rules:
    """Return what is counted in the text."""
    vocabulary = tokenizer.vocabulary
    is_special = vocabulary.is_special.copy()
    unk_id = tokenizer.token_ids["[UNK]"]
    is_special[unk_id] = False
    return Rules(vocabulary.size, unk_id, settings.max_tokens, is_special)


def _measure_all(subject: Subject, bits: int) -> tuple[dict[str, _Measured], dict[str, list[str]]]:
    """Return the measures of the sound shards by split, and what is wrong with each of the others, by split too."""
    manifest = subject.manifest
    rules = rules_of(subject.tokenizer, subject.settings)
    keys = {
        shard.name: _shard_key(manifest, shard, subject, bits)
        for split in manifest.splits.values()
        for shard in split.shards
    }
    done = sum(
        shard.bytes
        for split in manifest.splits.values()
        for shard in split.shards
        if has_measure(subject.work_dir, keys[shard.name])
    )
    if done:
        logger.info("%s: going on with an earlier audit", subject.work_dir)
    total = sum(shard.bytes for split in manifest.splits.values() for shard in split.shards)
    damaged: dict[str, list[str]] = {name: [] for name in manifest.splits}
    measured = {}
    with Progress("auditing", total, start=done) as progress:
        for name, split in manifest.splits.items():
            shards: list[ShardInfo] = []
            measures: list[ShardMeasure] = []
            for shard in split.shards:

                def measure(shard: ShardInfo = shard) -> ShardMeasure:
                    return _measure_one(manifest, shard, rules, bits, progress)

                try:
                    measures.append(provide_measure(subject.work_dir, keys[shard.name], measure))
                    shards.append(shard)
                except ConfigError as error:
                    damaged[name].append(visible(str(error)))
                    progress.advance(shard.bytes)
            measured[name] = _Measured(tuple(shards), tuple(measures))
    return measured, damaged


def _measure_one(manifest: Manifest, shard: ShardInfo, rules: Rules, bits: int, progress: Progress) -> ShardMeasure:
    verify(replace(manifest, splits={"": SplitInfo.of((shard,))}))
    return measure_shard(manifest.directory / shard.name, rules, bits, progress.advance)


def _shard_key(manifest: Manifest, shard: ShardInfo, subject: Subject, bits: int) -> str:
    """Return what a shard's measures depend on; the times are in it, since a file may be damaged between two calls."""
    prefix = manifest.directory / shard.name
    times = [path.stat().st_mtime_ns for path in (bin_path(prefix), idx_path(prefix))]
    settings = subject.settings
    return key_of(asdict(shard), times, manifest.dtype, subject.tokenizer.fingerprint, settings.max_tokens, bits)


def _split(subject: Subject, reader: TokenReader, measured: _Measured, table: SentenceTable, bits: int) -> SplitFigures:
    """Add up the shards of a split."""
    measures = measured.measures
    zeros = np.zeros((1, len(TOTALS)), dtype=np.int64)
    table_of_totals = np.concatenate([zeros, *(measure.totals[None] for measure in measures)])
    sums = dict(zip(TOTALS, table_of_totals.sum(axis=0).tolist(), strict=True))
    longest = dict(zip(TOTALS, table_of_totals.max(axis=0).tolist(), strict=True))

    def lengths(name: str, total: str, most: str) -> Lengths:
        bins = sum((getattr(measure, name) for measure in measures), np.zeros(NUM_BINS, dtype=np.int64))
        return summarize(bins, sums[total], longest[most])

    return SplitFigures(
        **{name: sums[name] for name in TOTALS if not name.startswith("longest")},
        sentence_tokens=lengths("sentence_tokens", "tokens", "longest_sentence"),
        document_sentences=lengths("document_sentences", "sentences", "longest_document_sentences"),
        document_tokens=lengths("document_tokens", "tokens", "longest_document_tokens"),
        duplicate_documents=document_repeats(measures),
        duplicate_sentences=sentence_repeats(table, sums["sentences"], bits),
        most_repeated=_most_repeated(subject, reader, measured, table),
    )


def _most_repeated(
    subject: Subject, reader: TokenReader, measured: _Measured, table: SentenceTable
) -> tuple[RepeatedSentence, ...]:
    repeated = []
    for place in most_repeated_places(measured.measures, table, _MOST_REPEATED):
        shard = IndexedReader(subject.manifest.directory / measured.shards[place.shard].name)
        ids = shard.tokens[place.start : place.start + place.length].tolist()
        repeated.append(RepeatedSentence(reader.text(ids), place.count, place.is_least))
    return tuple(repeated)


def _vocabulary(tokenizer: TokenizerInfo, reader: TokenReader, train: Sequence[ShardMeasure]) -> VocabularyFigures:
    counts = np.zeros(tokenizer.size, dtype=np.int64)
    for measure in train:
        counts += measure.token_counts
    total = max(int(counts.sum()), 1)
    shares = counts[counts > 0] / total
    order = np.argsort(-counts, kind="stable")
    used = int((counts > 0).sum())
    ranks = np.unique(np.geomspace(1, max(used, 1), _MOST_RANKS).astype(np.int64))
    return VocabularyFigures(
        size=tokenizer.size,
        unused=int(((counts == 0) & ~tokenizer.vocabulary.is_special).sum()),
        entropy_nats=float(-(shares * np.log(shares)).sum()) + 0.0,
        most_frequent=tuple(
            TokenCount(reader.name(int(token)), int(counts[token]), float(counts[token] / total))
            for token in order[:_MOST_FREQUENT]
            if counts[token]
        ),
        ranks=tuple((int(rank), int(counts[order[rank - 1]])) for rank in ranks if used),
    )


def _pair_all(
    subject: Subject, splits: dict[str, SplitFigures], damaged: Mapping[str, Sequence[str]]
) -> tuple[dict[str, PairFigures], dict[str, str], dict[str, PairReader]]:
    """Plan an epoch of each split; return its figures, or why there are none, and the readers."""
    pairs: dict[str, PairFigures] = {}
    refused: dict[str, str] = {}
    readers: dict[str, PairReader] = {}
    for name, split in splits.items():
        reason = _why_not(split, subject, damaged[name])
        if reason:
            refused[name] = reason
            continue
        logger.info("planning an epoch of %s", name)
        cache_dir = subject.work_dir if split.sentences > _IN_MEMORY_SENTENCES else None
        readers[name] = PairReader(
            manifest=subject.manifest,
            split=name,
            pairing=subject.settings.pairing,
            mlm_probability=subject.settings.mlm_probability,
            vocabulary=subject.tokenizer.vocabulary,
            cache_dir=cache_dir,
        )
        index = SentenceIndex.open(subject.manifest, name, cache_dir)
        pairs[name] = measure_pairs(index, readers[name].plan(0), subject.settings.pairing)
    return pairs, refused, readers


def _why_not(split: SplitFigures, subject: Subject, damaged: Sequence[str]) -> str:
    """Return why the pairs of a split can't be made, or ""."""
    if damaged:
        return "shards of it are damaged"
    if split.documents == 0:
        return "the split is empty"
    if split.empty_sentences or split.empty_documents:
        return "there are documents or sentences without a token"
    if split.unknown_ids:
        return "there are ids that the tokenizer does not have"
    if subject.settings.pairing.nsp and split.documents < MIN_DOCUMENTS_NSP:
        return "next-sentence prediction needs 2 documents or more"
    return ""
