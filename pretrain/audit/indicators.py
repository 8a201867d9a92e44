"""Figures that the rules of `findings` look at, and how they are put into words."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pretrain.audit.figures import Audit, Overlap, share
from pretrain.audit.masks import MaskFigures
from pretrain.audit.repeats import Repeats

RANDOM_SHARE_BAND = (0.45, 0.60)
LONG_DOCUMENT_SENTENCES = 10
"""Mean sentences of documents from which on the band above is due."""
MASK_SHARES = {"masked_share": 0.8, "kept_share": 0.1, "random_share": 0.1}
MASK_TOLERANCE = 0.01
_SIGMAS = 4.0


def percent(value: float) -> str:
    """Return a share as "12.3 %"; a small one keeps two digits that say something."""
    if value == 0:
        return "0 %"
    digits = 1 if value >= 0.01 else min(6, 1 - math.floor(math.log10(value * 100)))
    return f"{100 * value:.{digits}f} %"


def both(audit: Audit, name: str) -> int:
    """Return a count summed over the splits."""
    return sum(int(getattr(split, name)) for split in audit.splits.values())


def is_whole(audit: Audit, *splits: str) -> bool:
    """Return whether all shards of some splits, or of all, are sound, so that sums say something."""
    return not any(name in audit.incomplete for name in splits or audit.splits)


def longest_share(audit: Audit) -> float:
    """Return the share of the train split's tokens that stand in its longest document."""
    return share(audit.train.document_tokens.longest, audit.train.tokens)


def mask_distance(masks: MaskFigures) -> float:
    """Return by how much the worst of the three shares misses, in tolerances.

    The tolerance is 0.01, and wider where so few masks were drawn that chance alone passes it.
    """
    distances = []
    for name, wanted in MASK_SHARES.items():
        chance = _SIGMAS * math.sqrt(wanted * (1 - wanted) / max(masks.predictions, 1))
        distances.append(abs(float(getattr(masks, name)) - wanted) / max(MASK_TOLERANCE, chance))
    return max(distances)


def random_excess(audit: Audit) -> float | None:
    """Return by how much the share of random pairs of long documents leaves its band, beyond what chance does."""
    pairs = audit.pairs.get("train")
    if pairs is None or not audit.settings["nsp"] or audit.train.document_sentences.mean < LONG_DOCUMENT_SENTENCES:
        return None
    low, high = RANDOM_SHARE_BAND
    chance = _SIGMAS * math.sqrt(0.25 / max(pairs.pairs, 1))
    return max(low - chance - pairs.random_share, pairs.random_share - high - chance)


def random_of_short(audit: Audit) -> float | None:
    """Return the share of random pairs where documents are so short that there must be many."""
    pairs = audit.pairs.get("train")
    if pairs is None or not audit.settings["nsp"] or audit.train.document_sentences.mean >= LONG_DOCUMENT_SENTENCES:
        return None
    return pairs.random_share


def top_share(audit: Audit) -> float | None:
    """Return the share of the most frequent token."""
    return audit.vocabulary.most_frequent[0].share if audit.vocabulary and audit.vocabulary.most_frequent else None


def top_text(audit: Audit) -> str:
    """Name the most frequent token."""
    assert audit.vocabulary is not None
    top = audit.vocabulary.most_frequent[0]
    return f"one token, {top.token!r}, is {percent(top.share)} of the train split"


def pairs_sum(audit: Audit, name: str) -> int | None:
    """Return a count of pairs summed over the splits."""
    return sum(int(getattr(pairs, name)) for pairs in audit.pairs.values()) if audit.pairs else None


def masks_text(audit: Audit) -> str:
    """Say what became of the predictions."""
    masks = audit.masks
    assert masks is not None
    return (
        f"of {masks.predictions:,} chosen tokens {percent(masks.masked_share)} became [MASK], "
        f"{percent(masks.kept_share)} stayed, {percent(masks.random_share)} were replaced; 80, 10 and 10 % are due"
    )


def mask_places_text(audit: Audit) -> str:
    """Say what was predicted or put in that never may be."""
    masks = audit.masks
    assert masks is not None
    return (
        f"of {masks.predictions:,} predictions {masks.special_hits:,} are on a pair's own [CLS] or [SEP]; "
        f"{masks.bad_replacements:,} replacements are special or no token"
    )


def prediction_share(audit: Audit) -> float:
    """Return the share of tokens predicted."""
    assert audit.masks is not None
    return audit.masks.prediction_share


def which_has(audit: Audit) -> str:
    """Return the size of the tokenizer as a clause; it is known where there is a train split."""
    return f", which has {audit.vocabulary.size:,}" if audit.vocabulary else ""


def unused_share(audit: Audit) -> float | None:
    """Return the share of the vocabulary that the train split never uses."""
    if audit.vocabulary is None or not is_whole(audit, "train"):
        return None
    return share(audit.vocabulary.unused, audit.vocabulary.size)


def unused_text(audit: Audit) -> str:
    """Say how much of the vocabulary is never used."""
    assert audit.vocabulary is not None
    unused, size = audit.vocabulary.unused, audit.vocabulary.size
    part = percent(share(unused, size))
    return f"{unused:,} of {size:,} tokens ({part}) never stand in the train split: nothing is learned of them"


def overlap(audit: Audit) -> Overlap:
    """Return what stands in both splits."""
    assert audit.overlap is not None
    return audit.overlap


def about(repeats: Repeats) -> str:
    """Return the share of repeated things as text; says where it is an estimate."""
    return f"{'about ' if repeats.is_estimate else ''}{percent(repeats.share)}"


def duplicate_sentences_text(audit: Audit) -> str:
    """Say how many sentences are repeated, and which one the most."""
    text = f"{about(audit.train.duplicate_sentences)} of the sentences repeat another one"
    if not audit.train.most_repeated:
        return text
    top = audit.train.most_repeated[0]
    return f"{text}; the most frequent stands there {top.count:,} times: {top.text!r}"


def counts(by_reason: Mapping[str, int]) -> str:
    """Return counts by reason as text, those of 0 left out."""
    return ", ".join(f"{count:,} {reason}" for reason, count in by_reason.items() if count) or "nothing"
