"""How many pairs and tokens an epoch has: from a plan on disk, from planning some of the text, or estimated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pretrain.data.pairing import PairingSettings, plan_documents
from pretrain.data.plan import EpochPlan, PlanKey
from pretrain.data.reader import TRAIN_SPLIT
from pretrain.data.store import SentenceIndex
from pretrain.recipe import Recipe
from runtime.command import ConfigError
from runtime.files import read_json
from tokenization.manifest import Manifest

SAMPLE_SENTENCES = 1 << 18
"""Sentences that are planned at the most; what they give is scaled to the split."""


@dataclass(frozen=True)
class EpochCounts:
    """What an epoch of the train split has."""

    pairs: float
    tokens: float
    """Of all pairs, specials counted."""
    text_tokens: int
    """On disk."""
    source: str
    """Whether it was counted or estimated, for people."""
    is_exact: bool

    @property
    def tokens_of_pair(self) -> float:
        """Mean tokens of a pair."""
        return self.tokens / max(1.0, self.pairs)


def pairing_of(recipe: Recipe) -> PairingSettings:
    """Return what decides the pairs of the train split."""
    data = recipe.data
    return PairingSettings(
        seed=recipe.training.seed, seq_len=data.seq_len, short_seq_prob=data.short_seq_prob, nsp=data.nsp
    )


def count_epoch(manifest: Manifest, recipe: Recipe, plans_dir: Path | None, *, may_plan: bool) -> EpochCounts:
    """Return the counts of the first epoch; others differ by chance alone.

    Args:
        manifest: of the shards.
        recipe: of the run.
        plans_dir: where a run keeps its plans, if there is one.
        may_plan: whether some of the text may be planned, which takes a second or two.
    """
    found = None if plans_dir is None else _from_plan(manifest, recipe, plans_dir)
    if found is None and may_plan:
        try:
            found = _from_sample(manifest, recipe)
        except (ConfigError, OSError, ValueError):
            found = None  # training's own check says what is wrong
    return found or rough_epoch(manifest, recipe)


def rough_epoch(manifest: Manifest, recipe: Recipe) -> EpochCounts:
    """Return an estimate from the manifest's counts alone."""
    split, pairing = manifest.splits[TRAIN_SPLIT], pairing_of(recipe)
    filled = pairing.seq_len - pairing.num_specials
    sentence = split.tokens / max(1, split.sentences)
    # A pair takes sentences until it is full, so half of one too many; with a random B, half of them are put back.
    taken = min(filled + sentence / 2, max(1.0, split.tokens / max(1, split.documents)))
    if pairing.nsp and taken > sentence:
        taken *= 0.75
    pairs = max(1.0, split.tokens / taken)
    mean = pairing.seq_len * (1 - recipe.data.short_seq_prob / 2)
    return EpochCounts(pairs, pairs * mean, split.tokens, "estimated from the manifest's tokens", is_exact=False)


def _from_plan(manifest: Manifest, recipe: Recipe, plans_dir: Path) -> EpochCounts | None:
    key = PlanKey(manifest.fingerprint, TRAIN_SPLIT, pairing_of(recipe), 0)
    for path in sorted(plans_dir.glob(f"{key.family}-epoch*/plan.json")):
        values = read_json(path)
        return EpochCounts(
            values["pairs"],
            values["tokens"],
            manifest.splits[TRAIN_SPLIT].tokens,
            f"counted: {path.parent.name}",
            is_exact=True,
        )
    return None


def _from_sample(manifest: Manifest, recipe: Recipe) -> EpochCounts | None:
    split, pairing = manifest.splits[TRAIN_SPLIT], pairing_of(recipe)
    if split.sentences > 100 * SAMPLE_SENTENCES:
        return None  # opening the index would take minutes
    index = SentenceIndex.open(manifest, TRAIN_SPLIT)
    last = int(np.searchsorted(index.document_starts, SAMPLE_SENTENCES, side="right")) - 1
    last = max(1, min(last, index.num_documents))
    columns = plan_documents(index, pairing, 0, (0, last))
    plan = EpochPlan(columns, pairing.num_specials)
    planned = int(index.sentence_offsets[index.document_starts[last]])
    scale = split.tokens / max(1, planned)
    is_exact = last == index.num_documents
    source = "counted" if is_exact else f"estimated from the first {last:,} documents"
    return EpochCounts(
        plan.num_pairs * scale, float(plan.pair_tokens().sum()) * scale, split.tokens, source, is_exact=is_exact
    )
