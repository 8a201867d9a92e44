"""Small corpora."""

from __future__ import annotations

import json
import random
from pathlib import Path

NUM_DOCUMENTS = 60
SENTENCES_A_DOCUMENT = 5


def make_documents(count: int = NUM_DOCUMENTS, seed: int = 0) -> list[list[str]]:
    """Documents of five sentences each; every sentence is different, and full of apostrophes."""
    draw = random.Random(seed)
    names = ["fox", "dog", "cat", "bird", "whale", "mouse"]
    verbs = ["sees", "follows", "doesn\u2019t like", "won\u2019t leave", "can\u2019t find"]
    return [
        [
            f"The {draw.choice(names)}\u2019s {draw.choice(names)} {draw.choice(verbs)} number {document} {sentence}."
            for sentence in range(SENTENCES_A_DOCUMENT)
        ]
        for document in range(count)
    ]


def write_jsonl(path: Path, documents: list[list[str]]) -> Path:
    lines = (json.dumps({"text": " ".join(sentences)}, ensure_ascii=False) for sentences in documents)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
