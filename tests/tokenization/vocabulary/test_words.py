from __future__ import annotations

import random

import pytest

from tokenization.vocabulary.words import MODELS, Casing, WordSplitter, chunks, count_words

CASINGS = [Casing(), Casing(False), Casing(True, False), Casing(False, True)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("casing", CASINGS)
def test_the_fast_way_for_ascii_gives_the_same_words(model: str, casing: Casing) -> None:
    splitter = WordSplitter(model, casing)
    normalizer, pre_tokenizer = splitter.normalizer(), splitter.pre_tokenizer()
    draw = random.Random(0)
    printable = [chr(code) for code in range(33, 127)]
    texts = ["".join(draw.choices([*printable, "'", "s", "l", "L"], k=draw.randint(1, 9))) for _ in range(2000)]
    for text in [*texts, "don't", "DON'T", "we'll've", "'s'", "l'l'll"]:
        normalized = normalizer.normalize_str(text) if normalizer else text
        assert splitter._cut_ascii(text) == [word for word, _ in pre_tokenizer.pre_tokenize_str(normalized)]


def test_words_of_each_model() -> None:
    texts = ["The café's\tTHE  ﬁx \x01", "the"]
    assert count_words(texts, Casing()) == {"the": 3, "cafe": 1, "'": 1, "s": 1, "ﬁx": 1}
    assert count_words(texts, Casing(), "unigram") == {"▁the": 3, "▁cafe's": 1, "▁fix": 1}
    # Byte-level: é is C3 A9, ﬁ is EF AC 81, a control character stays.
    assert count_words(texts, Casing(False), "bpe") == {
        "ĠThe": 1,
        "ĠcafÃ©": 1,
        "'s": 1,
        "ĠTHE": 1,
        "Ġï¬ģx": 1,
        "Ġ\u0101": 1,
        "Ġthe": 1,
    }


def test_words_too_long_for_wordpiece_are_not_learned() -> None:
    assert set(count_words(["x" * 101 + " " + "y" * 100], Casing())) == {"y" * 100}


def test_long_texts_are_cut_at_spaces() -> None:
    text = "word " * 500_000
    parts = list(chunks(text))
    assert "".join(parts) == text
    assert len(parts) == 3
    assert count_words(parts, Casing()) == {"word": 500_000}
    solid = "字" * 5_000_000
    parts = list(chunks(solid))
    assert "".join(parts) == solid
    assert max(map(len, parts)) <= 2 << 20
    assert list(chunks("")) == [""]
