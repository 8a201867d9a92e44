"""Pairs to token streams: `[CLS] A [SEP] B [SEP] [CLS] C [SEP] D [SEP] ...`, masked, with nothing padded."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pretrain.data.masking import StreamLayout, Vocabulary, mask_stream, num_predictions
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
from runtime.command import ConfigError
from runtime.seeding import VALIDATION, compiled, derive_seed
from tokenization.manifest import Manifest

Int64Array = npt.NDArray[np.int64]

IGNORE_INDEX = -100
TRAIN_SPLIT = "train"


class TokenStream(NamedTuple):
    """Pairs laid end to end.

    Attributes:
        input_ids: int64 (T,): tokens, masked.
        token_type_ids: int64 (T,): 0 for [CLS], A and its [SEP]; 1 for B and its [SEP].
        position_ids: int64 (T,): from 0 in each pair.
        cu_seqlens: int32 (P + 1,): offset of each pair's [CLS], and T.
        masked_positions: int64 (M,): places to predict, ascending.
        labels: int64 (M,): the tokens that stood there.
        next_sentence_label: int64 (P,): 0 = B follows A, 1 = random; IGNORE_INDEX without NSP.
    """

    input_ids: Int64Array
    token_type_ids: Int64Array
    position_ids: Int64Array
    cu_seqlens: npt.NDArray[np.int32]
    masked_positions: Int64Array
    labels: Int64Array
    next_sentence_label: Int64Array


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
        lengths = np.empty(len(pairs), dtype=np.int64)
        for epoch, chosen in _by_epoch(epochs):
            lengths[chosen] = self.plan(epoch).pair_tokens(pairs[chosen])
        return lengths

    def num_predictions(self, pair_tokens: Int64Array) -> Int64Array:
        """Return the number of predictions of pairs from their tokens: int64 (P,)."""
        return num_predictions(pair_tokens, self.mlm_probability, self._settings.num_specials)

    def read(self, epochs: Int64Array, pairs: Int64Array) -> TokenStream:
        """Return the token stream of pairs, in the order given.

        Args:
            epochs: int64 (P,): epoch of each pair, P at least 1.
            pairs: int64 (P,): number of each pair in its epoch.

        Returns:
            The stream, masked.

        Raises:
            ConfigError: The shards hold a token that the tokenizer does not have.
        """
        columns = self._columns(epochs, pairs)
        a_lengths = columns.a_length.astype(np.int64)
        lengths = a_lengths + columns.b_length + self._settings.num_specials
        tokens = self._store.gather(
            _alternate(columns.a_start, columns.b_start), _alternate(a_lengths, columns.b_length)
        )
        input_ids, token_type_ids, position_ids = np.empty((3, int(lengths.sum())), dtype=np.int64)
        cu_seqlens = np.empty(len(pairs) + 1, dtype=np.int32)
        specials = (self.vocabulary.cls_id, self.vocabulary.sep_id)
        out = (input_ids, token_type_ids, position_ids, cu_seqlens)
        largest = _lay_out(tokens, columns, specials, self._settings.nsp, out)
        # compiled code does not check its indices: no unknown id may come to the masks
        if largest >= self.vocabulary.size:
            raise ConfigError(
                f"{self.manifest.directory}: {self.split!r} holds tokens {tokens.min()} to {tokens.max()}; "
                f"the tokenizer has {self.vocabulary.size}"
            )
        layout = StreamLayout(cu_seqlens, a_lengths, self.num_predictions(lengths), epochs, pairs)
        masked, positions, labels = mask_stream(input_ids, layout, self.seed, self.vocabulary)
        if self._settings.nsp:
            next_sentence_label = columns.next_sentence_label.astype(np.int64)
        else:
            next_sentence_label = np.full(len(pairs), IGNORE_INDEX, dtype=np.int64)
        return TokenStream(masked, token_type_ids, position_ids, cu_seqlens, positions, labels, next_sentence_label)

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

    def _columns(self, epochs: Int64Array, pairs: Int64Array) -> Columns:
        by_epoch = _by_epoch(epochs)
        if len(by_epoch) == 1:
            return self.plan(by_epoch[0][0]).take(pairs)
        out = empty_columns(len(pairs))
        for epoch, chosen in by_epoch:
            columns = self.plan(epoch).take(pairs[chosen])
            for name in Columns._fields:
                getattr(out, name)[chosen] = getattr(columns, name)
        return out


def _alternate(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> Int64Array:
    """Return int64 (2P,): first[0], second[0], first[1], second[1], ... ."""
    values = np.empty(2 * len(first), dtype=np.int64)
    values[0::2] = first
    values[1::2] = second
    return values


def _by_epoch(epochs: Int64Array) -> list[tuple[int, npt.NDArray[np.bool_] | slice]]:
    """Return (epoch, which places) for each epoch of some pairs. Nearly always there is one."""
    if (epochs == epochs[0]).all():
        return [(int(epochs[0]), slice(None))]
    return [(int(epoch), epochs == epoch) for epoch in np.unique(epochs)]


@compiled
def _lay_out(tokens: Any, columns: Any, specials: Any, nsp: bool, out: Any) -> Any:
    """Lay pairs end to end, whose tokens stand in `tokens` as A B A B ... .

    Writes ids, types and positions, each (T,), and cu_seqlens (P + 1,). Returns the largest id, uint64:
    negative ones count as huge.
    """
    # taken out of the tuples once: in a loop each access would count references
    _, a_length, _, b_length, _ = columns
    cls_id, sep_id = specials
    input_ids, token_type_ids, position_ids, cu_seqlens = out
    largest = np.uint64(0)
    place = taken = np.int64(0)
    for pair in range(len(a_length)):
        start = place
        cu_seqlens[pair] = start
        for segment in range(2 if nsp else 1):
            length = np.int64(b_length[pair] if segment else a_length[pair])
            first = place
            if segment == 0:
                input_ids[place] = cls_id
                place += 1
            for number in range(length):
                token = tokens[taken + number]
                largest = max(largest, np.uint64(token))
                input_ids[place + number] = token
            taken += length
            place += length + 1
            input_ids[place - 1] = sep_id
            token_type_ids[first:place] = segment
        for position in range(place - start):
            position_ids[start + position] = position
    cu_seqlens[len(a_length)] = place
    return largest
