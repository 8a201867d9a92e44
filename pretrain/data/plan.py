"""The epoch plan: all pairs of one epoch as flat arrays, in memory or on disk and mapped by every process.

On disk a plan is a folder ``plan-SPLIT-KEY-epochN`` of one .npy file a column and plan.json. KEY is the
SHA-256 of all that the pairs depend on besides the epoch: the manifest's fingerprint, the split, the settings
and the version of this format. It is written a piece of neighbouring documents at a time: memory does not
grow with the corpus. Equal inputs give equal bytes.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pretrain.data.arrays import (
    ArrayWriter,
    map_arrays,
    provide_folder,
    read_only,
    remove_folder,
    remove_stale_partials,
)
from pretrain.data.pairing import (
    COLUMN_DTYPES,
    Columns,
    PairingSettings,
    check_documents,
    plan_documents,
)
from pretrain.data.store import SentenceIndex
from runtime.command import ConfigError
from runtime.files import write_json

logger = logging.getLogger(__name__)

PLAN_FORMAT_VERSION = 1
WAIT_SECONDS = 3600.0
_PIECE_SENTENCES = 1 << 20


@dataclass(frozen=True)
class EpochPlan:
    """The pairs of one epoch, in the order of the text.

    Attributes:
        columns: Read-only arrays, one entry a pair.
        num_specials: Specials of each pair: 3, or 2 without NSP.
    """

    columns: Columns
    num_specials: int

    @property
    def num_pairs(self) -> int:
        """Number of pairs."""
        return len(self.columns.a_start)

    def pair_tokens(self, pairs: npt.NDArray[np.int64] | slice = slice(None)) -> npt.NDArray[np.int64]:
        """Return the tokens of pairs, specials counted.

        Args:
            pairs: int64 (n,): numbers of the pairs; all of them by default.

        Returns:
            int64 (n,), each at most seq_len.
        """
        a_length, b_length = self.columns.a_length[pairs], self.columns.b_length[pairs]
        return a_length.astype(np.int64) + b_length + self.num_specials

    def take(self, pairs: npt.NDArray[np.int64]) -> Columns:
        """Return the columns of some pairs, given their numbers int64 (n,)."""
        return Columns._make(column[pairs] for column in self.columns)


@dataclass(frozen=True)
class PlanKey:
    """All that an epoch plan depends on.

    Attributes:
        manifest_fingerprint: SHA-256 of the shards' manifest.json.
        split: "train", "validation", ...
        settings: What the pairs look like.
        epoch: Epoch, 0 or more.
    """

    manifest_fingerprint: str
    split: str
    settings: PairingSettings
    epoch: int

    @property
    def family(self) -> str:
        """Start of the folder names of the plans that differ from this one in the epoch alone."""
        inputs = f"{PLAN_FORMAT_VERSION} {self.manifest_fingerprint} {self.split} {self.settings.canonical}"
        return f"plan-{self.split}-{hashlib.sha256(inputs.encode()).hexdigest()[:32]}"

    @property
    def folder_name(self) -> str:
        """Name of the plan's folder."""
        return f"{self.family}-epoch{self.epoch:06d}"


def build_epoch_plan(index: SentenceIndex, settings: PairingSettings, epoch: int) -> EpochPlan:
    """Make the pairs of one epoch in memory.

    Args:
        index: The split's sentences.
        settings: What the pairs look like.
        epoch: Epoch, 0 or more.

    Returns:
        The plan: 21 bytes a pair.

    Raises:
        ConfigError: NSP with fewer than 2 documents.
    """
    check_documents(index.num_documents, settings.nsp, "shards")
    pieces = list(_pieces(index, settings, epoch, _PIECE_SENTENCES))
    columns = Columns._make(read_only(np.concatenate(column)) for column in zip(*pieces, strict=True))
    return EpochPlan(columns, settings.num_specials)


