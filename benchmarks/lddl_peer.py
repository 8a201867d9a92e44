"""The BERT pipeline of NVIDIA's lddl 0.1.0 from PyPI, run in one process without Dask.

Its own functions are run as published, in its own order (`_get_pairs`): read, tokenize with the fast tokenizer of
transformers, pair and mask. A list stands in for Dask's bag, with the handful of methods they call on it. Two things
are taken from it, both in its favour: sentences are parted already (no punkt model), and nothing is written.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.stand_ins import stand_ins_imported

PACKAGE = "lddl"
VERSION = "0.1.0"

SEED = 12345
SENTENCE_END = "\t"  # in the text it is given: nothing to find, one split
_DASK = (
    "dask",
    "dask.bag",
    "dask.bag.core",
    "dask.base",
    "dask.bytes",
    "dask.dataframe",
    "dask.dataframe.core",
    "dask.dataframe.io",
    "dask.dataframe.io.parquet",
    "dask.dataframe.io.parquet.arrow",
    "dask.dataframe.io.parquet.core",
    "dask.delayed",
    "dask.distributed",
    "dask.highlevelgraph",
    "dask.utils",
)
_NLTK = ("nltk", "nltk.tokenize")
_UNUSED = ("requests", "tlz", "tqdm")  # imported by its modules for what is not run here


@dataclass(frozen=True)
class LddlPeer:
    """The module, and a tokenizer as its command opens one.

    Args:
        program: the module `lddl.dask.bert.pretrain`.
        tokenizer: `transformers.BertTokenizerFast`.
    """

    program: Any
    tokenizer: Any

    def token_ids(self, sentence: str) -> list[int]:
        """Return the ids of a sentence, without special tokens, by the call that the program makes."""
        tokens = self.tokenizer.tokenize(sentence, max_length=512, truncation=True)
        return list(self.tokenizer.convert_tokens_to_ids(tokens))

    def make_pairs(self, folder: Path, seq_len: int, duplicate_factor: int) -> list[Any]:
        """Run `_get_pairs` with static masking.

        Args:
            folder: as `write_source` leaves it.
            seq_len: most tokens of a pair, specials counted.
            duplicate_factor: how often the pairs are made over.

        Returns:
            Its pairs, dictionaries of strings.
        """
        random.seed(SEED)
        bag = self.program._get_pairs(
            wikipedia_path=str(folder),
            target_seq_length=seq_len,
            duplicate_factor=duplicate_factor,
            sample_ratio=1.0,
            tokenizer=self.tokenizer,
            masking=True,
        )
        return list(bag)


class _Bag(list[Any]):
    """What the program does with a Dask bag of one partition."""

    def map(self, function: Callable[[Any], Any]) -> _Bag:
        return _Bag(map(function, self))

    def filter(self, function: Callable[[Any], bool]) -> _Bag:
        return _Bag(filter(function, self))

    def map_partitions(self, function: Callable[[Iterable[Any]], list[Any]]) -> _Bag:
        return _Bag(function(self))


def write_source(documents: Iterable[list[str]], folder: Path) -> None:
    """Write documents as lddl's downloaders do: a document a line, its id first.

    Args:
        documents: sentences of each.
        folder: what `make_pairs` is given.
    """
    language = folder / "en"
    language.mkdir(parents=True)
    lines = (f"wiki-{number} {SENTENCE_END.join(document)}\n" for number, document in enumerate(documents))
    (language / "0.txt").write_text("".join(lines), encoding="utf-8")


def open_peer(lddl_dir: Path, vocabulary: Path) -> LddlPeer:
    """Import the program and open its tokenizer.

    Args:
        lddl_dir: folder with the unpacked wheel of lddl.
        vocabulary: vocab.txt, lower-cased.
    """
    from transformers import BertTokenizerFast  # noqa: PLC0415 - takes seconds

    return LddlPeer(_import_program(lddl_dir), BertTokenizerFast(str(vocabulary)))


@lru_cache(maxsize=1)
def _import_program(lddl_dir: Path) -> ModuleType:
    missing = [name for name in _UNUSED if importlib.util.find_spec(name) is None]
    stand_ins = {name: _StandIn(name) for name in (*_DASK, *_NLTK, *missing)}
    for name, module in stand_ins.items():
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(stand_ins[parent], last, module)
    bag: Any = stand_ins["dask.bag"]
    bag.read_text = _read_text
    bag.concat = lambda bags: _Bag(text for one in bags for text in one)
    tokenize: Any = stand_ins["nltk.tokenize"]
    tokenize.sent_tokenize = lambda text: text.split(SENTENCE_END)
    with stand_ins_imported(stand_ins, lddl_dir):
        program: Any = importlib.import_module("lddl.dask.bert.pretrain")
    program._shuffle_bag_texts = _shuffled  # theirs goes through a Dask data frame
    return program  # type: ignore[no-any-return]


class _StandIn(ModuleType):
    """A module in which every name can be imported; none but those set below are used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _read_text(paths: list[str], blocksize: int | None = None) -> _Bag:
    lines: list[str] = []
    for path in paths:
        with open(path, encoding="utf-8") as stream:
            lines += stream
    return _Bag(lines)


def _shuffled(texts: _Bag) -> _Bag:
    return _Bag(random.sample(texts, len(texts)))
