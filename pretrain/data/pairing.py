"""Documents to the NSP pairs of one epoch: BERT's own procedure, compiled, on sentence lengths alone.

For each document, with a target of seq_len - 3 tokens (with probability short_seq_prob a shorter one):

1. Take sentences until they reach the target or the document ends. The first k of them are segment A, k
   uniform.
2. Half of the time (always where there is one sentence only), B is random: from a random sentence of another
   document on, until A and B reach the target. The sentences after A are put back. Otherwise B is the rest of
   the sentences.
3. Cut the longer segment, token by token, at its front or its end by chance, until both fit.
4. Go on behind the last sentence used.

Source: Devlin et al., "BERT", 2019, section A.2, and the program published with it. Two things differ: the
other document is drawn among the others at once (there: up to ten tries), and draws are counter-based: what
becomes of a document depends on (seed, epoch, document) alone. Without NSP a pair is one segment, `[CLS] A
[SEP]`, of whole sentences cut to seq_len - 2.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pretrain.data.store import SentenceIndex
from runtime.command import ConfigError
from runtime.seeding import MAX_SEED, PAIRING, below, compiled, count_bits, mix, next_u64, uniform

IS_NEXT = 0
IS_RANDOM = 1
MIN_SEQ_LEN = 8
MAX_SEQ_LEN = 2**16 - 1
NUM_SPECIALS_PAIR = 3
NUM_SPECIALS_SINGLE = 2
MIN_DOCUMENTS_NSP = 2

_HALF = 0.5
_SHORTEST_TARGET = 2
_WORD_BITS = 64
_ONE = np.uint64(1)


@dataclass(frozen=True, kw_only=True)
class PairingSettings:
    """What the pairs of an epoch depend on, besides the shards and the epoch.

    Attributes:
        seed: The run's seed, 0 to 2**63 - 1.
        seq_len: Most tokens of a pair, specials counted, 8 to 65,535.
        short_seq_prob: Chance of a document to get a target shorter than seq_len, 0 to 1.
        nsp: True: segments A and B, and a label. False: one segment.
    """

    seed: int
    seq_len: int
    short_seq_prob: float
    nsp: bool

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: A field is out of its range; names it.
        """
        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"seed = {self.seed}: must be 0 to 2**63 - 1")
        if not MIN_SEQ_LEN <= self.seq_len <= MAX_SEQ_LEN:
            raise ConfigError(f"seq_len = {self.seq_len}: must be {MIN_SEQ_LEN} to {MAX_SEQ_LEN}")
        if not 0.0 <= self.short_seq_prob <= 1.0:
            raise ConfigError(f"short_seq_prob = {self.short_seq_prob}: must be 0 to 1")

    @property
    def num_specials(self) -> int:
        """Specials of a pair: [CLS] and one [SEP] for each segment."""
        return NUM_SPECIALS_PAIR if self.nsp else NUM_SPECIALS_SINGLE

    @property
    def canonical(self) -> str:
        """All fields as one line of text, the same for equal settings."""
        return json.dumps(asdict(self), sort_keys=True)


class Columns(NamedTuple):
    """Pairs as flat arrays, one entry a pair.

    Attributes:
        a_start: int64: offset of segment A's first token in the split.
        a_length: uint16: tokens of segment A, 1 or more.
        b_start: int64: offset of segment B's first token; 0 without NSP.
        b_length: uint16: tokens of segment B, 1 or more; 0 without NSP.
        next_sentence_label: int8: 0 = B follows A, 1 = B is random; 0 without NSP.
    """

    a_start: npt.NDArray[np.int64]
    a_length: npt.NDArray[np.uint16]
    b_start: npt.NDArray[np.int64]
    b_length: npt.NDArray[np.uint16]
    next_sentence_label: npt.NDArray[np.int8]


COLUMN_DTYPES: dict[str, Any] = {
    "a_start": np.int64,
    "a_length": np.uint16,
    "b_start": np.int64,
    "b_length": np.uint16,
    "next_sentence_label": np.int8,
}


class _Rules(NamedTuple):
    """The settings as the compiled code takes them."""

    seed: int
    epoch: int
    max_tokens: int  # of both segments, specials not counted
    short_seq_prob: float
    nsp: bool


def check_documents(num_documents: int, nsp: bool, where: str) -> None:
    """Refuse NSP where no other document is there to draw a random B from.

    Raises:
        ConfigError: `nsp` with fewer than 2 documents.
    """
    if nsp and num_documents < MIN_DOCUMENTS_NSP:
        raise ConfigError(
            f"{where}: next-sentence prediction needs 2 documents or more, for a B from another document; "
            f"there is {num_documents}. Set nsp = false or add documents"
        )


def empty_columns(size: int) -> Columns:
    """Return columns (size,) with no values set."""
    return Columns(**{name: np.empty(size, dtype) for name, dtype in COLUMN_DTYPES.items()})


