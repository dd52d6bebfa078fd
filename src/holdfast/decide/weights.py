"""How much a finding explains: the kind of evidence that it is, from a warning to a machine that says it is broken.

`diagnosis` chooses the root by these. The kind follows from severity, domain and what the rule means. Pure.
"""

from __future__ import annotations

from holdfast.detect.meaning import Trait, Weight, meaning
from holdfast.model.evidence import Domain, Finding, Severity

_PEER_WORDS = (
    "connection", "peer", "nccl", "gloo", "tcpstore", "socket", "broken pipe", "timed out", "timeout", "rendezvous",
    "process group", "processgroup", "store", "eof",
)  # fmt: skip
_PEER_TYPES = ("Runtime", "Connection", "Timeout", "Dist", "EOF", "BrokenPipe", "OSError", "Socket", "Child")


def weight_of(finding: Finding) -> Weight:
    """The kind of evidence that a root-role finding is."""
    said = meaning(finding.rule)
    if said.weight is Weight.LOST:
        return Weight.LOST
    if Trait.WAIT in said.traits:
        return Weight.SYMPTOM
    if finding.severity in {Severity.INFO, Severity.WARNING}:
        return Weight.WARNING
    if said.weight is not None:
        return said.weight
    if finding.domain is Domain.HARDWARE:
        return Weight.HARDWARE
    if Trait.BY_WORDS in said.traits and _speaks_of_peers(finding):
        return Weight.EXIT
    return Weight.SPECIFIC


def _speaks_of_peers(finding: Finding) -> bool:
    """An exception that the catalogue does not know, whose words are those of a rank that lost another."""
    if not finding.captures.get("type", "").rpartition(".")[2].startswith(_PEER_TYPES):
        return False
    message = finding.captures.get("message", "").lower()
    return any(word in message for word in _PEER_WORDS)
