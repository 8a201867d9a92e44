"""What is in a tokenizer: how it cuts the words and lines that it was learned from, and what it loses of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer, decoders

from tokenization.vocabulary.alphabet import script_of_word
from tokenization.vocabulary.words import SPACE_BYTE, WORD_MARK, WordSplitter

REPORT_NAME = "report.json"
_SHOWN_CHARS = 100
_RANKS = (1_000, 10_000)
_LONGEST = 10
_EXAMPLES = 5
_SHOWN_SCRIPTS = 5
_DECIMALS = 6


def make_report(
    tokenizer: Tokenizer, splitter: WordSplitter, words: Mapping[str, int], lines: Sequence[str]
) -> dict[str, Any]:
    """Measure a tokenizer; the same input gives the same report.

    Args:
        tokenizer: what is measured.
        splitter: its kind.
        words: counts of words as its pre-tokenizer makes them.
        lines: lines of text.

    Returns:
        Plain values for JSON. Shares are 0 to 1. "words" are weighed by their counts; a word is what the pre-tokenizer
        makes, so a comma is one. "lines" are measured on the lines alone; there a word stands between white space.
    """
    tokenizer.encode_special_tokens = True
    cut = {word: [token.id for token in tokenizer.model.tokenize(word)] for word in words}
    unk_id = tokenizer.token_to_id("[UNK]")
    occurrences = sum(words.values())
    num_tokens = sum(count * len(cut[word]) for word, count in words.items())
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    learned = set(tokenizer.get_vocab()).difference(special)
    return {
        "tokens": tokenizer.get_vocab_size(),
        "words": {
            "different": len(words),
            "occurrences": occurrences,
            "tokens_a_word": _share(num_tokens, occurrences),
            "one_token": _share(sum(count for word, count in words.items() if len(cut[word]) == 1), occurrences),
        },
        "unknown": _unknown(splitter, words, {word for word in words if unk_id in cut[word]}),
        "coverage": _coverage(words, {word for word in words if len(cut[word]) == 1 and cut[word] != [unk_id]}),
        "longest": _longest(splitter, learned),
        "lines": _measure_lines(tokenizer, lines),
        "round_trip": _round_trip(tokenizer, splitter, lines),
    }


def format_report(report: Mapping[str, Any]) -> str:
    """Return the report as lines of text for a person."""
    words, unknown, lines, trip = (report[name] for name in ("words", "unknown", "lines", "round_trip"))
    coverage = ", ".join(f"{share:.1%} of the {int(rank):,}" for rank, share in report["coverage"].items())
    text = (
        f"words       {words['tokens_a_word']:.3f} tokens a word, {words['one_token']:.1%} of all words are one token\n"
        f"coverage    {coverage} most frequent words are one token\n"
        f"lines       {lines['bytes_a_token']:.2f} bytes a token, {lines['tokens_a_word']:.2f} tokens between white "
        f"space, in {lines['lines']:,} sampled lines\n"
        f"unknown     {unknown['share']:.4%} of all words hold an [UNK]\n"
    )
    scripts = [(name, value) for name, value in unknown["by_script"].items() if value["unknown"]]
    for name, value in scripts[:_SHOWN_SCRIPTS]:
        text += f"            {name}: {value['unknown'] / value['words']:.4%} of {value['words']:,} words\n"
    text += f"longest     {' '.join(report['longest'])}\n"
    apart = ", white space apart" if trip["ignores_white_space"] else ""
    text += f"round trip  {trip['equal']:,} of {trip['lines']:,} sampled lines come back as they were{apart}\n"
    for example in trip["different"]:
        text += f"            {example['text'][:_SHOWN_CHARS]!r}\n         -> {example['decoded'][:_SHOWN_CHARS]!r}\n"
    return text


def _unknown(splitter: WordSplitter, words: Mapping[str, int], unknown: set[str]) -> dict[str, Any]:
    """Count words with [UNK] in them, by the script of the word; the scripts with most words first."""
    texts = _Texts(splitter)
    found: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for word, count in words.items():
        script = script_of_word(texts.of(word))
        found[script] += count
        if word in unknown:
            missed[script] += count
    by_script = {
        script: {"words": found[script], "unknown": missed[script]}
        for script in sorted(found, key=lambda script: (-found[script], script))
    }
    return {"share": _share(missed.total(), found.total()), "by_script": by_script}


def _coverage(words: Mapping[str, int], whole: set[str]) -> dict[str, float]:
    """Return by rank which share of so many most frequent words is one token, each word counted once."""
    ranked = sorted(words, key=lambda word: (-words[word], word))
    return {str(rank): _share(sum(word in whole for word in ranked[:rank]), min(rank, len(ranked))) for rank in _RANKS}


def _longest(splitter: WordSplitter, tokens: set[str]) -> list[str]:
    texts = _Texts(splitter)
    return sorted(map(texts.of, tokens), key=lambda text: (-len(text), text))[:_LONGEST]


def _measure_lines(tokenizer: Tokenizer, lines: Sequence[str]) -> dict[str, Any]:
    num_bytes = sum(len(line.encode("utf-8")) for line in lines)
    num_words = sum(len(line.split()) for line in lines)
    num_tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(list(lines), add_special_tokens=False))
    return {
        "lines": len(lines),
        "bytes": num_bytes,
        "tokens": num_tokens,
        "bytes_a_token": _share(num_bytes, num_tokens),
        "tokens_a_word": _share(num_tokens, num_words),
    }


def _round_trip(tokenizer: Tokenizer, splitter: WordSplitter, lines: Sequence[str]) -> dict[str, Any]:
    """Compare lines with what is decoded from their ids.

    Both are taken after the normalizer. WordPiece does not keep white space, so there it is not compared.
    """
    is_wordpiece = splitter.model == "wordpiece"
    different = [
        {"text": text, "decoded": decoded}
        for text, decoded in _decode(tokenizer, is_wordpiece, lines)
        if (_without_space(text) != _without_space(decoded) if is_wordpiece else text != decoded)
    ]
    return {
        "lines": len(lines),
        "equal": len(lines) - len(different),
        "ignores_white_space": is_wordpiece,
        "different": different[:_EXAMPLES],
    }


def _decode(tokenizer: Tokenizer, is_wordpiece: bool, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield normalized lines and what their ids decode to."""
    plain = decoders.WordPiece(cleanup=False)  # with it " do not" would become " don't"
    for line in lines:
        text = tokenizer.normalizer.normalize_str(line) if tokenizer.normalizer else line
        encoding = tokenizer.encode(line, add_special_tokens=False)
        yield text, plain.decode(encoding.tokens) if is_wordpiece else tokenizer.decode(encoding.ids)


def _without_space(text: str) -> str:
    return "".join(text.split())


def _share(part: float, whole: float) -> float:
    return round(part / whole, _DECIMALS) if whole else 0.0


class _Texts:
    """Turns words and tokens into the text that they stand for; the space before a word is left out."""

    def __init__(self, splitter: WordSplitter) -> None:
        self._model = splitter.model
        self._decoder = decoders.ByteLevel()

    def of(self, token: str) -> str:
        """Return the text of a token or word."""
        if self._model == "wordpiece":
            return token
        if self._model == "unigram":
            return token.removeprefix(WORD_MARK)
        text = token.removeprefix(SPACE_BYTE)
        return text if text.isascii() else str(self._decoder.decode([text]))
