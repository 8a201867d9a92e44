"""The table of docs/audit.md is that of the rules."""

from __future__ import annotations

from pathlib import Path

from pretrain.audit.findings import RULES
from pretrain.audit.rules import SEVERITIES, Rule

DOCS = Path(__file__).resolve().parents[3] / "docs" / "audit.md"


def row(rule: Rule) -> str:
    limits = [f"{rule.limits[severity]:g}" if severity in rule.limits else "" for severity in SEVERITIES]
    cells = [f"`{rule.name}`", rule.meaning, *limits, rule.remedy]
    return f"| {' | '.join(cells)} |"


def test_every_rule_stands_in_the_docs_with_its_limits() -> None:
    rows = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert rows == [row(rule) for rule in RULES]
