from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from runtime.command import ConfigError
from tokenization.encode import WordPieceEncoder
from tokenization.vocabulary.alphabet import count_characters
from tokenization.vocabulary.subword import build, learn, save
from tokenization.vocabulary.wordpiece import SPECIAL_TOKENS, Vocabulary, load_tokenizer
from tokenization.vocabulary.words import Casing, WordSplitter, count_words

REPOSITORY = Path(__file__).resolve().parents[3]
SUBWORD_MODELS = ("bpe", "unigram")
TEXTS = [
    "The quick brown fox jumps over the lazy dog, again and again.",
    "A Red FOX met another red fox at the café: 12 euros!",
    "日本語 don't [MASK] [PAD] the foxes",
]


def make(model: str, casing: Casing, size: int = 400, texts: list[str] = TEXTS) -> tuple[Vocabulary, WordSplitter]:
    splitter = WordSplitter(model, casing)
    words = count_words(texts, casing, model)
    return learn(splitter, words, count_characters(words), size, 1), splitter


def make_tokenizer(model: str, casing: Casing) -> Tokenizer:
    tokenizer = build(*make(model, casing))
    tokenizer.encode_special_tokens = True
    return tokenizer


TOKENIZERS = {(model, lowercase): make_tokenizer(model, Casing(lowercase))
              for model in SUBWORD_MODELS for lowercase in (False, True)}  # fmt: skip


@pytest.mark.parametrize("model", SUBWORD_MODELS)
def test_specials_come_first_and_the_post_processor_is_berts(model: str) -> None:
    tokenizer = build(*make(model, Casing()))
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]
    assert sorted(tokenizer.get_vocab().values()) == list(range(tokenizer.get_vocab_size()))
    pair = tokenizer.encode("the fox", "the dog")
    middle = pair.tokens.index("[SEP]")
    assert (pair.tokens[0], pair.tokens[-1], pair.tokens.count("[SEP]")) == ("[CLS]", "[SEP]", 2)
    assert pair.type_ids == [0] * (middle + 1) + [1] * (len(pair.tokens) - middle - 1)


@pytest.mark.parametrize("model", SUBWORD_MODELS)
@pytest.mark.parametrize(
    ("casing", "expected"),
    [
        (Casing(), "red fox cafe"),
        (Casing(False), "Red FOX café"),
        (Casing(True, False), "red fox café"),
        (Casing(False, True), "Red FOX cafe"),
    ],
)
def test_auto_tokenizer_gives_the_same_ids_beside_a_bert_config(
    model: str, casing: Casing, expected: str, tmp_path: Path
) -> None:
    save(*make(model, casing), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertForPreTraining"]}))
    plain = load_tokenizer(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in [*TEXTS, "", " x  y ", "naïve \u0000 Ünïcode 😀", "fox[SEP]dog [MASK]."]:
        encoded = loaded(text)
        assert encoded["input_ids"] == plain.encode(text).ids
        assert set(encoded) == {"input_ids", "token_type_ids", "attention_mask"}
    assert loaded("the", "fox")["token_type_ids"] == plain.encode("the", "fox").type_ids
    assert loaded.model_max_length == 512
    assert [loaded.pad_token_id, loaded.unk_token_id, loaded.cls_token_id] == [0, 1, 2]
    assert [loaded.sep_token_id, loaded.mask_token_id] == [3, 4]
    assert loaded.decode(loaded("Red FOX café")["input_ids"], skip_special_tokens=True) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json", "tokenizer.json", "tokenizer_config.json"
    ]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(codec="utf-8")), st.booleans())
def test_bytes_know_every_text(text: str, lowercase: bool) -> None:
    tokenizer = TOKENIZERS["bpe", lowercase]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert not set(ids) & set(range(5))
    expected = tokenizer.normalizer.normalize_str(text) if lowercase else text
    assert tokenizer.decode(ids) == expected.removeprefix(" ")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*sorted({*"".join(TEXTS)}), "[SEP]", "[CLS]", "[MASK]"])).map("".join))
def test_unigram_gives_the_normalized_text_back(text: str) -> None:
    tokenizer = TOKENIZERS["unigram", False]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert not set(ids) & set(range(5))
    assert tokenizer.decode(ids) == tokenizer.normalizer.normalize_str(text)


def test_unigram_has_an_unknown_token() -> None:
    assert TOKENIZERS["unigram", False].encode("fox λ", add_special_tokens=False).tokens[-1] == "λ"
    assert TOKENIZERS["unigram", False].encode("fox λ", add_special_tokens=False).ids[-1] == 1


