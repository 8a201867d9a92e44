from __future__ import annotations

import random
import tracemalloc
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from tokenization.encode import WordPieceEncoder, split_words, token_dtype
from tokenization.vocabulary.wordpiece import SPECIAL_TOKENS, load_tokenizer

HOSTILE = (
    "\x00\x01\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x7f\x85\xa0\xad\u0130\u0131\u0300\u0301\u0345\u1680\u180e\u2000\u200a"
    "\u200b\u200d\u2028\u2029\u202f\u205f\u2060\u3000\ufeff\ufffd"
    "\ufb01\u1e9e\u03a3\u03c2\uac00\u4e2d\u6587\U00020000"
    "\U0001f600\U000e0001\ue000éÉ\u2019'\u201c.,-_[]#abcXYZ0\uff19"
)
WORDS = (
    "the|fox|Café|[SEP]|[UNK]|[MASK]|[PAD]|##s|##a|doesn\u2019t|中文字|e\u0301|ΟΔΟΣ|ΑΣ.Β|Σ'|İstanbul|ISTANBUL|ıi|ß|ẞ|ﬁ|"
    "\u01c5|\u01c8|\u00c5|\u212b|\u212a|\u2126|\u1fef|\u037e|👩\u200d👩\u200d👧|🏳\ufe0f\u200d🌈|👍🏽|각|\u1100\u1161\u11a8|한국어|"
    "プログラム|ﾌﾟﾛ|שלום|مرحبا|بِسْمِ|สวัสดีครับ|नमस्ते|tiếng|\u2028|\u2029|\x85|\x1c|a\x0bb|\r\n|\ufeffBOM|\u202eRTL\u202c|\ud7a3|"
    "\u302e|\u3099か|\u2260|\u0338=|<\u0338|.\u0301|中\u0301| \u0301|\u0345\u0300\u0334|\U0001d15e|\U0001d165\U0001d16d"
).split("|")
LONG_WORDS = [
    "x" * 100,
    "x" * 101,
    "é" * 100,
    "e\u0301" * 100,
    "\u200b" * 70 + "a" * 60,
    "中" * 120,
    "." * 120,
    "ab" * 50,
    "Ab" * 51,
    "x" * 150,
    "é" + "a" * 140 + "é",
    "a" * 120 + "\u0301b",
    "A" * 130 + "-" + "b" * 99 + "\u200bc",
    "1" * 102 + "中" + "c" * 103,
]
# Blocks that are hard on a normalizer, and the edges of the ideographs'; the planes at large are drawn from less often.
BLOCKS = tuple(
    tuple(int(end, 16) for end in block.split("-"))
    for block in (
        "0-20 20-7F 7F-A1 A1-250 300-370 370-590 590-780 900-E80 1100-1200 1E00-2000 2000-2070 2070-2C00 2E80-3100 "
        "3100-3400 33F0-3410 4DB0-4E10 9FF0-A010 A000-AC00 AC00-D7B0 D7B0-D800 E000-E010 F8F0-FB10 FB00-FE00 "
        "FE00-10000 FFF0-10000 1D100-1D250 1F000-1FB00 1FFF0-20010 2A6D0-2A710 2B730-2B830 2B910-2B930 2CEA0-2CEC0 "
        "2F7F0-2FA30 E0000-E0200 FFFF0-100000"
    ).split()
)
NUM_HOSTILE = 100_000
BATCH = 5_000

hostile_text = st.lists(
    st.one_of(st.sampled_from(HOSTILE), st.characters(codec="utf-8"), st.sampled_from(WORDS)), max_size=30
).map("".join)


def make_tokenizer(lowercase: bool, strip_accents: bool | None, **options: bool) -> Tokenizer:
    letters = sorted(set("abcdefghijklmnopqrstuvwxyzABCXYZ0éÉß中文[]#.,'\u2019\u0301") | {"sep", "the", "fox", "caf"})
    return _tokenizer(letters, normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents, **options))


def make_large_tokenizer(lowercase: bool, strip_accents: bool | None) -> Tokenizer:
    """A vocabulary in which nearly every character has ids of its own, so that [UNK] hides little."""
    codes = [*range(0x21, 0x3400), *range(0x4E00, 0x4E80), *range(0xAC00, 0xAC80), *range(0xF900, 0x10000, 3)]
    letters = [chr(code) for code in codes if unicodedata.category(chr(code)) not in ("Zs", "Zl", "Zp")]
    return _tokenizer(
        [*letters, "the", "fox", "caf", "sep", "mask", "ing", "xx", "ab"],
        normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents),
    )


