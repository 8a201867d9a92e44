"""Each rule speaks where it should, and is silent where it should; real shards with planted faults are found out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pretrain.audit.figures import (
    Audit,
    Overlap,
    RepeatedSentence,
    SplitFigures,
    TokenCount,
    VocabularyFigures,
)
from pretrain.audit.findings import RULES, find
from pretrain.audit.indicators import percent
from pretrain.audit.lengths import Lengths
from pretrain.audit.masks import MaskFigures
from pretrain.audit.pairs import PairFigures
from pretrain.audit.repeats import Repeats
from pretrain.audit.rules import NOTE, SEVERE, SEVERITIES, WARNING
from tests.pretrain.audit.workshop import FIRST_WORD, SEP, UNK, VOCAB_SIZE, random_documents


def lengths(mean: float, longest: int = 100) -> Lengths:
    return Lengths(mean, int(mean), int(mean), int(mean), longest, ())


SPLIT = SplitFigures(
    documents=100_000,
    sentences=2_000_000,
    tokens=50_000_000,
    single_sentence_documents=1000,
    unk_tokens=100,
    unk_sentences=90,
    special_tokens=0,
    unknown_ids=0,
    empty_sentences=0,
    empty_documents=0,
    long_sentences=100,
    tokens_beyond=1000,
    sentence_tokens=lengths(25.0),
    document_sentences=lengths(20.0),
    document_tokens=lengths(500.0, 9000),
    duplicate_documents=Repeats(100_000, 99_990, 0.0001, False),
    duplicate_sentences=Repeats(2_000_000, 1_990_000, 0.005, False),
    most_repeated=(RepeatedSentence("all rights reserved", 9, False),),
)
PAIRS = PairFigures(
    pairs=400_000,
    tokens=48_000_000,
    mean_tokens=120.0,
    fill=120 / 128,
    padding_share=8 / 128,
    full_share=0.85,
    over_seq_len=0,
    random_pairs=208_000,
    random_share=0.52,
    wrong_random=0,
    wrong_next=0,
    lengths=lengths(120.0, 128),
)
MASKS = MaskFigures(200_000, 1_334_000, 0.1499, 0.8005, 0.1, 0.0995, 0, 0)
CLEAN = Audit(
    shards_dir="shards",
    fingerprint="f" * 64,
    tokenizer_dir="tokenizer",
    settings={"seed": 0, "seq_len": 128, "short_seq_prob": 0.1, "nsp": True, "mlm_probability": 0.15},
    damaged=(),
    incomplete=(),
    splits={"train": SPLIT, "validation": replace(SPLIT, documents=1000, sentences=20_000, tokens=500_000)},
    overlap=Overlap(0, 0.01),
    vocabulary=VocabularyFigures(30_000, 100, 6.4, (TokenCount("the", 3_000_000, 0.06),), ((1, 3_000_000),)),
    pairs={"train": PAIRS, "validation": PAIRS},
    not_paired={},
    masks=MASKS,
    dropped={"duplicate lines": 0, "empty documents": 100},
    repaired={},
    places=(),
    samples=(),
)


def train(**changes) -> Audit:
    return replace(CLEAN, splits={**CLEAN.splits, "train": replace(SPLIT, **changes)})


def validation(**changes) -> Audit:
    return replace(CLEAN, splits={**CLEAN.splits, "validation": replace(CLEAN.validation, **changes)})


def pairs(**changes) -> Audit:
    return replace(CLEAN, pairs={**CLEAN.pairs, "train": replace(PAIRS, **changes)})


def masks(**changes) -> Audit:
    return replace(CLEAN, masks=replace(MASKS, **changes))


def vocabulary(**changes) -> Audit:
    return replace(CLEAN, vocabulary=replace(CLEAN.vocabulary, **changes))


def short_documents(random_share: float) -> Audit:
    return replace(pairs(random_share=random_share), splits=train(document_sentences=lengths(4.0)).splits)


SPEAKS = [  # rule, severity, audit, a piece of the sentence
    ("damaged", SEVERE, replace(CLEAN, damaged=("x.bin: was changed",), incomplete=("train",)), "x.bin: was changed"),
    ("no_training_text", SEVERE, train(documents=0, sentences=0, tokens=50_000_000), "no document"),
    ("unknown_ids", SEVERE, train(unknown_ids=1), "1 token ids are no token"),
    ("empty_parts", SEVERE, train(empty_sentences=1), "1 sentences hold no token"),
    ("empty_parts", SEVERE, validation(empty_documents=2), "2 documents hold no sentence"),
    ("special_tokens", SEVERE, train(special_tokens=100_000), "100,000 tokens of the text"),
    ("special_tokens", WARNING, train(special_tokens=1), "1 tokens of the text"),
    ("unk", SEVERE, train(unk_tokens=2_600_000), "5.2 % of the tokens are [UNK]"),
    ("unk", WARNING, train(unk_tokens=600_000), "1.2 % of the tokens"),
    ("unk", NOTE, train(unk_tokens=100_000), "0.20 % of the tokens"),
    ("nsp_documents", SEVERE, train(documents=1, single_sentence_documents=0), "is one document"),
    ("single_sentence_documents", SEVERE, train(single_sentence_documents=91_000), "91.0 % of the documents"),
    ("single_sentence_documents", WARNING, train(single_sentence_documents=31_000), "31.0 % of the documents"),
    ("single_sentence_documents", NOTE, train(single_sentence_documents=6000), "6.0 % of the documents"),
    ("random_share", SEVERE, pairs(random_share=0.44), "44.0 % of the pairs"),
    ("random_share", SEVERE, pairs(random_share=0.61), "61.0 % of the pairs"),
    ("random_share_short", WARNING, short_documents(0.7), "70.0 % of the pairs are random, as documents have 4.0"),
    ("random_share_short", NOTE, short_documents(0.62), "62.0 %"),
    ("wrong_random_pairs", SEVERE, pairs(wrong_random=3), "3 random pairs"),
    ("wrong_next_pairs", SEVERE, pairs(wrong_next=4), "in 4 pairs"),
    ("pairs_over_seq_len", SEVERE, pairs(over_seq_len=5), "5 pairs"),
    ("mask_shares", SEVERE, masks(masked_share=0.785, kept_share=0.115), "78.5 % became [MASK]"),
    ("mask_shares", SEVERE, masks(masked_share=0.8, kept_share=0.111, random_share=0.089), "11.1 % stayed"),
    ("mask_places", SEVERE, masks(special_hits=1), "1 are on a pair's own"),
    ("mask_places", SEVERE, masks(bad_replacements=1), "1 replacements"),
    ("giant_sentences", SEVERE, train(sentence_tokens=lengths(129.0)), "129 tokens on average"),
    ("giant_sentences", WARNING, train(sentence_tokens=lengths(65.0)), "65 tokens on average"),
    ("long_sentences", SEVERE, train(tokens_beyond=16_000_000), "32.0 % of the tokens are cut off"),
    ("long_sentences", WARNING, train(tokens_beyond=3_000_000), "6.0 % of the tokens"),
    ("long_sentences", NOTE, train(tokens_beyond=300_000), "0.60 % of the tokens"),
    ("crumbs", WARNING, train(sentence_tokens=lengths(4.9)), "4.9 tokens on average"),
    ("one_long_document", WARNING, train(document_tokens=lengths(500.0, 13_000_000)), "26.0 % of the tokens"),
    ("duplicate_documents", SEVERE, train(duplicate_documents=Repeats(10, 6, 0.4, False)), "40.0 % of the documents"),
    ("duplicate_documents", WARNING, train(duplicate_documents=Repeats(10, 9, 0.1, True)), "about 10.0 %"),
    ("duplicate_documents", NOTE, train(duplicate_documents=Repeats(500, 499, 0.002, False)), "0.20 %"),
    ("duplicate_sentences", SEVERE, train(duplicate_sentences=Repeats(10, 3, 0.7, False)), "'all rights reserved'"),
    ("duplicate_sentences", WARNING, train(duplicate_sentences=Repeats(10, 7, 0.3, False)), "30.0 %"),
    ("duplicate_sentences", NOTE, train(duplicate_sentences=Repeats(10, 9, 0.1, False)), "10.0 %"),
    ("overlap_documents", SEVERE, replace(CLEAN, overlap=Overlap(1, 0.0)), "1 documents stand in both"),
    ("overlap_sentences", WARNING, replace(CLEAN, overlap=Overlap(0, 0.21)), "21.0 %"),
    ("overlap_sentences", NOTE, replace(CLEAN, overlap=Overlap(0, 0.06)), "6.0 %"),
    ("validation_empty", NOTE, validation(documents=0, sentences=0, tokens=0), "no held-out loss"),
    ("validation_nsp", WARNING, validation(documents=1), "no pairs can be made of it"),
    ("validation_large", NOTE, validation(tokens=6_000_000), "10.7 % of the tokens"),
    ("small_corpus", WARNING, train(tokens=900_000), "900,000 tokens"),
    ("small_corpus", NOTE, train(tokens=9_000_000), "9,000,000 tokens"),
    ("unused_tokens", WARNING, vocabulary(unused=9100), "9,100 of 30,000 tokens"),
    ("unused_tokens", NOTE, vocabulary(unused=1600), "(5.3 %)"),
    ("one_token", SEVERE, vocabulary(most_frequent=(TokenCount("-", 1, 0.6),)), "'-', is 60.0 %"),
    ("one_token", WARNING, vocabulary(most_frequent=(TokenCount("-", 1, 0.2),)), "'-', is 20.0 %"),
    ("dropped", WARNING, replace(CLEAN, dropped={"short documents": 60_000}), "60,000 short documents"),
    ("dropped", NOTE, replace(CLEAN, dropped={"short documents": 2000, "x": 0}), "dropped 2,000 short documents"),
    ("repaired", WARNING, replace(CLEAN, repaired={"bad bytes": 2000}), "2,000 bad bytes"),
    ("repaired", NOTE, replace(CLEAN, repaired={"bad bytes": 1}), "1 bad bytes"),
    ("fill", WARNING, pairs(padding_share=0.6, mean_tokens=51.2), "51 of 128 tokens"),
    ("fill", NOTE, pairs(padding_share=0.3, mean_tokens=90.0), "spend 30.0 %"),
    ("prediction_share", WARNING, masks(prediction_share=0.21), "21.0 % of the tokens"),
    ("prediction_share", NOTE, masks(prediction_share=0.17), "17.0 % of the tokens"),
]
OTHERS_THAT_SPEAK_TOO = {"no_training_text": {"small_corpus", "dropped"}, "validation_large": set()}


def test_a_clean_corpus_has_no_finding():
    assert find(CLEAN) == []


@pytest.mark.parametrize(("name", "severity", "audit", "words"), SPEAKS)
def test_a_rule_speaks(name, severity, audit, words):
    findings = {finding.name: finding for finding in find(audit)}
    assert findings[name].severity == severity
    assert words in findings[name].text
    assert len(findings[name].remedy) > 20


def test_every_severity_of_every_rule_is_tried():
    due = {(rule.name, severity) for rule in RULES for severity in rule.limits}
    assert due == {(name, severity) for name, severity, *_ in SPEAKS}


JUST_FINE = [
    train(unk_tokens=40_000),
    train(single_sentence_documents=4900),
    pairs(random_share=0.4501),
    pairs(random_share=0.5999),
    masks(masked_share=0.791, kept_share=0.109, random_share=0.1),
    train(sentence_tokens=lengths(63.0)),
    train(sentence_tokens=lengths(5.0)),
    train(tokens_beyond=200_000),
    train(document_tokens=lengths(500.0, 12_000_000)),
    train(duplicate_documents=Repeats(10_000, 9995, 0.0005, False)),
    train(duplicate_sentences=Repeats(1000, 960, 0.04, False)),
    replace(CLEAN, overlap=Overlap(0, 0.049)),
    replace(CLEAN, overlap=None),
    validation(documents=2),
    validation(tokens=5_000_000),
    train(tokens=10_000_000, tokens_beyond=0),
    vocabulary(unused=1400),
    vocabulary(most_frequent=(TokenCount("the", 1, 0.14),)),
    replace(CLEAN, dropped={"x": 900}),
    pairs(padding_share=0.19),
    masks(prediction_share=0.159),
    # without NSP there is nothing to be random, and one document is enough
    replace(train(documents=1), settings={**CLEAN.settings, "nsp": False}, pairs={"train": PAIRS}, dropped={}),
    replace(pairs(random_share=0.0), settings={**CLEAN.settings, "nsp": False}),
    short_documents(0.59),
]


@pytest.mark.parametrize("audit", JUST_FINE)
def test_figures_within_their_limits_are_not_mentioned(audit):
    assert find(audit) == []


def test_few_draws_may_miss_by_chance_alone():
    few = {"predictions": 1000, "masked_share": 0.78, "kept_share": 0.11, "random_share": 0.11}
    assert find(masks(**few)) == []
    assert [finding.name for finding in find(masks(**{**few, "predictions": 200_000}))] == ["mask_shares"]
    assert find(pairs(pairs=20, random_share=0.75)) == []


def test_the_most_severe_comes_first():
    audit = replace(train(unk_tokens=100_000, special_tokens=3), overlap=Overlap(9, 0.0))
    severities = [finding.severity for finding in find(audit)]
    assert severities == sorted(severities, key=SEVERITIES.index) == [SEVERE, WARNING, NOTE]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 %"), (1, "100.0 %"), (0.5, "50.0 %"), (0.0123, "1.2 %"), (0.00123, "0.12 %"), (3e-6, "0.00030 %")],
)
def test_shares_as_text(value, text):
    assert percent(value) == text


def test_remedies_tell_text_from_tokens():
    remedies = {rule.name: rule.remedy for rule in RULES}
    for name in ("duplicate_documents", "overlap_documents"):
        assert "differ in case or spaces alone" in remedies[name]


def names(audit: Audit, severity: str | None = None) -> set[str]:
    return {finding.name for finding in find(audit) if severity in (None, finding.severity)}


@pytest.fixture
def documents():
    return random_documents(0, 40, (12, 20), (8, 20))


def test_sound_shards_have_no_severe_finding(workshop, documents):
    audit = workshop.audit(workshop.shards([documents[:20], documents[20:36]], [documents[36:]]))
    assert names(audit, SEVERE) == set()
    assert audit.overlap == Overlap(0, 0.0)
    assert (audit.train.documents, audit.validation.documents) == (36, 4)


def test_one_document_is_a_finding_not_a_crash(workshop, documents):
    shards = workshop.shards([documents[:1]], [documents[1:4]])
    audit = workshop.audit(shards)
    assert names(audit, SEVERE) == {"nsp_documents"}
    assert (audit.masks, audit.samples) == (None, ())
    assert set(audit.pairs) == {"validation"}
    assert "nsp_documents" not in names(workshop.audit(shards, nsp=False))


def test_a_planted_overlap_is_found(workshop, documents):
    audit = workshop.audit(workshop.shards([documents[:30]], [[documents[7], *documents[30:33]]]))
    assert audit.overlap is not None
    assert audit.overlap.documents == 1
    assert 0.1 < audit.overlap.sentence_share < 0.5
    assert "overlap_documents" in names(audit, SEVERE)


def test_thousands_of_repeated_lines_are_reported(workshop, documents):
    line = [FIRST_WORD, FIRST_WORD + 1, FIRST_WORD + 2]
    sentences = sum(len(document) for document in documents)
    audit = workshop.audit(workshop.shards([[*documents, *[[line] * 100] * 30]]))
    assert audit.train.duplicate_sentences.share == pytest.approx(2999 / (sentences + 3000))
    top = audit.train.most_repeated[0]
    assert (top.text, top.count, top.is_least) == (
        f"w{FIRST_WORD} w{FIRST_WORD + 1}##w{FIRST_WORD + 2}".replace("##", ""),
        3000,
        False,
    )
    assert "duplicate_sentences" in names(audit, SEVERE)
    assert audit.train.duplicate_documents.share == pytest.approx(29 / 70)
    assert "duplicate_documents" in names(audit, SEVERE)


def test_unknown_words_at_a_known_rate_give_the_exact_figure(workshop):
    # 5 of 100 tokens in every sentence of the first half
    documents = [[[UNK] * 5 + [50 + number] * 95] * 12 for number in range(10)]
    documents += [[[80 + number] * 100] * 12 for number in range(10)]
    audit = workshop.audit(workshop.shards([documents]))
    assert audit.train.unk_share == 0.025
    assert audit.train.unk_sentence_share == 0.5
    assert {finding.name: finding.severity for finding in find(audit)}["unk"] == WARNING


def test_shards_with_special_tokens_in_the_text(workshop, documents):
    audit = workshop.audit(workshop.shards([[[[*sentence, SEP] for sentence in document] for document in documents]]))
    assert "special_tokens" in names(audit, SEVERE)


def test_ids_beyond_the_vocabulary_are_a_finding(workshop, documents):
    audit = workshop.audit(workshop.shards([[*documents, [[VOCAB_SIZE]]]]))
    assert "unknown_ids" in names(audit, SEVERE)
    assert audit.not_paired["train"] == "there are ids that the tokenizer does not have"


def test_an_empty_validation_split_is_a_note(workshop, documents):
    audit = workshop.audit(workshop.shards([documents]))
    assert "validation_empty" in names(audit, NOTE)
    assert audit.overlap is None
    assert names(audit, SEVERE) == set()


def test_every_document_one_sentence(workshop, documents):
    lines = [[sentence] for document in documents for sentence in document]
    audit = workshop.audit(workshop.shards([lines]))
    assert audit.train.single_sentence_share == 1
    assert audit.pairs["train"].random_share == 1
    assert {"single_sentence_documents"} <= names(audit, SEVERE)


def test_documents_of_one_giant_sentence(workshop, documents):
    giants = [[[token for sentence in document for token in sentence]] for document in documents]
    audit = workshop.audit(workshop.shards([giants]))
    assert {"giant_sentences", "long_sentences"} <= names(audit, SEVERE)
    assert audit.train.tokens_beyond == sum(len(document[0]) - 125 for document in giants)


def test_wider_ids_give_the_same_figures(workshop, documents):
    import numpy as np

    narrow, wide = (workshop.audit(workshop.shards([documents], dtype=dtype)) for dtype in (np.int16, np.int32))
    assert narrow.splits == wide.splits
    assert narrow.pairs == wide.pairs
    assert narrow.samples == wide.samples
