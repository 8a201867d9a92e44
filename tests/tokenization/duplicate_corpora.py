"""Documents in memory, cut into tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenization.documents import Document


def as_documents(texts: Sequence[str]) -> Iterator[Document]:
    for number, text in enumerate(texts):
        yield Document(text, number, "")


def read_task(corpus: Sequence[Sequence[str]], rank: int) -> Iterator[Document]:
    return as_documents(corpus[rank])
