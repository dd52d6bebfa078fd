"""Whom the errors of bereft ranks point at, when nobody says what happened to him.

Ranks that lose a peer often name it: an address, a host, a store's far end. When most of them name the same one, or all
ranks but one speak, that one is a suspect, though the cause stays unknown. Called by `decide.diagnosis` only. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.model.evidence import Domain, Finding, Role

SPEAKERS_MIN = 3
"""From so few ranks silence says nothing."""
_PEER = ("peer", "host")
_PORT = re.compile(r"(?:<\d{1,5}>|:\d{1,5})$")


def named_peer(findings: Sequence[Finding]) -> str:
    """The host that more than half of the bereft ranks call their lost peer; empty when they do not agree."""
    named: dict[str, set[object]] = {}
    speakers: set[object] = set()
    for finding in findings:
        if finding.role is not Role.CASCADE or finding.domain is not Domain.NETWORK:
            continue
        text = next((finding.captures[name] for name in _PEER if finding.captures.get(name)), "")
        if host := _host(text):
            who = finding.place.rank if finding.place.rank is not None else finding.place.node
            named.setdefault(host, set()).add(who)
            speakers.add(who)
    most = max(named.items(), key=lambda item: len(item[1]), default=("", set()))
    return most[0] if len(most[1]) * 2 > len(speakers) else ""


def silent_rank(findings: Sequence[Finding]) -> int | None:
    """The one rank below the highest known that lost nobody, when all others did; None when there are more."""
    spoke = {f.place.rank for f in findings if f.role is Role.CASCADE and f.place.rank is not None}
    if len(spoke) < SPEAKERS_MIN:
        return None
    silent = set(range(max(spoke) + 1)) - spoke
    return silent.pop() if len(silent) == 1 else None


def _host(text: str) -> str:
    """`node05.cluster<52110>` -> `node05`; addresses stay whole."""
    bare = _PORT.sub("", text.strip(" ,;")).strip("[]")
    if not bare or bare in {"127.0.0.1", "::1", "localhost"}:
        return ""
    return bare if re.fullmatch(r"[0-9a-fA-F.:]+", bare) else bare.split(".")[0]
