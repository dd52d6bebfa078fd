"""Does each rule do what its own examples say? Run by `holdfast catalogue test|lint` and by the tests. Pure."""

from __future__ import annotations

from msgspec import Struct

from holdfast.detect.catalogue import Catalogue, Rule
from holdfast.detect.database import all_hits
from holdfast.detect.lines import take_apart
from holdfast.detect.matcher import Matcher

_YEAR = 2025


class Complaint(Struct, frozen=True):
    """One example that a rule does not live up to."""

    rule: Rule
    what: str


def prove(catalogue: Catalogue, matcher: Matcher | None = None) -> list[Complaint]:
    """All examples that do not match and look-alikes that do, by pattern and through Hyperscan."""
    judge = matcher or Matcher(catalogue)
    complaints: list[Complaint] = []
    for rule in catalogue.scanned:
        if not rule.matches:
            complaints.append(Complaint(rule, "has no example that it must match"))
        for example in rule.matches:
            if judge.captures(rule, take_apart(example, _YEAR)) is None:
                complaints.append(Complaint(rule, f"its pattern does not match its example: {example}"))
            elif not any(
                rule in judge.owners[number] for number in all_hits(judge.databases, example.encode() + b"\n")
            ):
                complaints.append(Complaint(rule, f"Hyperscan does not point at its example (core): {example}"))
        complaints += [
            Complaint(rule, f"it matches its look-alike: {example}")
            for example in rule.rejects
            if judge.captures(rule, take_apart(example, _YEAR)) is not None
        ]
    return complaints
