"""How many NSP pairs a second one core plans.

    python -m benchmarks.planning

The documents are synthetic: sentence lengths log-normal (median 21 tokens, mean 25), documents geometric (mean 25
sentences). Only lengths are read, so no text is needed. Before any rate is printed the plan is held against what can be
said of it by hand; see `check_plan`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks import harness
from pretrain.data.pairing import IS_RANDOM, Columns, PairingSettings, plan_documents
from pretrain.data.store import SentenceIndex

LEAST_MILLION_PAIRS = 3.0
SEQ_LEN = 128
_DOCUMENTS = 400_000
_MEAN_SENTENCES = 25
_MEDIAN_TOKENS = 21.0
_SIGMA = 0.6
_RANDOM_SHARE = (0.45, 0.60)
_SEED = 1


def make_index(num_documents: int, seed: int = _SEED) -> SentenceIndex:
    """Return the index of made-up documents."""
    draw = np.random.default_rng(seed)
    sizes = draw.geometric(1 / _MEAN_SENTENCES, num_documents)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    lengths = np.maximum(1, np.rint(draw.lognormal(np.log(_MEDIAN_TOKENS), _SIGMA, int(starts[-1])))).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return SentenceIndex(offsets, starts, np.array([0, offsets[-1]], dtype=np.int64))


def settings(seq_len: int = SEQ_LEN) -> PairingSettings:
    """Return BERT's own settings."""
    return PairingSettings(seed=_SEED, seq_len=seq_len, short_seq_prob=0.1, nsp=True)


def plan(index: SentenceIndex, epoch: int) -> Columns:
    """Plan an epoch of all documents in one piece."""
    return plan_documents(index, settings(), epoch, (0, index.num_documents))


def check_plan(index: SentenceIndex, columns: Columns) -> str:
    """Check a plan by what must be true of any.

    No pair is longer than seq_len, no segment empty. B of a pair lies in A's document and behind A, of a random pair in
    another document. Each document gives pairs, and its A segments go forward in its text. Between 45 and 60 % of the
    pairs are random.

    Args:
        index: the documents.
        columns: their pairs at `SEQ_LEN`.

    Returns:
        What was checked.

    Raises:
        UnequalError: something is not so.
    """
    edges = index.sentence_offsets[index.document_starts]
    a_length, b_length = columns.a_length.astype(np.int64), columns.b_length.astype(np.int64)
    is_random = columns.next_sentence_label == IS_RANDOM
    a_document = _document_of(edges, columns.a_start, a_length, "A")
    b_document = _document_of(edges, columns.b_start, b_length, "B")
    same = a_document[1:] == a_document[:-1]
    share = float(is_random.mean())
    rules: dict[str, bool] = {
        "a pair is longer than seq_len": bool((a_length + b_length + 3 <= SEQ_LEN).all()),
        "a segment is empty": bool((a_length >= 1).all() and (b_length >= 1).all()),
        "B of a random pair is from A's document": bool((a_document != b_document)[is_random].all()),
        "B does not follow A": bool(
            ((a_document == b_document) & (columns.b_start >= columns.a_start + a_length))[~is_random].all()
        ),
        "a document has no pair": len(np.unique(a_document)) == index.num_documents,
        "documents are out of order": bool((np.diff(a_document) >= 0).all()),
        "A goes back in its document": bool((np.diff(columns.a_start)[same] > 0).all()),
        f"{share:.3f} of the pairs are random": _RANDOM_SHARE[0] <= share <= _RANDOM_SHARE[1],
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise harness.UnequalError("; ".join(broken))
    fill = float((a_length + b_length + 3).mean())
    return f"{len(a_length):,} pairs, {share:.1%} random, {fill:.1f} tokens on average, none above {SEQ_LEN}"


def _document_of(
    edges: npt.NDArray[np.int64], start: npt.NDArray[np.int64], length: npt.NDArray[np.int64], name: str
) -> npt.NDArray[np.int64]:
    """Return the document of every segment; none may reach into the next one."""
    document = np.searchsorted(edges, start, side="right") - 1
    if (document < 0).any() or (start + length > edges[np.minimum(document + 1, len(edges) - 1)]).any():
        raise harness.UnequalError(f"a segment {name} crosses the end of its document")
    return document


def measure(index: SentenceIndex, rounds: int) -> list[float]:
    """Return million pairs a CPU second of each round; each plans another epoch."""
    rates = []
    for epoch in range(1, rounds + 1):
        start = time.process_time()
        columns = plan(index, epoch)
        rates.append(len(columns.a_start) / (time.process_time() - start) / 1e6)
    return rates


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 where the goal is met."""
    options = harness.parser("planning", __doc__).parse_args(arguments)
    report = harness.Report("planning", options)
    index = make_index(_DOCUMENTS)
    checked = check_plan(index, plan(index, 0))  # compiles as well
    rates = measure(index, report.rounds)
    goal = LEAST_MILLION_PAIRS if options.goal is None else options.goal
    report.figure(
        f"planning, seq_len {SEQ_LEN} ({checked}); median of {', '.join(f'{rate:.2f}' for rate in rates)}",
        statistics.median(rates),
        "million pairs/s a core",
        least=goal,
    )
    return report.finish()


if __name__ == "__main__":
    harness.start(main)
