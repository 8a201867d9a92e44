"""What is wrong with the shards: one table of rules, each a figure, its limits, a sentence and a remedy.

A rule speaks where its figure is above one of its limits; the most severe limit passed counts.
"""

from __future__ import annotations

from pretrain.audit.figures import Audit
from pretrain.audit.rules import SEVERITIES, Finding, Rule
from pretrain.audit.rules_of_pairs import PAIR_RULES
from pretrain.audit.rules_of_text import TEXT_RULES

RULES: tuple[Rule, ...] = (*TEXT_RULES, *PAIR_RULES)


def find(audit: Audit) -> list[Finding]:
    """Return what the rules say, the most severe first."""
    findings = []
    for rule in RULES:
        figure = rule.figure(audit)
        if figure is None:
            continue
        passed = [severity for severity in SEVERITIES if figure > rule.limits.get(severity, float("inf"))]
        if passed:
            findings.append(Finding(rule.name, passed[0], rule.text(audit), rule.remedy))
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
