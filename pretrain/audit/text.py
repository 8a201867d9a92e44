"""The report as text, for a terminal: aligned, some 60 lines."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence

from pretrain.audit.figures import Audit, SplitFigures
from pretrain.audit.indicators import about, counts, percent
from pretrain.audit.lengths import Lengths
from pretrain.audit.reading import visible
from pretrain.audit.rules import Finding
from pretrain.audit.samples import KEPT, MASKED, REPLACED, Mark, Sample

_WIDTH = 110
_MOST_FINDINGS = 9
_MOST_REPEATED = 3
_INDENT = 10
_FACT_INDENT = 16


def render_text(audit: Audit, findings: Sequence[Finding]) -> str:
    """Return the report, with a line feed at the end."""
    lines = [
        f"shards      {audit.shards_dir}",
        f"tokenizer   {audit.tokenizer_dir}",
        f"settings    {', '.join(f'{key} = {_setting(value)}' for key, value in audit.settings.items())}",
        "",
        *_splits(audit),
        "",
        *_text(audit),
        *_pairs(audit),
        "",
        *_samples(audit.samples),
        *_findings(findings),
    ]
    return "\n".join(lines) + "\n"


def read_sample(sample: Sample) -> str:
    """Return a pair as one line: `[CLS] the [MASK→quick] fox [=jumps] [over←under] ... [SEP] ... [SEP]`."""
    parts: list[str] = []
    for mark in sample.marks:
        text = _read(mark)
        parts.append(text if mark.is_joined or not parts else f" {text}")
    return "".join(parts)


def _read(mark: Mark) -> str:
    text, original = visible(mark.text), visible(mark.original)
    if mark.kind == MASKED:
        return f"[MASK→{original}]"
    if mark.kind == KEPT:
        return f"[={original}]"
    if mark.kind == REPLACED:
        return f"[{text}→{original}]"
    return text


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _splits(audit: Audit) -> Iterator[str]:
    yield f"{'':<28}{'train':>24}{'validation':>24}"
    rows: dict[str, Callable[[SplitFigures], str]] = {
        "documents": lambda split: f"{split.documents:,}",
        "sentences": lambda split: f"{split.sentences:,}",
        "tokens": lambda split: f"{split.tokens:,}",
        "tokens a sentence": lambda split: _lengths(split.sentence_tokens),
        "sentences a document": lambda split: _lengths(split.document_sentences),
        "tokens a document": lambda split: _lengths(split.document_tokens),
        "documents of one sentence": lambda split: percent(split.single_sentence_share),
        "duplicate documents": lambda split: about(split.duplicate_documents),
        "duplicate sentences": lambda split: about(split.duplicate_sentences),
        "[UNK] of tokens": lambda split: percent(split.unk_share),
        "sentences over seq_len": lambda split: percent(split.long_share),
        "tokens beyond it": lambda split: percent(split.beyond_share),
    }
    for name, cell in rows.items():
        yield f"{name:<28}{cell(audit.train):>24}{cell(audit.validation):>24}"
    for name, figure in {
        "pairs of an epoch": "pairs",
        "tokens a pair": "mean_tokens",
        "pairs of full length": "full_share",
        "padding, if padded": "padding_share",
        "random pairs": "random_share",
    }.items():
        cells = [_pair_cell(audit, split, figure) for split in ("train", "validation")]
        yield f"{name:<28}{cells[0]:>24}{cells[1]:>24}"


def _pair_cell(audit: Audit, split: str, figure: str) -> str:
    if split not in audit.pairs:
        return "-"
    value = getattr(audit.pairs[split], figure)
    if isinstance(value, int):
        return f"{value:,}"
    return percent(value) if figure.endswith("share") else f"{value:.1f}"


def _lengths(lengths: Lengths) -> str:
    return f"{lengths.mean:,.1f} (max {lengths.longest:,})"


def _text(audit: Audit) -> Iterator[str]:
    if audit.incomplete:
        yield from _fact("incomplete", f"{' and '.join(audit.incomplete)}: figures are of the sound shards alone")
    if audit.overlap is not None:
        part = percent(audit.overlap.sentence_share)
        among = " (of the sound shards)" if audit.incomplete else ""
        found = f"{audit.overlap.documents:,} documents, {part} of validation's sentences{among}"
        yield from _fact("in both splits", found)
    vocabulary = audit.vocabulary
    if vocabulary is not None:
        top = ", ".join(f"“{visible(token.token)}” {percent(token.share)}" for token in vocabulary.most_frequent[:5])
        yield from _fact("vocabulary", f"{vocabulary.size:,} tokens, {vocabulary.unused:,} never used; often: {top}")
        yield from _fact("entropy", f"{vocabulary.entropy_nats:.2f} nats a token: what an MLM loss must fall below")
    for repeated in audit.train.most_repeated[:_MOST_REPEATED]:
        count = f"{'at least ' if repeated.is_least else ''}{repeated.count:,}"
        yield from _fact("repeated", f"{count} times: {_cut(visible(repeated.text), 80)}")
    if sum(audit.dropped.values()):
        yield from _fact("dropped", visible(counts(audit.dropped)))
    if sum(audit.repaired.values()):
        yield from _fact("repaired", visible(counts(audit.repaired)))
    for place in audit.places[:2]:
        found = f"{place.get('path')}, at {place.get('offset')}: {place.get('reason')} {place.get('detail', '')}"
        yield from _fact("place", visible(found))


def _pairs(audit: Audit) -> Iterator[str]:
    for split, reason in audit.not_paired.items():
        yield from _fact("no pairs", f"of {split}: {reason}")
    masks = audit.masks
    if masks is not None:
        yield from _fact(
            "masks",
            f"{masks.predictions:,} drawn: {percent(masks.masked_share)} [MASK], {percent(masks.kept_share)} kept, "
            f"{percent(masks.random_share)} replaced; {percent(masks.prediction_share)} of tokens predicted",
        )


def _samples(samples: Sequence[Sample]) -> Iterator[str]:
    # one of each label, where there are two
    chosen = {sample.label: sample for sample in reversed(samples)}
    for sample in chosen.values():
        text = _cut(read_sample(sample), 3 * (_WIDTH - _INDENT))
        yield from _wrapped(sample.label or "text", text)
    if samples:
        yield ""


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        yield "findings    none"
    for finding in findings[:_MOST_FINDINGS]:
        yield from _wrapped(finding.severity.upper(), visible(finding.text))
        yield from _wrapped("", finding.remedy)
    if len(findings) > _MOST_FINDINGS:
        yield f"{'':<{_INDENT}}and {len(findings) - _MOST_FINDINGS} more (--html, --json)"


def _fact(name: str, text: str) -> list[str]:
    return _wrapped(name, text, _FACT_INDENT)


def _wrapped(head: str, text: str, indent: int = _INDENT) -> list[str]:
    lines = textwrap.wrap(text, _WIDTH - indent, break_long_words=True) or [""]
    return [f"{head if number == 0 else '':<{indent}}{line}" for number, line in enumerate(lines)]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 2].rstrip()} …"
