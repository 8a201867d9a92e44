"""Decoded pairs, and text that is made safe to show."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pretrain.audit.reading import TokenReader, visible
from pretrain.audit.samples import KEPT, MASKED, PLAIN, REPLACED, SPECIAL, Mark, Sample, _marks
from pretrain.audit.text import read_sample
from pretrain.data.reader import TokenStream
from tests.pretrain.audit.workshop import random_documents

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "brown", "fox", "##es", "jump", "blue", "over"]


@pytest.fixture
def reader(tmp_path):
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return TokenReader(tmp_path)


def test_a_pair_as_a_person_reads_it(reader):
    ids = [
        WORDS.index(word) for word in "[CLS] ##es the quick [MASK] fox ##es [SEP] jump blue the [MASK] [SEP]".split()
    ]
    stream = TokenStream(
        input_ids=np.array(ids),
        token_type_ids=np.array([0] * 8 + [1] * 5),
        position_ids=np.arange(13),
        cu_seqlens=np.array([0, 13], dtype=np.int32),
        masked_positions=np.array([4, 8, 9, 11]),
        labels=np.array([WORDS.index(word) for word in ("brown", "jump", "over", "fox")]),
        next_sentence_label=np.array([0]),
    )
    marks = _marks(stream, reader)
    sample = Sample(0, "next", 13, marks)
    assert (
        read_sample(sample) == "[CLS] …es the quick [MASK→brown] foxes [SEP] [=jump] [blue→over] the [MASK→fox] [SEP]"
    )
    assert [mark.kind for mark in marks] == [
        SPECIAL, PLAIN, MASKED, PLAIN, SPECIAL, KEPT, REPLACED, PLAIN, MASKED, SPECIAL,
    ]  # fmt: skip
    assert marks[3] == Mark(PLAIN, "foxes", "", False)


def test_samples_come_from_all_over_the_text(workshop):
    audit = workshop.audit(workshop.shards([random_documents(0, 40, (12, 20), (8, 20))]), num_samples=5)
    pairs = audit.pairs["train"].pairs
    numbers = [sample.pair for sample in audit.samples]
    assert len(numbers) == 5
    assert numbers[0] < pairs / 5
    assert numbers[-1] >= 4 * pairs / 5
    assert {sample.label for sample in audit.samples} <= {"next", "random"}
    for sample in audit.samples:
        assert sum(mark.kind == SPECIAL for mark in sample.marks) == 3
        predicted = sum(mark.kind in (MASKED, KEPT, REPLACED) for mark in sample.marks)
        assert predicted == max(1, round(0.15 * sample.tokens))


def test_without_nsp_there_is_one_segment(workshop):
    audit = workshop.audit(workshop.shards([random_documents(0, 4, (2, 3), (8, 20))]), nsp=False)
    assert {sample.label for sample in audit.samples} == {""}
    assert all(sum(mark.kind == SPECIAL for mark in sample.marks) == 2 for sample in audit.samples)


def test_no_samples_where_none_are_wanted(workshop):
    assert workshop.audit(workshop.shards([random_documents(0, 4, (2, 3), (8, 20))]), num_samples=0).samples == ()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain café 日本", "plain café 日本"),
        ("bell\x07", "bell⟨U+0007⟩"),
        ("\u202eodd", "⟨U+202E⟩odd"),
        ("a\nb\tc", "a⟨U+000A⟩b⟨U+0009⟩c"),
        ("\x1b[31m", "⟨U+001B⟩[31m"),
        ("x\u2028y\ufeff\u200b", "x⟨U+2028⟩y⟨U+FEFF⟩⟨U+200B⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("می\u200cروم", "می\u200cروم"),
    ],
)
def test_what_acts_in_secret_is_shown(text, shown):
    assert visible(text) == shown


def test_an_unknown_id_has_a_name(reader):
    assert reader.token(99) == "⟨no token 99⟩"


def test_long_text_is_cut(reader):
    assert reader.text([5, 6, 9, 7], most=3) == "the quickes …"


def test_byte_level_words_are_joined(tmp_path):
    vocab = {"[UNK]": 0, "Ġcaf": 1, "Ã©": 2, "Ġthe": 3}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert TokenReader(tmp_path).text([3, 1, 2, 3]) == "the café the"


def test_metaspace_words_are_joined(tmp_path):
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁caf", -1.0), ("é", -1.0), ("▁the", -1.0)], unk_id=0))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert TokenReader(tmp_path).text([3, 1, 2, 3]) == "the café the"
