"""What may be wrong with the text, the vocabulary and the files."""

from __future__ import annotations

from pretrain.audit import indicators as of
from pretrain.audit.figures import share
from pretrain.audit.indicators import percent
from pretrain.audit.rules import CUT_DOCUMENTS, NOTE, SEVERE, WARNING, Rule

_AGAIN = "Restore the files from where they were made, or make them again with zerobert shard --force."
_ENCODE_AGAIN = "Make the shards again with zerobert shard --tokenizer, with the tokenizer that training will use."
_CUT_SENTENCES = (
    "Sentences were not found. Make the shards again with zerobert shard --language of the text, or with --sentences "
    "line where each line is a sentence."
)

TEXT_RULES: tuple[Rule, ...] = (
    Rule(
        name="damaged",
        meaning="shards whose files hold other bytes than the manifest says",
        figure=lambda a: len(a.damaged),
        limits={SEVERE: 0},
        text=lambda a: f"{len(a.damaged)} shards are damaged, and in no figure: {'; '.join(a.damaged[:3])}",
        remedy=_AGAIN,
    ),
    Rule(
        name="no_training_text",
        meaning="whether the train split is empty",
        figure=lambda a: float(a.train.documents == 0 and of.is_whole(a, "train")),
        limits={SEVERE: 0},
        text=lambda a: "the train split holds no document",
        remedy="Lower --validation-share of zerobert shard, or add text.",
    ),
    Rule(
        name="unknown_ids",
        meaning="ids that the tokenizer does not have",
        figure=lambda a: of.both(a, "unknown_ids"),
        limits={SEVERE: 0},
        text=lambda a: f"{of.both(a, 'unknown_ids'):,} token ids are no token of the tokenizer{of.which_has(a)}",
        remedy=_ENCODE_AGAIN,
    ),
    Rule(
        name="empty_parts",
        meaning="documents without a sentence and sentences without a token",
        figure=lambda a: of.both(a, "empty_sentences") + of.both(a, "empty_documents"),
        limits={SEVERE: 0},
        text=lambda a: (
            f"{of.both(a, 'empty_documents'):,} documents hold no sentence, "
            f"{of.both(a, 'empty_sentences'):,} sentences hold no token: no plan can be made of them"
        ),
        remedy="Make the shards again: zerobert shard drops both, and counts them in the manifest.",
    ),
    Rule(
        name="special_tokens",
        meaning="share of [PAD], [CLS], [SEP] and [MASK] among the tokens of the text",
        figure=lambda a: share(of.both(a, "special_tokens"), of.both(a, "tokens")),
        limits={SEVERE: 0.001, WARNING: 0},
        text=lambda a: (
            f"{of.both(a, 'special_tokens'):,} tokens of the text are [PAD], [CLS], [SEP] or [MASK] "
            f"({percent(a.train.special_share)} of the train split)"
        ),
        remedy="Shards hold sentences without special tokens: training adds them. Where another program made the "
        "shards, turn off its special tokens; where they stand in the text as words, remove them there.",
    ),
    Rule(
        name="unk",
        meaning="share of [UNK] among the tokens of the train split",
        figure=lambda a: a.train.unk_share,
        limits={SEVERE: 0.05, WARNING: 0.01, NOTE: 0.001},
        text=lambda a: (
            f"{percent(a.train.unk_share)} of the tokens are [UNK], in "
            f"{percent(a.train.unk_sentence_share)} of the sentences: nothing is learned from them"
        ),
        remedy="Train a tokenizer on this text (zerobert tokenizer --input, all its languages, --vocab-size larger), "
        "and check the text's --encoding.",
    ),
    Rule(
        name="single_sentence_documents",
        meaning="share of documents of one sentence",
        figure=lambda a: a.train.single_sentence_share if a.settings["nsp"] else None,
        limits={SEVERE: 0.9, WARNING: 0.3, NOTE: 0.05},
        text=lambda a: (
            f"{percent(a.train.single_sentence_share)} of the documents are one sentence: "
            "nothing follows it, so that each of its pairs is random"
        ),
        remedy=CUT_DOCUMENTS,
    ),
    Rule(
        name="giant_sentences",
        meaning="mean tokens of a sentence over seq_len",
        figure=lambda a: share(a.train.sentence_tokens.mean, a.settings["seq_len"]),
        limits={SEVERE: 1, WARNING: 0.5},
        text=lambda a: (
            f"a sentence has {a.train.sentence_tokens.mean:,.0f} tokens on average, seq_len is {a.settings['seq_len']}"
        ),
        remedy=_CUT_SENTENCES,
    ),
    Rule(
        name="long_sentences",
        meaning="share of the tokens that are truncated away in every epoch, beyond seq_len of their sentence",
        figure=lambda a: a.train.beyond_share,
        limits={SEVERE: 0.3, WARNING: 0.05, NOTE: 0.005},
        text=lambda a: (
            f"{a.train.long_sentences:,} sentences ({percent(a.train.long_share)}) are longer "
            f"than a pair: {percent(a.train.beyond_share)} of the tokens are cut off every time"
        ),
        remedy="Tables and lists that came out as one sentence, or an ending that the rules of --language do not know: "
        "try zerobert shard --sentences paragraph or --filter; or train with a larger seq_len.",
    ),
    Rule(
        name="crumbs",
        meaning="5 less the mean tokens of a sentence",
        figure=lambda a: 5 - a.train.sentence_tokens.mean if a.train.sentences else None,
        limits={WARNING: 0},
        text=lambda a: f"a sentence has {a.train.sentence_tokens.mean:.1f} tokens on average: lists, tables or menus",
        remedy="Drop what is no prose (zerobert shard --min-chars, --filter) or cut by --sentences auto.",
    ),
    Rule(
        name="one_long_document",
        meaning="share of the train split's tokens that stand in its longest document, where there are 10 or more",
        figure=lambda a: of.longest_share(a) if a.train.documents >= 10 and of.is_whole(a, "train") else None,
        limits={WARNING: 0.25},
        text=lambda a: (
            f"{percent(of.longest_share(a))} of the tokens stand in one document: many may have run together"
        ),
        remedy="Look at the input file that it comes from, and at --txt-layout of zerobert shard.",
    ),
    Rule(
        name="duplicate_documents",
        meaning="share of the train split's documents that repeat another one",
        figure=lambda a: a.train.duplicate_documents.share,
        limits={SEVERE: 0.3, WARNING: 0.05, NOTE: 0.001},
        text=lambda a: (
            f"{of.about(a.train.duplicate_documents)} of the documents repeat another one: they count more than once"
        ),
        remedy="Make the shards again with zerobert shard --dedup documents; it compares text, so that documents which "
        "differ in case or spaces alone, and are equal in tokens, stay.",
    ),
    Rule(
        name="duplicate_sentences",
        meaning="share of the train split's sentences that repeat another one",
        figure=lambda a: a.train.duplicate_sentences.share,
        limits={SEVERE: 0.6, WARNING: 0.2, NOTE: 0.05},
        text=of.duplicate_sentences_text,
        remedy="Make the shards again with zerobert shard --dedup documents lines; the report lists the worst.",
    ),
    Rule(
        name="overlap_documents",
        meaning="documents of the validation split that the train split holds too",
        figure=lambda a: a.overlap.documents if a.overlap else None,
        limits={SEVERE: 0},
        text=lambda a: (
            f"{'' if of.is_whole(a) else 'at least '}{of.overlap(a).documents:,} documents stand in both splits: "
            "the held-out loss will be too low"
        ),
        remedy="Make the shards again with zerobert shard: it parts documents by a hash of their token ids, so that "
        "equal ones stand in one split, those too that differ in case or spaces alone, which --dedup documents leaves "
        "as it compares text.",
    ),
    Rule(
        name="overlap_sentences",
        meaning="share of the validation split's different sentences that the train split holds too",
        figure=lambda a: a.overlap.sentence_share if a.overlap and of.is_whole(a) else None,
        limits={WARNING: 0.2, NOTE: 0.05},
        text=lambda a: (
            f"{percent(of.overlap(a).sentence_share)} of the validation split's sentences stand in the other one too: "
            "the held-out loss will be too low"
        ),
        remedy="Documents are copied in parts or share boilerplate: zerobert shard --dedup documents lines.",
    ),
    Rule(
        name="validation_empty",
        meaning="whether the validation split is empty",
        figure=lambda a: float(a.validation.documents == 0 and of.is_whole(a, "validation")),
        limits={NOTE: 0},
        text=lambda a: "the validation split is empty: training will have no held-out loss",
        remedy="Make the shards again with a larger --validation-share.",
    ),
    Rule(
        name="validation_nsp",
        meaning="whether the validation split is one document, with NSP",
        figure=lambda a: float(a.settings["nsp"] and a.validation.documents == 1 and of.is_whole(a, "validation")),
        limits={WARNING: 0},
        text=lambda a: "the validation split is one document: no pairs can be made of it with next-sentence prediction",
        remedy="Make the shards again with a larger --validation-share.",
    ),
    Rule(
        name="validation_large",
        meaning="share of all tokens that stand in the validation split",
        figure=lambda a: share(a.validation.tokens, of.both(a, "tokens")) if of.is_whole(a) else None,
        limits={NOTE: 0.1},
        text=lambda a: f"{percent(share(a.validation.tokens, of.both(a, 'tokens')))} of the tokens are held out",
        remedy="Make the shards again with a smaller --validation-share, if that was not meant.",
    ),
    Rule(
        name="small_corpus",
        meaning="how many times 10 million tokens are more than the train split",
        figure=lambda a: share(10_000_000, a.train.tokens) if of.is_whole(a, "train") else None,
        limits={WARNING: 10, NOTE: 1},
        text=lambda a: (
            f"the train split has {a.train.tokens:,} tokens; BERT was trained on 3.3 billion words: "
            "a model of its size would learn this text by heart"
        ),
        remedy="Add text, train a smaller model, or go on from a published one (init_from).",
    ),
    Rule(
        name="unused_tokens",
        meaning="share of the vocabulary that the train split never uses",
        figure=of.unused_share,
        limits={WARNING: 0.3, NOTE: 0.05},
        text=of.unused_text,
        remedy="Train the tokenizer on this text, or with a smaller --vocab-size.",
    ),
    Rule(
        name="one_token",
        meaning="share of the most frequent token",
        figure=of.top_share,
        limits={SEVERE: 0.5, WARNING: 0.15},
        text=of.top_text,
        remedy="Look at the sample pairs: tables, rulers or a wrong --encoding do this; --filter drops documents.",
    ),
    Rule(
        name="dropped",
        meaning="what zerobert shard dropped, against the documents kept",
        figure=lambda a: share(sum(a.dropped.values()), of.both(a, "documents")) if of.is_whole(a) else None,
        limits={WARNING: 0.5, NOTE: 0.01},
        text=lambda a: f"making the shards dropped {of.counts(a.dropped)}",
        remedy="Check that this was meant: --min-chars, --filter, --dedup and --text-field of zerobert shard decide.",
    ),
    Rule(
        name="repaired",
        meaning="faults of the input in documents that were kept, against the documents",
        figure=lambda a: share(sum(a.repaired.values()), of.both(a, "documents")) if of.is_whole(a) else None,
        limits={WARNING: 0.01, NOTE: 0},
        text=lambda a: f"faults of the input were repaired: {of.counts(a.repaired)}",
        remedy="Look at the first places in the report; the right --encoding or --format of zerobert shard mends most.",
    ),
)
