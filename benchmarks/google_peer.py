"""Google's create_pretraining_data.py, from PyPI's bert-tensorflow 1.0.4, run without TensorFlow.

Its code is run as published. Of TensorFlow it needs flags and files, of six which Python this is; stand-ins give both.
Left out is what it does last, writing TFRecords: it is charged nothing for output.
"""

from __future__ import annotations

import importlib
import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from benchmarks.stand_ins import stand_ins_imported

PACKAGE = "bert-tensorflow"
VERSION = "1.0.4"

SEED = 12345  # the program's own default
MAX_PREDICTIONS = {128: 20, 512: 77}


@dataclass(frozen=True)
class GooglePeer:
    """The program, and a tokenizer of its own.

    Args:
        program: the module `bert.create_pretraining_data`.
        tokenizer: its `FullTokenizer`.
    """

    program: Any
    tokenizer: Any

    def token_ids(self, sentence: str) -> list[int]:
        """Return the ids of a sentence, without special tokens."""
        return list(self.tokenizer.convert_tokens_to_ids(self.tokenizer.tokenize(sentence)))

    def make_pairs(self, text: Path, seq_len: int, dupe_factor: int) -> list[Any]:
        """Run `create_training_instances`: read, tokenize, pair and mask.

        Args:
            text: one sentence a line, a blank line between documents.
            seq_len: most tokens of a pair, specials counted.
            dupe_factor: how often the pairs are made over.

        Returns:
            Its `TrainingInstance`s.
        """
        predictions = MAX_PREDICTIONS.get(seq_len, round(0.15 * seq_len) + 1)
        instances: list[Any] = self.program.create_training_instances(
            [str(text)], self.tokenizer, seq_len, dupe_factor, 0.1, 0.15, predictions, random.Random(SEED)
        )
        return instances


def open_peer(bert_dir: Path, vocabulary: Path) -> GooglePeer:
    """Import the program and open its tokenizer.

    Args:
        bert_dir: folder with the unpacked wheel of bert-tensorflow.
        vocabulary: vocab.txt of an uncased tokenizer.
    """
    program, tokenization = _import_program(bert_dir)
    return GooglePeer(program, tokenization.FullTokenizer(str(vocabulary), do_lower_case=True))


@lru_cache(maxsize=1)  # its flags can be defined once in a process
def _import_program(bert_dir: Path) -> tuple[ModuleType, ModuleType]:
    from absl import flags  # noqa: PLC0415 - comes with the development tools alone

    tensorflow = _stand_in_tensorflow(flags)
    six: Any = ModuleType("six")
    six.PY2, six.PY3 = False, True
    stand_ins = {
        "tensorflow": tensorflow,
        "tensorflow.compat": tensorflow,
        "tensorflow.compat.v1": tensorflow,
        "six": six,
    }
    with stand_ins_imported(stand_ins, bert_dir):
        program = importlib.import_module("bert.create_pretraining_data")
        tokenization = importlib.import_module("bert.tokenization")
    flags.FLAGS.mark_as_parsed()
    return program, tokenization


def _stand_in_tensorflow(flags: ModuleType) -> ModuleType:
    """Return a module with the few names of TensorFlow 1 that the program uses outside its output."""
    tensorflow: Any = ModuleType("tensorflow")
    tensorflow.flags = flags
    tensorflow.gfile = ModuleType("gfile")
    tensorflow.gfile.GFile = _open_text
    tensorflow.compat = tensorflow.v1 = tensorflow
    return tensorflow  # type: ignore[no-any-return]


def _open_text(path: str, mode: str) -> IO[str]:
    return open(path, mode, encoding="utf-8")
