"""What a rule is: a figure, its limits, a sentence and a remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pretrain.audit.figures import Audit

SEVERE = "severe"
WARNING = "warning"
NOTE = "note"
SEVERITIES = (SEVERE, WARNING, NOTE)

CUT_DOCUMENTS = (
    "If these are lines and no documents, make the shards again with zerobert shard --txt-layout blank or file; "
    "if sentences are not found, with --sentences auto and the right --language; if the text is like this, train with "
    "nsp = false."
)


@dataclass(frozen=True)
class Finding:
    """Something to know before training.

    Attributes:
        name: Name of the rule.
        severity: "severe", "warning" or "note".
        text: What was found, with the figure.
        remedy: What to do.
    """

    name: str
    severity: str
    text: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When to speak, and what to say.

    Attributes:
        name: Its name, which stays.
        meaning: What the figure is, in a few words.
        figure: The figure; None where there is none.
        limits: The limit of each severity: the rule speaks above it.
        text: The sentence.
        remedy: What to do.
    """

    name: str
    meaning: str
    figure: Callable[[Audit], float | None]
    limits: Mapping[str, float]
    text: Callable[[Audit], str]
    remedy: str