def plan_documents(index: SentenceIndex, settings: PairingSettings, epoch: int, documents: tuple[int, int]) -> Columns:
    """Make the pairs of some neighbouring documents.

    Args:
        index: The split's sentences.
        settings: What the pairs look like.
        epoch: Epoch, 0 or more.
        documents: First document and the one behind the last.

    Returns:
        Their pairs, in the order of the text.
    """
    first, last = documents
    # a pair uses up one sentence or more
    room = int(index.document_starts[last] - index.document_starts[first])
    out = empty_columns(room)
    max_tokens = settings.seq_len - settings.num_specials
    rules = _Rules(settings.seed, epoch, max_tokens, float(settings.short_seq_prob), settings.nsp)
    count = _plan_documents(index.sentence_offsets, index.document_starts, documents, rules, out)
    return Columns._make(column[:count] for column in out)


@compiled
def _from_front(state: Any, removed: int) -> int:
    """Return how many of the removed tokens leave at the front: one random bit for each."""
    front = 0
    while removed >= _WORD_BITS:
        state, word = next_u64(state)
        front += count_bits(word)
        removed -= _WORD_BITS
    if removed > 0:
        state, word = next_u64(state)
        front += count_bits(word & ((_ONE << np.uint64(removed)) - _ONE))
    return front


@compiled
def _excess(a_length: int, b_length: int, max_tokens: int) -> Any:
    """Return (tokens to remove from A, from B): one by one from the longer side, B where equal."""
    excess = a_length + b_length - max_tokens
    if excess <= 0:
        return 0, 0
    gap = min(excess, abs(a_length - b_length))
    rest = excess - gap
    from_a = rest // 2
    from_b = rest - from_a
    if a_length > b_length:
        return from_a + gap, from_b
    return from_a, from_b + gap


@compiled
def _put(state: Any, segments: Any, max_tokens: int, place: int, out: Any) -> Any:
    """Cut (a_start, a_length, b_start, b_length) to fit, write them at a place; return the next state."""
    a_start, a_length, b_start, b_length = segments
    from_a, from_b = _excess(a_length, b_length, max_tokens)
    if from_a + from_b > 0:
        state, a_bits = next_u64(state)
        state, b_bits = next_u64(state)
        a_start += _from_front(a_bits, from_a)
        b_start += _from_front(b_bits, from_b)
    out.a_start[place] = a_start
    out.a_length[place] = a_length - from_a
    out.b_start[place] = b_start
    out.b_length[place] = b_length - from_b
    return state


@compiled
def _reach(offsets: Any, first: int, last: int, tokens: int) -> int:
    """Return the end, at most `last`, of the shortest run of sentences from `first` that holds `tokens`."""
    end = first + 1
    while end < last and offsets[end] - offsets[first] < tokens:
        end += 1
    return end


@compiled
def _random_span(state: Any, offsets: Any, document_starts: Any, document: int, tokens: int) -> Any:
    """Return (next state, start, length) of a span of sentences from a random place of another document."""
    state, other = below(state, len(document_starts) - 2)
    if other >= document:
        other += 1
    first, last = document_starts[other], document_starts[other + 1]
    state, skipped = below(state, last - first)
    first += skipped
    end = _reach(offsets, first, last, tokens)
    return state, offsets[first], offsets[end] - offsets[first]


@compiled
def _plan_documents(offsets: Any, document_starts: Any, documents: Any, rules: Any, out: Any) -> int:
    """Write the pairs of the documents [first, behind the last] into the columns; return their number."""
    count = 0
    for document in range(documents[0], documents[1]):
        state = mix(rules.seed, rules.epoch, document, PAIRING)
        target = rules.max_tokens
        state, chance = uniform(state)
        if chance < rules.short_seq_prob:
            state, more = below(state, rules.max_tokens - _SHORTEST_TARGET + 1)
            target = _SHORTEST_TARGET + more
        sentence, last = document_starts[document], document_starts[document + 1]
        while sentence < last:
            end = _reach(offsets, sentence, last, target)
            a_end = end
            is_random = False
            if rules.nsp:
                a_end = sentence + 1
                is_random = True
                if end - sentence > 1:
                    state, more = below(state, end - sentence - 1)
                    a_end += more
                    state, chance = uniform(state)
                    is_random = chance < _HALF
            a_length = offsets[a_end] - offsets[sentence]
            b_start, b_length = offsets[a_end], offsets[end] - offsets[a_end]
            if is_random:
                end = a_end
                state, b_start, b_length = _random_span(state, offsets, document_starts, document, target - a_length)
            elif not rules.nsp:
                b_start = 0
            state = _put(state, (offsets[sentence], a_length, b_start, b_length), rules.max_tokens, count, out)
            out.next_sentence_label[count] = IS_RANDOM if is_random else IS_NEXT
            count += 1
            sentence = end
    return count