def open_epoch_plan(
    cache_dir: str | Path,
    key: PlanKey,
    open_index: Callable[[], SentenceIndex] | None,
    *,
    wait_seconds: float = WAIT_SECONDS,
    piece_sentences: int = _PIECE_SENTENCES,
) -> EpochPlan:
    """Map a plan from disk; where it is missing, build it, or wait until another process has built it.

    Args:
        cache_dir: Folder of the plans. Any number of processes and hosts may share it.
        key: Which plan.
        open_index: Gives the split's sentences to a process that may build; None: wait for another one.
        wait_seconds: Longest wait for another process.
        piece_sentences: Sentences planned at a time.

    Returns:
        The plan, memory-mapped.

    Raises:
        ConfigError: NSP with fewer than 2 documents, or a damaged plan on disk.
        TimeoutError: The plan did not appear in time.
    """

    def build(folder: Path) -> None:
        assert open_index is not None
        _write_plan(folder, key, open_index(), piece_sentences)

    folder = Path(cache_dir) / key.folder_name
    provide_folder(folder, build, may_build=open_index is not None, wait_seconds=wait_seconds)
    columns = Columns(**map_arrays(folder, COLUMN_DTYPES))
    if len({len(column) for column in columns}) != 1:
        raise ConfigError(f"{folder}: its arrays differ in length; remove the folder")
    return EpochPlan(columns, key.settings.num_specials)


def prune_plans(cache_dir: str | Path, keep: Collection[int], like: PlanKey | None = None) -> list[Path]:
    """Remove plans that no process will open any more, and what killed builders left behind.

    Args:
        cache_dir: Folder of the plans.
        keep: Epochs whose plans stay.
        like: Remove only plans that differ from this one in the epoch alone; None: plans of any kind but
            validation's, which has one plan for all epochs.

    Returns:
        The folders removed. Arrays that a process has mapped stay readable to it on a local file system.
    """
    prefix = "plan-" if like is None else like.family
    removed = remove_stale_partials(Path(cache_dir))
    for folder in sorted(Path(cache_dir).glob(f"{prefix}*-epoch??????")):
        if like is None and not folder.name.startswith("plan-train-"):
            continue
        if int(folder.name[-6:]) not in keep:
            remove_folder(folder)
            removed.append(folder)
    return removed


def _pieces(index: SentenceIndex, settings: PairingSettings, epoch: int, piece_sentences: int) -> Iterator[Columns]:
    """Yield the pairs of the epoch, some neighbouring documents at a time."""
    starts, first = index.document_starts, 0
    while first < index.num_documents:
        last = int(np.searchsorted(starts, starts[first] + piece_sentences, side="right")) - 1
        last = max(last, first + 1)  # a document longer than a piece is a piece
        yield plan_documents(index, settings, epoch, (first, last))
        first = last


def _write_plan(folder: Path, key: PlanKey, index: SentenceIndex, piece_sentences: int) -> None:
    check_documents(index.num_documents, key.settings.nsp, f"split {key.split!r}")
    start = time.perf_counter()
    writers = {name: ArrayWriter(folder / f"{name}.npy", dtype) for name, dtype in COLUMN_DTYPES.items()}
    tokens = random_pairs = 0
    try:
        for columns in _pieces(index, key.settings, key.epoch, piece_sentences):
            for name, writer in writers.items():
                writer.append(getattr(columns, name))
            plan = EpochPlan(columns, key.settings.num_specials)
            tokens += int(plan.pair_tokens().sum())
            random_pairs += int(columns.next_sentence_label.sum())
    finally:
        for writer in writers.values():
            writer.close()
    pairs = writers["a_start"].size
    description = {"format": "zerobert-plan", "version": PLAN_FORMAT_VERSION, **asdict(key)}
    counts = {"pairs": pairs, "tokens": tokens, "random_pairs": random_pairs}
    write_json(folder / "plan.json", {**description, **counts})
    seconds = time.perf_counter() - start
    logger.info("planned epoch %d of %s: %d pairs, %d tokens, %.1f s", key.epoch, key.split, pairs, tokens, seconds)