def _tokenizer(letters: list[str], normalizer: normalizers.Normalizer) -> Tokenizer:
    vocabulary = dict.fromkeys([*SPECIAL_TOKENS, *letters, *(f"##{token}" for token in letters)])
    tokenizer = Tokenizer(models.WordPiece({t: i for i, t in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def peer_ids(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Ids by Hugging Face alone, each text as a whole."""
    tokenizer.encode_special_tokens = True
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


def our_ids(encoder: WordPieceEncoder, texts: list[str]) -> list[list[int]]:
    return [ids.tolist() for ids in encoder.encode(texts)]


@pytest.fixture(scope="module")
def hostile_strings() -> list[str]:
    return list(draw_hostile_strings(seed=1))


def draw_hostile_strings(seed: int) -> Iterator[str]:
    """Draw strings of 0 to 24 characters and words."""
    draw = random.Random(seed)

    def character() -> str:
        chance = draw.random()
        if chance < 0.3:
            return draw.choice(HOSTILE)
        if chance < 0.4:
            return draw.choice(WORDS) if chance < 0.39 else draw.choice(LONG_WORDS)
        if chance < 0.5:
            return draw.choice(" .\u0301ab")
        code = draw.randrange(0x110000) if chance < 0.55 else draw.randrange(*draw.choice(BLOCKS))
        return chr(code) if not 0xD800 <= code < 0xE000 else "\ufffe"

    for _ in range(NUM_HOSTILE):
        yield "".join(character() for _ in range(draw.randint(0, 24)))


CASINGS = [(True, None), (True, False), (False, None), (False, True)]
PAIRS = [(WordPieceEncoder(make_tokenizer(*casing)), make_tokenizer(*casing)) for casing in CASINGS]


@settings(max_examples=400, deadline=None)
@given(st.lists(hostile_text, min_size=1, max_size=4), st.integers(0, len(PAIRS) - 1))
def test_ids_are_those_of_hugging_face(texts: list[str], which: int) -> None:
    encoder, peer = PAIRS[which]
    assert our_ids(encoder, texts) == peer_ids(peer, texts)


@pytest.mark.parametrize("casing", [(True, None), (True, False), (False, None)], ids=["lower", "accents", "cased"])
def test_ids_are_those_of_hugging_face_on_100_000_hostile_strings(
    casing: tuple[bool, bool | None], hostile_strings: list[str]
) -> None:
    texts = hostile_strings
    assert len(texts) == NUM_HOSTILE
    peer = make_large_tokenizer(*casing)
    encoder = WordPieceEncoder(make_large_tokenizer(*casing), cached_words=50_000)
    for begin in range(0, len(texts), BATCH):
        batch = texts[begin : begin + BATCH]
        for text, ours, theirs in zip(batch, our_ids(encoder, batch), peer_ids(peer, batch), strict=True):
            assert ours == theirs, ascii(text)


@pytest.mark.parametrize("casing", [(True, None), (False, None)], ids=["lower", "cased"])
def test_every_character_is_read_as_hugging_face_reads_it(casing: tuple[bool, bool | None]) -> None:
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000 and not 0x30100 <= code < 0xE0000]
    texts = [f"a{chr(code)}b" for code in codes if code < 0xE1000 or code % 101 == 0]
    encoder, peer = WordPieceEncoder(make_large_tokenizer(*casing)), make_large_tokenizer(*casing)
    assert our_ids(encoder, texts) == peer_ids(peer, texts)


@pytest.mark.parametrize("option", ["clean_text", "handle_chinese_chars"])
def test_parts_of_the_normalizer_may_be_off(option: str) -> None:
    encoder, peer = (make(make_tokenizer(True, None, **{option: False})) for make in (WordPieceEncoder, lambda x: x))
    texts = [*HOSTILE, "中文 a中b", "a\x0bb\x00c\x1cd\x85e", *WORDS, *LONG_WORDS, "".join(WORDS), " ".join(WORDS)]
    assert our_ids(encoder, texts) == peer_ids(peer, texts)


def test_flat_ids_are_those_of_the_sentences_end_to_end() -> None:
    texts = ["the fox", "", "\x00 \u200b", "Café.", " the\u2028"]
    encoder, peer = PAIRS[0]
    ids, lengths = encoder.encode_flat(texts)
    expected = peer_ids(peer, texts)
    assert ids.dtype == np.int16
    assert lengths.dtype == np.int32
    assert lengths.tolist() == [2, 0, 0, 3, 1]
    assert ids.tolist() == [token for sentence in expected for token in sentence]


def test_no_sentence_gives_no_ids() -> None:
    ids, lengths = PAIRS[0][0].encode_flat([])
    assert (ids.tolist(), ids.dtype, lengths.tolist()) == ([], np.int16, [])
    assert PAIRS[0][0].encode([]) == []


def test_large_vocabularies_take_four_bytes() -> None:
    letters = [chr(code) for code in range(0x4E00, 0x4E00 + 20_000)]
    peer = _tokenizer(letters, normalizers.BertNormalizer())
    ids, lengths = WordPieceEncoder(_tokenizer(letters, normalizers.BertNormalizer())).encode_flat(["龥一", "一"])
    assert (ids.dtype, lengths.tolist()) == (np.int32, [2, 1])
    assert ids.tolist() == [token for sentence in peer_ids(peer, ["龥一", "一"]) for token in sentence]


def test_text_like_a_special_token_is_ordinary_text(tokenizer_dir: Path) -> None:
    encoder = WordPieceEncoder(load_tokenizer(tokenizer_dir))
    ids = encoder.encode(["[SEP] [CLS] [PAD] [MASK] the fox[SEP]"])[0].tolist()
    specials = {load_tokenizer(tokenizer_dir).token_to_id(token) for token in SPECIAL_TOKENS} - {1}
    assert not specials & set(ids)
    assert len(ids) > 10


def test_a_stream_of_new_words_takes_bounded_memory() -> None:
    encoder = WordPieceEncoder(make_tokenizer(True, None), cached_words=1_000)
    peer = PAIRS[0][1]
    sizes = set()
    for turn in range(4):
        texts = [f"w{turn}x{index} the {'y' * 60} {'z' * turn * 40}" for index in range(1_500)]
        assert our_ids(encoder, texts) == peer_ids(peer, texts)
        assert encoder.num_cached_words <= 1_000
        sizes.add(encoder.cache_bytes)
    assert len(sizes) == 1
    assert sizes.pop() < 4 << 20


def test_a_huge_word_leaves_no_memory_behind() -> None:
    encoder = WordPieceEncoder(make_tokenizer(True, None), cached_words=1_000)
    encoder.encode(["the fox"])
    before = encoder.cache_bytes
    texts = ["the " + "x" * 300_000 + " fox", "é" * 100_000, "fox"]
    assert our_ids(encoder, texts) == peer_ids(PAIRS[0][1], texts)
    assert encoder.cache_bytes == before


def test_an_endless_word_costs_no_more_than_its_bytes() -> None:
    encoder = WordPieceEncoder(make_tokenizer(True, None))
    tracemalloc.start()
    ids = encoder.encode(["the " + "x" * 5_000_000 + " fox"])[0]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    unknown = PAIRS[0][1].token_to_id("[UNK]")
    assert ids.tolist() == our_ids(encoder, ["the"])[0] + [unknown] + our_ids(encoder, ["fox"])[0]
    assert peak < 60_000_000


def test_long_words_are_not_kept() -> None:
    encoder = WordPieceEncoder(make_tokenizer(True, None))
    for _ in range(3):
        encoder.encode(["x" * 97 + " fox"])
    assert encoder.num_cached_words == 4
    encoder.encode(["x" * 96])
    encoder.encode(["x" * 96])
    assert encoder.num_cached_words == 5


def test_the_callers_tokenizer_keeps_its_tokens() -> None:
    tokenizer = make_tokenizer(True, None)
    before = tokenizer.to_str()
    WordPieceEncoder(tokenizer).encode(["the fox\n[SEP]"])
    assert tokenizer.to_str() == before


def other_pre_tokenizer() -> Tokenizer:
    tokenizer = make_tokenizer(True, None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.WhitespaceSplit()])
    return tokenizer


def with_an_added_word() -> Tokenizer:
    tokenizer = make_tokenizer(True, None)
    tokenizer.add_tokens([AddedToken("the fox", normalized=True)])
    return tokenizer


def byte_level_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(["the fox eats the other foxes"] * 20, trainer)
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram([("[UNK]", 0.0), ("▁", -2.0), ("▁the", -1.0), ("fox", -1.5), ("e", -3.0)], 0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


@pytest.mark.parametrize("make", [other_pre_tokenizer, with_an_added_word, byte_level_bpe, unigram])
def test_another_kind_of_tokenizer_is_used_as_it_is(make: Callable[[], Tokenizer]) -> None:
    texts = ["the fox.", "", "  the\x0bfox\n[SEP]", *WORDS, HOSTILE, "the fox" * 50]
    encoder, peer = WordPieceEncoder(make()), make()
    assert our_ids(encoder, texts) == peer_ids(peer, texts)
    assert encoder.num_cached_words == encoder.cache_bytes == 0
    ids, lengths = encoder.encode_flat(texts)
    assert ids.size == lengths.sum()
    assert encoder.encode([]) == []


def test_control_characters_join_words() -> None:
    assert split_words("a\x0bb\x1cc d\x85e") == ["abc", "de"]


@pytest.mark.parametrize(("size", "name"), [(32_768, "int16"), (32_769, "int32")])
def test_small_vocabularies_take_two_bytes(size: int, name: str) -> None:
    assert token_dtype(size).__name__ == name
