"""A small corpus, and a tokenizer learned from it once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tokenization.corpora import make_documents, write_jsonl
from tokenization.train import main as train


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .jsonl file of `make_documents()`."""
    return write_jsonl(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", make_documents())


@pytest.fixture(scope="session")
def tokenizer_dir(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of 300 tokens at most, learned from `corpus`."""
    output = tmp_path_factory.mktemp("tokenizer") / "out"
    assert train(["--input", str(corpus), "--output", str(output), "--vocab-size", "300"]) == 0
    return output
