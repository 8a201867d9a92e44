from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models

from tokenization.vocabulary.alphabet import count_characters
from tokenization.vocabulary.report import format_report, make_report
from tokenization.vocabulary.subword import build, learn
from tokenization.vocabulary.wordpiece import SPECIAL_TOKENS
from tokenization.vocabulary.words import Casing, WordSplitter, count_words

BERT = WordSplitter("wordpiece", Casing())
# the = 1 token, foxes = fox ##es, dog = 1, λόγος = [UNK], "." = 1
WORDS = {"the": 10, "foxes": 4, "dog": 3, "λόγος": 2, ".": 1}
LINES = ("The foxes.", "the λόγος", "dog, dog")


@pytest.fixture
def tokenizer() -> Tokenizer:
    return make_tokenizer("the", "fox", "##es", "dog", ".", "d", "##o", "##g")


def make_tokenizer(*learned: str) -> Tokenizer:
    tokens = [*SPECIAL_TOKENS, *learned]
    made = Tokenizer(models.WordPiece({token: index for index, token in enumerate(tokens)}, unk_token="[UNK]"))
    made.normalizer = BERT.normalizer()
    made.pre_tokenizer = BERT.pre_tokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(list(SPECIAL_TOKENS))
    return made


def test_words_are_weighed_by_their_counts(tokenizer: Tokenizer) -> None:
    report = make_report(tokenizer, BERT, WORDS, LINES)
    # tokens: 10 + 4 * 2 + 3 + 2 + 1 = 24; one token: 10 + 3 + 2 + 1 = 16
    assert report["words"] == {"different": 5, "occurrences": 20, "tokens_a_word": 1.2, "one_token": 0.8}
    assert report["unknown"] == {
        "share": 0.1,
        "by_script": {
            "Latin": {"words": 17, "unknown": 0},
            "Greek": {"words": 2, "unknown": 2},
            "punctuation and signs": {"words": 1, "unknown": 0},
        },
    }
    assert report["coverage"] == {"1000": 0.6, "10000": 0.6}  # the, dog and "." of 5; [UNK] covers nothing
    assert report["longest"][:4] == ["##es", "##g", "##o", "dog"]
    assert report["tokens"] == 13


def test_lines_are_measured_by_themselves(tokenizer: Tokenizer) -> None:
    report = make_report(tokenizer, BERT, WORDS, LINES)
    # the fox ##es . | the [UNK] | dog [UNK] dog; λόγος is 10 bytes
    assert report["lines"] == {
        "lines": 3,
        "bytes": 10 + 14 + 8,
        "tokens": 9,
        "bytes_a_token": round(32 / 9, 6),
        "tokens_a_word": 1.5,
    }
    assert report["round_trip"] == {
        "lines": 3,
        "equal": 1,
        "ignores_white_space": True,
        "different": [
            {"text": "the λογος", "decoded": "the [UNK]"},
            {"text": "dog, dog", "decoded": "dog [UNK] dog"},
        ],
    }


def test_the_report_is_the_same_in_any_order_and_reads_well(tokenizer: Tokenizer) -> None:
    report = make_report(tokenizer, BERT, WORDS, LINES)
    assert make_report(tokenizer, BERT, dict(reversed(WORDS.items())), LINES) == report
    text = format_report(report)
    assert "1.200 tokens a word, 80.0% of all words are one token" in text
    assert "10.0000% of all words hold an [UNK]\n            Greek: 100.0000% of 2 words\n" in text
    assert "1 of 3 sampled lines come back as they were, white space apart" in text


def test_nothing_to_measure_is_no_error(tokenizer: Tokenizer) -> None:
    report = make_report(tokenizer, BERT, {}, ())
    assert report["words"]["tokens_a_word"] == report["lines"]["bytes_a_token"] == 0
    assert format_report(report)


def test_do_not_comes_back_as_it_was() -> None:
    trip = make_report(make_tokenizer("do", "not"), BERT, {}, ("do not",))["round_trip"]
    assert trip["equal"] == 1


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_subwords_bring_white_space_back(model: str) -> None:
    splitter = WordSplitter(model, Casing(False))
    lines = ("Red FOX café.", "the  fox")
    words = count_words(lines, splitter.casing, model)
    made = build(learn(splitter, words, count_characters(words), 400, 1), splitter)
    report = make_report(made, splitter, words, lines)
    assert report["round_trip"] == {"lines": 2, "equal": 2, "ignores_white_space": False, "different": []}
    assert report["unknown"]["share"] == 0
    assert set(report["unknown"]["by_script"]) <= {"Latin", "punctuation and signs"}
    assert "café" in " ".join(report["longest"])


def test_text_that_a_vocabulary_does_not_know_does_not_come_back() -> None:
    splitter = WordSplitter("unigram", Casing(False))
    words = count_words(["ab ab"], splitter.casing, "unigram")
    made = build(learn(splitter, words, count_characters(words), 400, 1), splitter)
    report = make_report(made, splitter, {"▁ab": 2, "▁λ": 1}, ("ab λ",))
    assert report["round_trip"]["different"] == [{"text": "ab λ", "decoded": "ab "}]
    assert report["unknown"]["by_script"]["Greek"] == {"words": 1, "unknown": 1}
