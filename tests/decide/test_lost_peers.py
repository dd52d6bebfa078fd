"""Whom bereft ranks point at: a peer that most of them name, the one rank that says nothing."""

import pytest

from holdfast.decide.diagnosis import DiagnosisContext, diagnose
from holdfast.decide.lost_peers import named_peer, silent_rank
from holdfast.model.evidence import Domain, Finding, Place, Remedy, Role, Severity


def lost(rank, peer=""):
    return Finding(id=f"{rank}-{peer}", rule="gloo.peer", at=1.0, role=Role.CASCADE, domain=Domain.NETWORK, severity=Severity.ERROR,
                   remedy=Remedy.NONE, place=Place(rank=rank), fingerprint="gloo.peer", summary="", captures={"peer": peer})  # fmt: skip


@pytest.mark.parametrize(
    ("spoke", "silent"),
    [
        ((), None),
        ((0, 1), None),
        ((1, 2), None),
        ((0, 1, 2), None),
        ((0, 1, 3), 2),
        ((1, 2, 3), 0),
        ((0, 1, 2, 5), None),
        ((1, 3, 4), None),
        ((0, 1, 3, 3), 2),
        ((0, 1, 99_999_999_999), None),
        ((0, 1, 10**30), None),
        ((-1, 1, 3), None),
    ],
)
def test_the_one_silent_rank(spoke, silent):
    """Of at least three that speak, exactly one below the highest is missing; a claimed rank of any size costs nothing."""
    assert silent_rank([lost(rank) for rank in spoke]) == silent


@pytest.mark.parametrize(
    ("named", "nodes", "peer"),
    [
        (("n7", "n7", "n8"), (), "n7"),
        (("n7", "n8"), (), ""),
        (("n7",), (), "n7"),
        (("n7",), ("n7", "n8"), ""),
        (("n7", "n7"), ("n7", "n8"), "n7"),
        (("n7.lan<52110>", "n7"), ("n7", "n8"), "n7"),
        (("n7", "n7.lan"), ("n7.lan", "n8.lan"), "n7.lan"),
        (("n7", "n7"), ("n7.a", "n7.b"), ""),
        (("victim", "victim", "n7"), ("n7", "n8"), ""),
        (("10.0.0.7:38032", "10.0.0.7"), ("n7", "n8"), ""),
        (("10.0.0.7:38032", "10.0.0.7"), (), "10.0.0.7"),
        (("", "127.0.0.1", "localhost"), (), ""),
    ],
)
def test_the_peer_that_most_name(named, nodes, peer):
    """Where the nodes are known it is one of them, by its name there, and two name it; else the word is taken as it is."""
    findings = [lost(rank, name) for rank, name in enumerate(named)]
    assert named_peer(findings, nodes) == peer
    assert diagnose(findings, DiagnosisContext(nodes=nodes)).nodes == ((peer,) if peer else ())
