"""What may be wrong with the pairs and the masks that training would see."""

from __future__ import annotations

from pretrain.audit import indicators as of
from pretrain.audit.indicators import percent
from pretrain.audit.rules import CUT_DOCUMENTS, NOTE, SEVERE, WARNING, Rule
from pretrain.data.pairing import MIN_DOCUMENTS_NSP

_FAULT = "This is a fault of the program, not of the text: do not train, report it."

PAIR_RULES: tuple[Rule, ...] = (
    Rule(
        name="nsp_documents",
        meaning="whether the train split has fewer than 2 documents, with NSP",
        figure=lambda a: float(
            a.settings["nsp"] and 0 < a.train.documents < MIN_DOCUMENTS_NSP and of.is_whole(a, "train")
        ),
        limits={SEVERE: 0},
        text=lambda a: (
            "the train split is one document: next-sentence prediction needs another one for its random segments"
        ),
        remedy="If many documents ran together, make the shards again with zerobert shard --txt-layout line or blank; "
        "else train with nsp = false (zerobert audit --no-nsp).",
    ),
    Rule(
        name="random_share",
        meaning="distance of the share of random pairs from 45 to 60 %, documents of 10 sentences or more on average",
        figure=of.random_excess,
        limits={SEVERE: 0},
        text=lambda a: f"{percent(a.pairs['train'].random_share)} of the pairs are random; 45 to 60 % are due",
        remedy="A pair is random where one sentence fills it: look for sentences as long as seq_len in the histograms, "
        "or for few long documents among many short ones. " + CUT_DOCUMENTS,
    ),
    Rule(
        name="random_share_short",
        meaning="share of random pairs, documents of fewer than 10 sentences on average",
        figure=of.random_of_short,
        limits={WARNING: 0.65, NOTE: 0.60},
        text=lambda a: (
            f"{percent(a.pairs['train'].random_share)} of the pairs are random, as documents have "
            f"{a.train.document_sentences.mean:.1f} sentences on average: the NSP loss to beat is lower than ln 2"
        ),
        remedy=CUT_DOCUMENTS,
    ),
    Rule(
        name="wrong_random_pairs",
        meaning="pairs labelled random whose B is from A's own document",
        figure=lambda a: of.pairs_sum(a, "wrong_random"),
        limits={SEVERE: 0},
        text=lambda a: f"{of.pairs_sum(a, 'wrong_random'):,} random pairs have both segments from one document",
        remedy=_FAULT,
    ),
    Rule(
        name="wrong_next_pairs",
        meaning="pairs labelled next whose B does not follow A",
        figure=lambda a: of.pairs_sum(a, "wrong_next"),
        limits={SEVERE: 0},
        text=lambda a: f"in {of.pairs_sum(a, 'wrong_next'):,} pairs labelled next B does not follow A",
        remedy=_FAULT,
    ),
    Rule(
        name="pairs_over_seq_len",
        meaning="pairs of more than seq_len tokens",
        figure=lambda a: of.pairs_sum(a, "over_seq_len"),
        limits={SEVERE: 0},
        text=lambda a: f"{of.pairs_sum(a, 'over_seq_len'):,} pairs hold more than seq_len tokens",
        remedy=_FAULT,
    ),
    Rule(
        name="mask_shares",
        meaning="how far [MASK], kept and replaced are from 80, 10 and 10 % of the predictions, in units of 1 %",
        figure=lambda a: of.mask_distance(a.masks) if a.masks else None,
        limits={SEVERE: 1},
        text=of.masks_text,
        remedy=_FAULT,
    ),
    Rule(
        name="mask_places",
        meaning="predictions on a pair's own [CLS] or [SEP], replacements that are special or unknown",
        figure=lambda a: a.masks.special_hits + a.masks.bad_replacements if a.masks else None,
        limits={SEVERE: 0},
        text=of.mask_places_text,
        remedy=_FAULT,
    ),
    Rule(
        name="fill",
        meaning="share of seq_len that the mean pair leaves empty",
        figure=lambda a: a.pairs["train"].padding_share if "train" in a.pairs else None,
        limits={WARNING: 0.5, NOTE: 0.2},
        text=lambda a: (
            f"a pair has {a.pairs['train'].mean_tokens:.0f} of {a.settings['seq_len']} tokens: a pipeline that "
            f"pads would spend {percent(a.pairs['train'].padding_share)} on nothing (zerobert's does not pad)"
        ),
        remedy="Documents are short: use a smaller seq_len. Or they were cut: see --txt-layout of zerobert shard.",
    ),
    Rule(
        name="prediction_share",
        meaning="distance of the share of tokens predicted from mlm_probability",
        figure=lambda a: abs(a.masks.prediction_share - a.settings["mlm_probability"]) if a.masks else None,
        limits={WARNING: 0.05, NOTE: 0.01},
        text=lambda a: (
            f"{percent(of.prediction_share(a))} of the tokens are predicted, "
            f"{percent(a.settings['mlm_probability'])} were asked: each pair has one prediction at least"
        ),
        remedy="Pairs are very short; see the rules on documents and sentences.",
    ),
)