@pytest.mark.parametrize("model", SUBWORD_MODELS)
def test_the_encoder_gives_hugging_faces_ids(model: str) -> None:
    for lowercase in (False, True):
        peer = TOKENIZERS[model, lowercase]
        encoder = WordPieceEncoder(build(*make(model, Casing(lowercase))))
        texts = [*TEXTS, "", "  ", "[SEP]", "x\x0by\x1cz", "café e\u0301 ﬁ ①", "the\u3000fox", "a  b"]
        expected = [encoding.ids for encoding in peer.encode_batch(texts, add_special_tokens=False)]
        assert [ids.tolist() for ids in encoder.encode(texts)] == expected


CODE = """
import random, sys, json
from tokenization.vocabulary.alphabet import count_characters
from tokenization.vocabulary.subword import learn, build
from tokenization.vocabulary.words import Casing, WordSplitter, count_words
draw = random.Random(4)
words = ["".join(draw.choices("abcde", k=draw.randint(3, 8))) for _ in range(60)]
texts = [" ".join(draw.sample(words, 10)) for _ in range(20)]
for model, size in (("bpe", 300), ("unigram", 60), ("wordpiece", 60)):
    splitter = WordSplitter(model, Casing())
    counted = count_words(texts, Casing(), model)
    learned = learn(splitter, counted, count_characters(counted), size, 1)
    print(len(learned.tokens), learned if model == "wordpiece" else build(learned, splitter).to_str())
"""


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_ten_fresh_processes_learn_the_same() -> None:
    command = [sys.executable, "-c", CODE]
    running = [subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) for _ in range(10)]
    found = set()
    for process in running:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert [line.split()[0] for line in output.decode().splitlines()] == ["300", "60", "60"]
        found.add(hashlib.sha256(output).hexdigest())
    assert len(found) == 1


@pytest.mark.parametrize("model", SUBWORD_MODELS)
def test_the_order_of_texts_does_not_matter(model: str) -> None:
    draw = random.Random(3)
    words = ["".join(draw.choices("abcd", k=draw.randint(3, 8))) for _ in range(60)]
    texts = [" ".join(draw.sample(words, 10)) for _ in range(20)]
    assert make(model, Casing(), 300, texts)[0] == make(model, Casing(), 300, texts[::-1])[0]


@pytest.mark.parametrize(("model", "least"), [("bpe", 261), ("unigram", 5 + 3 + 3), ("wordpiece", 5 + 3 + 2)])
def test_a_size_below_specials_and_alphabet_is_refused(model: str, least: int) -> None:
    # "ab ca": a b c; unigram also "▁", "[" and "]", of which "▁" is there
    splitter = WordSplitter(model, Casing())
    words = count_words(["ab ca"], Casing(), model)
    with pytest.raises(ConfigError, match=rf"--vocab-size {least - 1}: too small: 5 special tokens .* take {least}"):
        learn(splitter, words, count_characters(words), least - 1, 1)
    assert len(learn(splitter, words, count_characters(words), least, 1).tokens) == least
    with pytest.raises(ConfigError, match="holds no word"):
        learn(splitter, {}, {}, 1000, 1)


def test_unigram_leaves_rare_characters_out() -> None:
    splitter = WordSplitter("unigram", Casing())
    words = count_words(["aaa aaa bbb bb c я"], Casing(), "unigram")
    learned = learn(splitter, words, count_characters(words), 100, 2, alphabet_limit=3)
    assert learned.alphabet.kept == ("[", "]", "a", "b", "▁")
    assert learned.alphabet.dropped_scripts == {"Cyrillic": 1, "Latin": 1}


@pytest.mark.parametrize("model", ["bpe", "wordpiece"])
def test_counts_above_32_bits_do_not_overflow(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = "Ġ" if model == "bpe" else ""
    words = Counter({f"{mark}abab": 3 * 2**33, f"{mark}cd": 2**33, f"{mark}ef": 1})
    small = Counter({f"{mark}abab": 3_000, f"{mark}cd": 1_000})
    fitted: list[int] = []

    def fit(words: Counter[str], least: int) -> tuple[Counter[str], int]:
        fitted.append(sum(len(word) * count for word, count in words.items()))
        return small, least

    monkeypatch.setattr(f"tokenization.vocabulary.{'subword' if model == 'bpe' else 'wordpiece'}.fit_counts", fit)
    splitter = WordSplitter(model, Casing())
    learned = learn(splitter, words, count_characters(words), 400, 2)
    assert fitted == [sum(len(word) * count for word, count in words.items())]
    assert f"{mark}abab" in learned.tokens
    assert f"{mark}cd" in learned.tokens
