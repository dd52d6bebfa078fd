"""Whom the errors of bereft ranks point at, when nobody says what happened to him.

Ranks that lose a peer often name it: an address, a host, a store's far end. When most of them name the same one, or all
ranks but one speak, that one is a suspect, though the cause stays unknown. Called by `decide.diagnosis` only. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from holdfast.model.evidence import Domain, Finding, Role

SPEAKERS_MIN = 3
"""From so few ranks silence says nothing."""
NAMERS_MIN = 2
"""Where the job's nodes are known and people act on what is said, one alone is not most."""
_PEER = ("peer", "host")
_PORT = re.compile(r"(?:<\d{1,5}>|:\d{1,5})$")


def named_peer(findings: Sequence[Finding], nodes: Collection[str] = ()) -> str:
    """The host that more than half of the bereft ranks call their lost peer; empty when they do not agree.

    Args:
        findings: of one incident.
        nodes: of the attempt. When they are known only one of them is named, by the name it has here, and at least two
            must name it. Without them (a log that is read by itself) one suffices.
    """
    named: dict[str, set[object]] = {}
    speakers: set[object] = set()
    for finding in findings:
        if finding.role is not Role.CASCADE or finding.domain is not Domain.NETWORK:
            continue
        text = next((finding.captures[name] for name in _PEER if finding.captures.get(name)), "")
        if host := _of_job(_host(text), nodes):
            who = finding.place.rank if finding.place.rank is not None else finding.place.node
            named.setdefault(host, set()).add(who)
            speakers.add(who)
    most = max(named.items(), key=lambda item: len(item[1]), default=("", set()))
    if nodes and (most[0] not in nodes or len(most[1]) < NAMERS_MIN):
        return ""
    return most[0] if len(most[1]) * 2 > len(speakers) else ""


def silent_rank(findings: Sequence[Finding]) -> int | None:
    """The one rank below the highest known that lost nobody, when all others did; None when there are more."""
    spoke = {f.place.rank for f in findings if f.role is Role.CASCADE and f.place.rank is not None}
    highest = max(spoke, default=0)
    # Exactly one of 0..highest is missing. Never lists them: a log may claim any number to be a rank.
    if len(spoke) < SPEAKERS_MIN or highest != len(spoke) or min(spoke) < 0:
        return None
    return highest * (highest + 1) // 2 - sum(spoke)


def _of_job(host: str, nodes: Collection[str]) -> str:
    """The node's own name when just one has this short host name; else the host as it was named."""
    if host in nodes:
        return host
    short = [node for node in nodes if node.split(".")[0] == host]
    return short[0] if len(short) == 1 else host


def _host(text: str) -> str:
    """`node05.cluster<52110>` -> `node05`; addresses stay whole."""
    bare = _PORT.sub("", text.strip(" ,;")).strip("[]")
    if not bare or bare in {"127.0.0.1", "::1", "localhost"}:
        return ""
    return bare if re.fullmatch(r"[0-9a-fA-F.:]+", bare) else bare.split(".")[0]
