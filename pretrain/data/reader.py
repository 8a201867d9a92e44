"""Any pairs of a split as a token stream, found by epoch and number."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pretrain.data.masking import MaskRules, Vocabulary, new_scratch, num_predictions
from pretrain.data.pairing import Columns, PairingSettings, check_documents, empty_columns
from pretrain.data.plan import (
    WAIT_SECONDS,
    EpochPlan,
    PlanKey,
    build_epoch_plan,
    open_epoch_plan,
    prune_plans,
)
from pretrain.data.store import SentenceIndex, TokenStore, split_of
from pretrain.data.token_stream import (
    IGNORE_INDEX,
    NO_TOKEN,
    BatchCounts,
    TokenStream,
    add_lengths,
    empty_stream,
    read_pairs,
    sum_lengths,
)
from runtime.command import ConfigError
from runtime.seeding import VALIDATION, compiled, derive_seed
from tokenization.manifest import Manifest

Int64Array = npt.NDArray[np.int64]

__all__ = ["IGNORE_INDEX", "TRAIN_SPLIT", "BatchCounts", "PairReader", "TokenStream"]

TRAIN_SPLIT = "train"


@dataclass(kw_only=True)
class PairReader:
    """Gives any pairs of a split by (epoch, number): what it returns depends on the pairs asked alone.

    It may be used from several threads.

    Attributes:
        manifest: The shard dir's manifest.
        split: "train", "validation", ...; all but "train" have random numbers of their own.
        pairing: What the pairs look like.
        mlm_probability: Share of the tokens to predict, above 0 and below 1.
        vocabulary: Facts of the tokenizer that made the shards.
        cache_dir: Folder of the epoch plans; None keeps them in memory (small corpora).
        build_plans: Whether this process builds a missing plan or waits for another one (with `cache_dir`
            only). One process of each host should build.
        wait_seconds: Longest wait for a plan.
    """

    manifest: Manifest
    split: str
    pairing: PairingSettings
    mlm_probability: float
    vocabulary: Vocabulary
    cache_dir: Path | None = None
    build_plans: bool = True
    wait_seconds: float = WAIT_SECONDS
    _plans: dict[int, EpochPlan] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check that the parts fit together, and map the shards.

        Raises:
            ConfigError: `mlm_probability` is out of range, the split is missing or too small, or the shards
                were made with a vocabulary of another size.
        """
        num_predictions([self.pairing.seq_len], self.mlm_probability)
        info = split_of(self.manifest, self.split)
        # here, and not where plans are built, so that no process waits for one that was refused
        check_documents(info.documents, self.pairing.nsp, f"{self.manifest.directory}: split {self.split!r}")
        if self.manifest.vocab_size != self.vocabulary.size:
            raise ConfigError(
                f"{self.manifest.directory}: made with {self.manifest.vocab_size} tokens, "
                f"the tokenizer has {self.vocabulary.size}"
            )
        self._settings = self.pairing
        if self.split != TRAIN_SPLIT:
            self._settings = replace(self.pairing, seed=derive_seed(self.pairing.seed, VALIDATION))
        self._store = TokenStore(self.manifest, self.split)
        self._rules = tuple(MaskRules.of(self.seed, self.vocabulary))

    @property
    def seed(self) -> int:
        """Seed of the split's own random numbers."""
        return self._settings.seed

    def plan_key(self, epoch: int) -> PlanKey:
        """Return what identifies the plan of an epoch."""
        return PlanKey(self.manifest.fingerprint, self.split, self._settings, epoch)

    def plan(self, epoch: int) -> EpochPlan:
        """Return the plan of an epoch; it stays open until `close_plans`.

        Raises:
            ConfigError: The shards are unfit; see `SentenceIndex.open`.
            TimeoutError: Another process should have built it, and has not.
        """
        with self._lock:
            plan = self._plans.get(epoch)
            if plan is None:
                plan = self._plans[epoch] = self._open_plan(epoch)
        return plan

    def num_pairs(self, epoch: int) -> int:
        """Return the number of pairs of an epoch."""
        return self.plan(epoch).num_pairs

    def close_plans(self, before_epoch: int) -> None:
        """Let go of the plans of earlier epochs."""
        with self._lock:
            self._plans = {epoch: plan for epoch, plan in self._plans.items() if epoch >= before_epoch}

    def prune(self, keep: Collection[int]) -> list[Path]:
        """Remove this split's plans from the disk, but for the epochs in `keep`; return the folders removed.

        To be called where no process of any host can still open the other epochs.
        """
        return [] if self.cache_dir is None else prune_plans(self.cache_dir, keep, self.plan_key(0))

    def pair_tokens(self, epochs: Int64Array, pairs: Int64Array) -> Int64Array:
        """Return the tokens of pairs, specials counted.

        Args:
            epochs: int64 (P,): epoch of each pair.
            pairs: int64 (P,): number of each pair in its epoch.

        Returns:
            int64 (P,).
        """
        return self._lengths(*self._find(epochs, pairs))

    def count(self, pair_tokens: Int64Array) -> BatchCounts:
        """Return the counts of a batch from the tokens of its pairs, int64 (P,)."""
        masked, tokens, squared = sum_lengths(pair_tokens, self.mlm_probability, self._settings.num_specials)
        return BatchCounts(masked, len(pair_tokens), tokens, squared)

    def read(
        self, epochs: Int64Array, pairs: Int64Array, *, pad_to_multiple: int = 1, mask_multiple: int = 1
    ) -> TokenStream:
        """Return the token stream of pairs, in the order given.

        Args:
            epochs: int64 (P,): epoch of each pair, P at least 1.
            pairs: int64 (P,): number of each pair in its epoch.
            pad_to_multiple: T is padded to a multiple of this; 1: no padding.
            mask_multiple: M is padded to a multiple of this; 1: no padding.

        Returns:
            The stream, masked.

        Raises:
            ConfigError: The shards hold a token that the tokenizer does not have.
            IndexError: The plan on the disk is damaged.
        """
        columns, places = self._find(epochs, pairs)
        counts = self.count(self._lengths(columns, places))
        stream = empty_stream(counts, pad_to_multiple, mask_multiple, self.vocabulary.pad_id)
        # plain tuples: numba takes microseconds to see through named ones
        unknown = read_pairs(
            self._store.mapped,
            tuple(columns),
            (places, epochs, pairs),
            ((self.vocabulary.cls_id, self.vocabulary.sep_id, self._settings.num_specials), self.mlm_probability),
            self._rules,
            new_scratch(self._settings.seq_len),
            tuple(stream),
        )
        if unknown != NO_TOKEN:
            raise ConfigError(
                f"{self.manifest.directory}: {self.split!r} holds token {unknown}; "
                f"the tokenizer has {self.vocabulary.size}"
            )
        return stream

    def _open_plan(self, epoch: int) -> EpochPlan:
        if self.cache_dir is None:
            return build_epoch_plan(SentenceIndex.open(self.manifest, self.split), self._settings, epoch)

        def open_index() -> SentenceIndex:
            return SentenceIndex.open(self.manifest, self.split, self.cache_dir)

        return open_epoch_plan(
            self.cache_dir,
            self.plan_key(epoch),
            open_index if self.build_plans else None,
            wait_seconds=self.wait_seconds,
        )

    def _find(self, epochs: Int64Array, pairs: Int64Array) -> tuple[Columns, Int64Array]:
        """Return columns, and the places in them, int64 (P,), at which the pairs stand."""
        if _are_equal(epochs):  # nearly always
            return self.plan(int(epochs[0])).columns, pairs
        columns = empty_columns(len(pairs))
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            found = self.plan(int(epoch)).take(pairs[chosen])
            for name in Columns._fields:
                getattr(columns, name)[chosen] = getattr(found, name)
        return columns, np.arange(len(pairs))

    def _lengths(self, columns: Columns, places: Int64Array) -> Int64Array:
        lengths = np.empty(len(places), dtype=np.int64)
        add_lengths(columns.a_length, columns.b_length, places, self._settings.num_specials, lengths)
        return lengths


@compiled
def _are_equal(values: Any) -> bool:
    for value in values:
        if value != values[0]:
            return False
    return True
