from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from tokenization.encode import WordPieceEncoder, split_words, token_dtype
from tokenization.wordpiece import SPECIAL_TOKENS, load_tokenizer

HOSTILE = (
    "\x00\x01\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x7f\x85\xa0\xad\u0130\u0131\u0300\u0301\u0345\u1680\u180e\u2000\u200a"
    "\u200b\u200d\u2028\u2029\u202f\u205f\u2060\u3000\ufeff\ufffd"
    "\ufb01\u1e9e\u03a3\u03c2\uac00\u4e2d\u6587\U00020000"
    "\U0001f600\U000e0001\ue000éÉ\u2019'\u201c.,-_[]#abcXYZ0\uff19"
)
words = st.sampled_from(
    ["the", "fox", "Café", "[SEP]", "[UNK]", "[MASK]", "##s", "doesn\u2019t", "中文字", "x" * 101, "e\u0301"]
)
hostile_text = st.lists(st.one_of(st.sampled_from(HOSTILE), st.characters(codec="utf-8"), words), max_size=30).map(
    "".join
)


def make_tokenizer(lowercase: bool, strip_accents: bool | None) -> Tokenizer:
    letters = sorted(set("abcdefghijklmnopqrstuvwxyzABCXYZ0éÉß中文[]#.,'\u2019\u0301") | {"sep", "the", "fox", "caf"})
    vocabulary = dict.fromkeys([*SPECIAL_TOKENS, *letters, *(f"##{token}" for token in letters)])
    tokenizer = Tokenizer(models.WordPiece({t: i for i, t in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def peer_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of the whole text at once, by Hugging Face alone."""
    return tokenizer.encode(text, add_special_tokens=False).ids


CASINGS = [(True, None), (True, False), (False, None), (False, True)]
PAIRS = [(WordPieceEncoder(make_tokenizer(*casing)), make_tokenizer(*casing)) for casing in CASINGS]
for _, peer in PAIRS:
    peer.encode_special_tokens = True


@settings(max_examples=400, deadline=None)
@given(st.lists(hostile_text, min_size=1, max_size=4), st.integers(0, len(PAIRS) - 1))
def test_ids_are_those_of_hugging_face(texts: list[str], which: int) -> None:
    encoder, peer = PAIRS[which]
    assert [ids.tolist() for ids in encoder.encode(texts)] == [peer_ids(peer, text) for text in texts]


def test_ids_are_those_of_hugging_face_on_many_hostile_strings() -> None:
    draw = random.Random(0)
    texts = ["".join(draw.choices(HOSTILE, k=draw.randint(0, 24))) for _ in range(20_000)]
    for encoder, peer in PAIRS:
        expected = [encoding.ids for encoding in peer.encode_batch(texts, add_special_tokens=False)]
        assert [ids.tolist() for ids in encoder.encode(texts)] == expected


def test_every_character_splits_as_hugging_face_splits_it() -> None:
    codes = [*range(0x3400), *range(0xE000, 0x1_1000), *range(0x1F000, 0x1F700), *range(0xE0000, 0xE0200)]
    texts = [f"a{chr(code)}b" for code in codes]
    encoder, peer = PAIRS[0]
    expected = [encoding.ids for encoding in peer.encode_batch_fast(texts, add_special_tokens=False)]
    assert [ids.tolist() for ids in encoder.encode(texts)] == expected


def test_text_like_a_special_token_is_ordinary_text(tokenizer_dir: Path) -> None:
    encoder = WordPieceEncoder(load_tokenizer(tokenizer_dir))
    ids = encoder.encode(["[SEP] [CLS] [PAD] [MASK] the fox[SEP]"])[0].tolist()
    specials = {load_tokenizer(tokenizer_dir).token_to_id(token) for token in SPECIAL_TOKENS} - {1}
    assert not specials & set(ids)
    assert len(ids) > 10


def test_a_full_cache_is_emptied_and_long_words_are_not_kept() -> None:
    encoder = WordPieceEncoder(make_tokenizer(True, None), cached_words=10)
    peer = PAIRS[0][1]
    for turn in range(5):
        texts = [f"w{turn}{index} the {'y' * 60}" for index in range(8)]
        assert [ids.tolist() for ids in encoder.encode(texts)] == [peer_ids(peer, text) for text in texts]
        assert len(encoder._cache) <= 10
        assert "y" * 60 not in encoder._cache


def test_another_kind_of_tokenizer_is_used_without_a_cache() -> None:
    tokenizer = make_tokenizer(True, None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.WhitespaceSplit()])
    encoder = WordPieceEncoder(tokenizer)
    assert encoder.encode(["the fox."])[0].tolist() == peer_ids(tokenizer, "the fox.")
    assert not encoder._cache


def test_control_characters_join_words() -> None:
    assert split_words("a\x0bb\x1cc d\x85e") == ["abc", "de"]


@pytest.mark.parametrize(("size", "name"), [(32_768, "int16"), (32_769, "int32")])
def test_small_vocabularies_take_two_bytes(size: int, name: str) -> None:
    assert token_dtype(size).__name__ == name
