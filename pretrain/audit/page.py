"""The report as one HTML page: no scripts, nothing from elsewhere, light and dark.

Whatever is not written here, text of the corpus, tokens, paths, goes through `shown`: controls made visible,
escaped, and isolated from the direction of the text around it.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from pretrain.audit import svg
from pretrain.audit.figures import Audit
from pretrain.audit.indicators import about, percent
from pretrain.audit.lengths import Lengths
from pretrain.audit.reading import visible
from pretrain.audit.rules import SEVERITIES, Finding
from pretrain.audit.samples import KEPT, MASKED, REPLACED, SPECIAL, Mark, Sample
from pretrain.audit.style import STYLE

# nothing may be loaded or run, whatever got into the page
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def shown(value: object) -> str:
    """Return foreign text as HTML that holds no markup of its own."""
    return f"<bdi>{html.escape(visible(str(value)), quote=True)}</bdi>"


def render_page(audit: Audit, findings: Sequence[Finding]) -> str:
    """Return the whole page."""
    body = [
        "<header><h1>Corpus audit</h1>",
        f'<p class="soft">shards <code>{shown(audit.shards_dir)}</code>, '
        f"tokenizer <code>{shown(audit.tokenizer_dir)}</code></p>",
        f'<p class="soft">{shown(_settings(audit))}</p></header>',
        _facts(audit),
        "<h2>Findings</h2>",
        *_findings(findings),
        "<h2>Splits</h2>",
        _splits(audit),
        "<h2>Lengths</h2>",
        _plots(audit),
        "<h2>Pairs and masks</h2>",
        _pairs(audit),
        "<h2>Sample pairs</h2>",
        *_samples(audit.samples),
        "<h2>Vocabulary</h2>",
        _vocabulary(audit),
        "<h2>Most repeated sentences</h2>",
        _repeated(audit),
        "<h2>Dropped and repaired</h2>",
        _dropped(audit),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Corpus audit</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _settings(audit: Audit) -> str:
    values = {key: str(value).lower() if isinstance(value, bool) else value for key, value in audit.settings.items()}
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _facts(audit: Audit) -> str:
    facts = [
        (f"{audit.train.documents:,}", "documents to train on"),
        (f"{audit.train.sentences:,}", "sentences"),
        (f"{audit.train.tokens:,}", "tokens"),
    ]
    if "train" in audit.pairs:
        pairs = audit.pairs["train"]
        facts += [
            (f"{pairs.pairs:,}", "pairs of an epoch"),
            (f"{pairs.mean_tokens:.1f}", f"tokens a pair, of {audit.settings['seq_len']}"),
        ]
    if audit.vocabulary is not None:
        facts.append((f"{audit.vocabulary.entropy_nats:.2f}", "nats: an MLM loss must fall below"))
    cards = "".join(f'<div class="fact"><b>{value}</b><span>{name}</span></div>' for value, name in facts)
    return f'<div class="facts">{cards}</div>'


def _findings(findings: Sequence[Finding]) -> Iterable[str]:
    if not findings:
        yield '<div class="finding good"><span class="tag">none</span><p>No rule has anything to say.</p></div>'
    for finding in findings:
        assert finding.severity in SEVERITIES
        yield (
            f'<div class="finding {finding.severity}"><span class="tag">{finding.severity}</span> '
            f'<code class="soft">{shown(finding.name)}</code><p>{shown(_sentence(finding.text))}</p>'
            f'<p class="soft">{shown(finding.remedy)}</p></div>'
        )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], text_columns: Sequence[int] = ()) -> str:
    """Return a table of cells that are HTML already."""
    left = ' class="text"'

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{left if number in text_columns else ''}>{value}</{tag}>" for number, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="card wide"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _splits(audit: Audit) -> str:
    splits = list(audit.splits.values())

    def lengths(value: Lengths) -> str:
        return (
            f'{value.mean:,.1f}<br><span class="soft">median {value.median:,}, 99 % to {value.p99:,}, '
            f"longest {value.longest:,}</span>"
        )

    def both(count: int, part: float) -> str:
        return f"{count:,} ({percent(part)})"

    rows = [
        ["documents", *(f"{split.documents:,}" for split in splits)],
        ["sentences", *(f"{split.sentences:,}" for split in splits)],
        ["tokens", *(f"{split.tokens:,}" for split in splits)],
        ["tokens a sentence", *(lengths(split.sentence_tokens) for split in splits)],
        ["sentences a document", *(lengths(split.document_sentences) for split in splits)],
        ["tokens a document", *(lengths(split.document_tokens) for split in splits)],
        [
            "documents of one sentence",
            *(both(split.single_sentence_documents, split.single_sentence_share) for split in splits),
        ],
        ["duplicate documents", *(about(split.duplicate_documents) for split in splits)],
        ["duplicate sentences", *(about(split.duplicate_sentences) for split in splits)],
        ["[UNK] tokens", *(both(split.unk_tokens, split.unk_share) for split in splits)],
        ["sentences with [UNK]", *(both(split.unk_sentences, split.unk_sentence_share) for split in splits)],
        ["sentences longer than a pair", *(both(split.long_sentences, split.long_share) for split in splits)],
        ["tokens cut off in every epoch", *(both(split.tokens_beyond, split.beyond_share) for split in splits)],
    ]
    if audit.overlap is not None:
        shared = percent(audit.overlap.sentence_share)
        rows.append(["of it also in train", "", f"{audit.overlap.documents:,} documents, {shared} of sentences"])
    head = [f"{name}, sound shards alone" if name in audit.incomplete else name for name in audit.splits]
    return _table(["", *head], rows)


def _plots(audit: Audit) -> str:
    seq_len = int(audit.settings["seq_len"])
    plots = [
        ("Tokens a sentence", svg.histogram(audit.train.sentence_tokens.bars, "tokens a sentence", seq_len)),
        ("Sentences a document", svg.histogram(audit.train.document_sentences.bars, "sentences a document")),
        ("Tokens a document", svg.histogram(audit.train.document_tokens.bars, "tokens a document")),
    ]
    if "train" in audit.pairs:
        plots.append(("Tokens a pair", svg.histogram(audit.pairs["train"].lengths.bars, "tokens a pair", seq_len)))
    cards = "".join(f'<div class="card"><h3>{title}</h3>{plot}</div>' for title, plot in plots)
    return f'<div class="plots">{cards}</div>'


def _pairs(audit: Audit) -> str:
    parts = []
    if audit.pairs:
        values = list(audit.pairs.values())
        rows = [
            ["pairs", *(f"{pairs.pairs:,}" for pairs in values)],
            ["tokens a pair, specials counted", *(f"{pairs.mean_tokens:.1f}" for pairs in values)],
            ["pairs of full length", *(percent(pairs.full_share) for pairs in values)],
            ["padding of a pipeline that pads", *(percent(pairs.padding_share) for pairs in values)],
            ["random pairs", *(percent(pairs.random_share) for pairs in values)],
            ["random, but from A's own document", *(f"{pairs.wrong_random:,}" for pairs in values)],
            ["next, but B does not follow A", *(f"{pairs.wrong_next:,}" for pairs in values)],
        ]
        parts.append(_table(["epoch 0", *audit.pairs], rows))
    parts += [f"<p>No pairs of {shown(split)}: {shown(reason)}.</p>" for split, reason in audit.not_paired.items()]
    if audit.masks is not None:
        masks = audit.masks
        rows = [
            ["became [MASK]", percent(masks.masked_share), "80 %"],
            ["stayed", percent(masks.kept_share), "10 %"],
            ["became a random token", percent(masks.random_share), "10 %"],
            ["predicted, of all tokens", percent(masks.prediction_share), percent(audit.settings["mlm_probability"])],
            ["on a pair's own [CLS] or [SEP]", f"{masks.special_hits:,}", "0"],
            ["replaced by a special or unknown token", f"{masks.bad_replacements:,}", "0"],
        ]
        parts.append("<p></p>" + _table([f"{masks.predictions:,} predictions drawn", "found", "due"], rows))
    return "".join(parts)


def _samples(samples: Sequence[Sample]) -> Iterable[str]:
    if not samples:
        yield '<p class="none">There are no pairs.</p>'
        return
    yield (
        '<p class="soft key"><span class="masked">[MASK] → hidden token</span>'
        '<span class="kept">= predicted, but left as it is</span>'
        '<span class="replaced">random token → <s>what stood there</s></span></p>'
    )
    for sample in samples:
        words = [
            ("" if mark.is_joined or number == 0 else " ") + _mark(mark) for number, mark in enumerate(sample.marks)
        ]
        label = f", B is {sample.label}" if sample.label else ""
        yield (
            f'<div class="card sample"><div class="head">pair {sample.pair:,}{label}, {sample.tokens} tokens</div>'
            f"{''.join(words)}</div>"
        )


def _mark(mark: Mark) -> str:
    if mark.kind == MASKED:
        return f'<span class="masked">[MASK] → {shown(mark.original)}</span>'
    if mark.kind == KEPT:
        return f'<span class="kept">= {shown(mark.original)}</span>'
    if mark.kind == REPLACED:
        return f'<span class="replaced">{shown(mark.text)} → <s>{shown(mark.original)}</s></span>'
    if mark.kind == SPECIAL:
        return f'<span class="special">{shown(mark.text)}</span>'
    return shown(mark.text)


def _vocabulary(audit: Audit) -> str:
    vocabulary = audit.vocabulary
    if vocabulary is None:
        return '<p class="none">There is no text to train on.</p>'
    rows = [[shown(token.token), f"{token.count:,}", percent(token.share)] for token in vocabulary.most_frequent]
    table = _table(["most frequent tokens", "count", "share"], rows)
    plot = svg.ranks(vocabulary.ranks, "tokens by frequency: rank (across) and count")
    return (
        f"<p>{vocabulary.size:,} tokens, {vocabulary.unused:,} of them never used in the train split. Entropy "
        f"{vocabulary.entropy_nats:.3f} nats a token.</p>"
        f'<div class="plots">{table}<div class="card"><h3>Frequencies</h3>{plot}</div></div>'
    )


def _repeated(audit: Audit) -> str:
    rows = [
        [f"{'at least ' if item.is_least else ''}{item.count:,}", shown(item.text)]
        for item in audit.train.most_repeated
    ]
    return _table(["times", "sentence"], rows, (1,)) if rows else '<p class="none">No sentence stands twice.</p>'


def _dropped(audit: Audit) -> str:
    rows = [["dropped", shown(reason), f"{count:,}"] for reason, count in audit.dropped.items() if count]
    rows += [["repaired", shown(reason), f"{count:,}"] for reason, count in audit.repaired.items() if count]
    if not rows:
        return '<p class="none">Nothing was dropped or repaired when the shards were made.</p>'
    parts = [_table(["", "reason", "count"], rows, (1,))]
    if audit.places:
        keys = ("path", "offset", "reason", "detail")
        places = [[shown(place.get(key, "")) for key in keys] for place in audit.places]
        parts.append("<p></p>" + _table(keys, places, (0, 1, 2, 3)))
    return "".join(parts)
