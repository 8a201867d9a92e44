"""The figures of an audit, as the text, the page and the JSON file show them.

The JSON file is `Audit` with its fields as keys, in their order; the docstrings here say what each counts.
Shares are from 0 to 1. Keys may be added; none changes its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pretrain.audit.lengths import Lengths
from pretrain.audit.masks import MaskFigures
from pretrain.audit.pairs import PairFigures
from pretrain.audit.repeats import Repeats
from pretrain.audit.samples import Sample

FORMAT = "zerobert-audit"
VERSION = 1


SHARES = (
    "unk_share",
    "unk_sentence_share",
    "special_share",
    "single_sentence_share",
    "long_share",
    "beyond_share",
)
"""Properties of a split that stand in the JSON file as well."""


def share(part: float, whole: float) -> float:
    """Return part / whole, 0 where there is nothing."""
    return part / whole if whole else 0.0


@dataclass(frozen=True)
class RepeatedSentence:
    """A sentence that a split holds more than once.

    Attributes:
        text: The sentence, decoded; its beginning where it is long.
        count: How often the split holds it.
        is_least: True: at least so often.
    """

    text: str
    count: int
    is_least: bool


@dataclass(frozen=True)
class SplitFigures:
    """What a split holds.

    Attributes:
        documents: Documents.
        sentences: Sentences.
        tokens: Tokens, without specials of pairs.
        single_sentence_documents: Documents of one sentence.
        unk_tokens: Tokens that are [UNK].
        unk_sentences: Sentences with one or more.
        special_tokens: [PAD], [CLS], [SEP] and [MASK] in the text itself.
        unknown_ids: Ids below 0 or beyond the vocabulary.
        empty_sentences: Sentences without a token.
        empty_documents: Documents without a sentence.
        long_sentences: Sentences of more tokens than a pair can hold.
        tokens_beyond: Their tokens above that: truncated away in every epoch.
        sentence_tokens: Tokens a sentence.
        document_sentences: Sentences a document.
        document_tokens: Tokens a document.
        duplicate_documents: Documents equal to another one.
        duplicate_sentences: Sentences equal to another one.
        most_repeated: The most repeated sentences.
    """

    documents: int
    sentences: int
    tokens: int
    single_sentence_documents: int
    unk_tokens: int
    unk_sentences: int
    special_tokens: int
    unknown_ids: int
    empty_sentences: int
    empty_documents: int
    long_sentences: int
    tokens_beyond: int
    sentence_tokens: Lengths
    document_sentences: Lengths
    document_tokens: Lengths
    duplicate_documents: Repeats
    duplicate_sentences: Repeats
    most_repeated: tuple[RepeatedSentence, ...]

    @property
    def unk_share(self) -> float:
        """Share of [UNK] among the tokens."""
        return share(self.unk_tokens, self.tokens)

    @property
    def unk_sentence_share(self) -> float:
        """Share of sentences with an [UNK]."""
        return share(self.unk_sentences, self.sentences)

    @property
    def special_share(self) -> float:
        """Share of special tokens among the tokens, [UNK] not counted."""
        return share(self.special_tokens, self.tokens)

    @property
    def single_sentence_share(self) -> float:
        """Share of documents of one sentence."""
        return share(self.single_sentence_documents, self.documents)

    @property
    def long_share(self) -> float:
        """Share of sentences that are longer than a pair."""
        return share(self.long_sentences, self.sentences)

    @property
    def beyond_share(self) -> float:
        """Share of the tokens that are truncated away in every epoch."""
        return share(self.tokens_beyond, self.tokens)


@dataclass(frozen=True)
class Overlap:
    """What stands in both splits.

    Attributes:
        documents: Different documents of the validation split that the train split holds too.
        sentence_share: Share of the different sentences of the validation split that the train split holds too.
    """

    documents: int
    sentence_share: float


@dataclass(frozen=True)
class TokenCount:
    """How often a token stands in the train split, and its share."""

    token: str
    count: int
    share: float


@dataclass(frozen=True)
class VocabularyFigures:
    """The tokenizer against the train split.

    Attributes:
        size: Tokens of the tokenizer.
        unused: Tokens that the split never uses, special ones not counted.
        entropy_nats: Entropy of the tokens' distribution: the loss of a model that knows their frequencies alone.
        most_frequent: The most frequent tokens.
        ranks: (rank, count) of tokens by frequency, thinned out for a plot.
    """

    size: int
    unused: int
    entropy_nats: float
    most_frequent: tuple[TokenCount, ...]
    ranks: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Audit:
    """All figures.

    Attributes:
        shards_dir: The folder of shards.
        fingerprint: SHA-256 of its manifest.json.
        tokenizer_dir: The tokenizer folder.
        settings: seed, seq_len, short_seq_prob, nsp, mlm_probability.
        damaged: What is wrong with each file that holds other bytes than the manifest says. Its shard is in no figure.
        incomplete: Names of the splits that such a shard belongs to: they have no pairs, and their figures are of the
            sound shards alone.
        splits: By name: "train", "validation".
        overlap: None where one of the two is empty; of the sound shards.
        vocabulary: None without a train split.
        pairs: Of epoch 0, by split; a split whose pairs can't be made is missing.
        not_paired: By split: why its pairs can't be made.
        masks: None where the train split has no pairs.
        dropped: How much `zerobert shard` left out, by reason.
        repaired: Faults of the input in documents that were kept, by reason.
        places: The first places of faults, repaired or left out: path, offset, reason, detail.
        samples: Decoded pairs of the train split.
    """

    shards_dir: str
    fingerprint: str
    tokenizer_dir: str
    settings: Mapping[str, Any]
    damaged: tuple[str, ...]
    incomplete: tuple[str, ...]
    splits: Mapping[str, SplitFigures]
    overlap: Overlap | None
    vocabulary: VocabularyFigures | None
    pairs: Mapping[str, PairFigures]
    not_paired: Mapping[str, str]
    masks: MaskFigures | None
    dropped: Mapping[str, int]
    repaired: Mapping[str, int]
    places: Sequence[Mapping[str, Any]]
    samples: tuple[Sample, ...]

    @property
    def train(self) -> SplitFigures:
        """The train split."""
        return self.splits["train"]

    @property
    def validation(self) -> SplitFigures:
        """The validation split."""
        return self.splits["validation"]

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain values, with "format" and "version" first."""
        value = {"format": FORMAT, "version": VERSION, **asdict(self)}
        for name, split in self.splits.items():
            value["splits"][name].update({key: getattr(split, key) for key in SHARES})
        return value
