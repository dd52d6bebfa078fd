"""Which node is at fault, from tests of pairs and groups. Pure: rounds out, outcomes in.

A pair that fails says only that one of two is bad. In the next round each of them meets a node that has passed
already; a node that fails with two different partners, one of them proven good, is at fault, and a node that passes
with anybody is cleared. Two rounds decide, however large the fleet is. A test of a whole group (a collective) that
fails is halved until pairs remain: log2(nodes) rounds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

Group = tuple[str, ...]
ROUNDS_MAX = 6
"""Rounds of a hunt after which what is not decided stays undecided."""


class Outcome(Struct, frozen=True):
    """How the test of a group came out."""

    group: Group
    reasons: tuple[str, ...] = ()
    """Why it failed; empty: it passed."""

    @property
    def passed(self) -> bool:
        """Nothing was wrong."""
        return not self.reasons


class Blame(Struct, frozen=True):
    """A node at fault, and how that was found."""

    node: str
    reasons: tuple[str, ...]
    partners: Group
    """With whom it failed."""

    @property
    def why(self) -> str:
        """How that was found, in words."""
        return f"with {' and with '.join(self.partners)}: {'; '.join(self.reasons)}"


class Pairing:
    """Paired tests of a fleet.

    Args:
        nodes: all of them, in an order that is kept.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        self.outcomes: list[Outcome] = []
        self.rounds: list[tuple[Outcome, ...]] = []
        self._by_node: dict[str, list[Outcome]] = {}

    def next_round(self) -> list[Group]:
        """Disjoint pairs to be tested now; empty: nothing more is to be learned."""
        if len(self.nodes) < 2 or len(self.rounds) >= ROUNDS_MAX:
            return []
        if not self.rounds:
            even = self.nodes[len(self.nodes) % 2 :]  # the first of an odd number meets nobody yet
            middle = len(even) // 2
            return list(zip(even[:middle], reversed(even[middle:]), strict=True))
        known = self.proven
        proven = [node for node in self.nodes if node in known]
        untried = [node for node in self.nodes if node not in self._by_node]
        decided = self._decided()
        found: list[Group] = []
        taken: set[str] = set()
        for node in [*untried, *(node for node in self.suspects if node not in decided)]:
            if node in taken:
                continue
            met = _members([test.group for test in self._tests(node)]) | {node}
            partner = next((one for one in proven if one not in met and one not in taken), None)
            if partner is None and (node not in self._by_node or not proven):
                # Nobody is proven yet: any two that have not met tell something.
                partner = next((one for one in self.nodes if one not in met and one not in taken), None)
            if partner is not None:
                found.append((node, partner))
                taken |= {node, partner}
        return found

    def take(self, outcomes: Sequence[Outcome]) -> None:
        """The outcomes of a round."""
        self.rounds.append(tuple(outcomes))
        self.outcomes += outcomes
        for outcome in outcomes:
            for node in outcome.group:
                self._by_node.setdefault(node, []).append(outcome)

    def _tests(self, node: str) -> list[Outcome]:
        return self._by_node.get(node, [])

    @property
    def proven(self) -> set[str]:
        """Nodes that passed with somebody."""
        return {node for one in self.outcomes if one.passed for node in one.group}

    @property
    def suspects(self) -> list[str]:
        """Nodes that have only failed."""
        proven = self.proven
        return [node for node in self.nodes if node in self._by_node and node not in proven]

    def _decided(self) -> set[str]:
        return {blame.node for blame in self.blamed()}

    def blamed(self) -> list[Blame]:
        """Nodes that failed with two different partners, one of them proven, or (of three or more) with every one."""
        found, proven = [], self.proven
        for node in self.suspects:
            partners = _members([test.group for test in self._tests(node)]) - {node}
            if len(partners) < 2 or not partners & proven:
                continue
            found.append(Blame(node, tuple(_kinds(self.reasons(node))), tuple(sorted(partners))))
        return found

    def reasons(self, node: str) -> list[str]:
        """Why tests of this node failed, each reason once."""
        return list(dict.fromkeys(reason for test in self._tests(node) for reason in test.reasons))

    def undecided(self) -> list[str]:
        """Suspects that nobody could be set against."""
        decided = self._decided()
        return [node for node in self.suspects if node not in decided]


class Halving:
    """A group whose test fails, halved until the bad part is small."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._open: list[Group] = [tuple(nodes)] if len(nodes) > 1 else []
        self.small: list[Group] = []
        """Failing groups of two or three nodes: a matter for `Pairing`."""
        self.between: list[Group] = []
        """Groups that fail as a whole while both halves pass: the fault lies between the halves."""
        self._waiting: dict[Group, dict[Group, bool]] = {}

    def next_round(self) -> list[Group]:
        """Groups to be tested now, disjoint; empty: done."""
        return list(self._open)

    def take(self, outcomes: Sequence[Outcome]) -> None:
        """The outcomes of a round."""
        self._open = []
        for outcome in outcomes:
            self._settle(outcome)
            if outcome.passed:
                continue
            if len(outcome.group) <= 3:
                self.small.append(outcome.group)
                continue
            middle = len(outcome.group) // 2
            halves = [outcome.group[:middle], outcome.group[middle:]]
            self._waiting[outcome.group] = {}
            self._open += halves

    def _settle(self, outcome: Outcome) -> None:
        for whole, known in list(self._waiting.items()):
            if set(outcome.group) < set(whole) and len(outcome.group) >= len(whole) // 2:
                known[outcome.group] = outcome.passed
                if len(known) == 2:
                    del self._waiting[whole]
                    if all(known.values()):
                        self.between.append(whole)


def _kinds(reasons: Sequence[str]) -> list[str]:
    """Reasons that differ in more than their figures, the first of each."""
    return list({re.sub(r"[\d.]+", "#", reason): reason for reason in reversed(reasons)}.values())[::-1]


def _members(groups: Sequence[Group]) -> set[str]:
    return {node for group in groups for node in group}


def stories(rounds: Sequence[Sequence[Outcome]]) -> list[str]:
    """Each round in a sentence."""
    told = []
    for number, outcomes in enumerate(rounds, 1):
        bad = [one for one in outcomes if not one.passed]
        words = "; ".join(f"{' and '.join(one.group)}: {', '.join(one.reasons)}" for one in bad)
        told.append(f"round {number}: {len(outcomes)} tests, {len(bad)} failed" + (f" ({words})" if words else ""))
    return told


def reasons_of(values: Mapping[str, float], limits: Mapping[str, tuple[str, float, str]]) -> tuple[str, ...]:
    """Why a pair's figures fail. `limits`: name -> (`higher` or `lower` is better, the bound, words with {})."""
    found = []
    for name, (better, bound, words) in limits.items():
        value = values.get(name)
        if value is not None and (value < bound if better == "higher" else value > bound):
            found.append(words.format(value))
    return tuple(found)
