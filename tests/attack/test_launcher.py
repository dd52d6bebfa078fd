"""The token of one job's launcher, which its user holds: others' jobs, nodes, orders and starts stay as they are.

`tests/attack/test_agent.py` walks all kinds of events; here are the mixtures of own and foreign, orders, and the other
generations and clusters of the own job. Each lie is sent again with its check removed, and is then believed.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.api.engine_house import engine_served, run
from tests.api.test_authority import OPEN_ORDER, THEIRS, Bound, evacuate, records, training

from attack_fixture import Removing
from holdfast.api import authority
from holdfast.api.authority import MAY, Kind
from holdfast.client import AsyncClient
from holdfast.errors import LinkError, RefusedError
from holdfast.model import events as e
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Diagnosis, Evidence, EvidenceKind, Finding, Place
from holdfast.model.wire import Beat

MINE = JobKey("test", "7")


def now() -> float:
    return time.time()


def mixed(job: JobKey, node: str) -> list[e.AnyEvent]:
    """Every event of launchers that names both a job and a node."""
    head = {"at": now(), "job": job}
    seen = Finding(
        id="f", rule="check.x", at=now(), place=Place(node=node), job=job, evidence=(Evidence(EvidenceKind.CHECK, "x"),)
    )
    blamed = {"node": Diagnosis(cause="x", nodes=(node,)), "GPU": Diagnosis(cause="x", gpus=(f"{node}/3",))}
    return [
        e.LauncherAttached(id="a", restart_count=0, nodes=(node,), **head),
        e.AttemptStarted(id="s", attempt=0, epoch=1, nodes=(node,), **head),
        *(e.Escalated(id=f"e{of}", attempt=0, diagnosis=one, **head) for of, one in blamed.items()),
        e.Escalated(id="x", attempt=0, exclude_nodes=(node,), **head),
        e.FindingSeen(id="f", at=now(), finding=seen),
    ]


MIXTURES = {
    "own job, foreign node": (MINE, "n3"),
    "own job, idle node": (MINE, "n5"),
    "own job, invented node": (MINE, "x9"),
    "own job, own node in capitals": (MINE, "N1"),
    "foreign job, own node": (THEIRS, "n1"),
    "another generation": (JobKey("test", "7", 2), "n1"),
    "another cluster": (JobKey("other", "7"), "n1"),
    "a job that there is not": (JobKey("test", "70"), "n1"),
    "the own job with a tail": (JobKey("test", "7#1"), "n1"),
}


@pytest.mark.attempt(
    actor="A launcher, or a user of the cluster who holds its token", asset="nodes", removed="api.authority.MAY"
)
@pytest.mark.parametrize("name", MIXTURES)
def test_own_and_foreign_in_one_event_is_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removing: Removing, name: str
) -> None:
    """Starts, escalations, exclusions and findings that name one of each are refused, and the world stays as it is."""
    monkeypatch.setattr(authority, "CATCH_UP_S", 0.0)

    async def work() -> None:
        async with (
            engine_served(tmp_path, reviewer=Bound()) as house,
            AsyncClient(house.server.url, "of-7", timeout_s=120) as liar,
        ):
            await training(house)
            await house.run_job()
            before = await records(house)
            lies = mixed(*MIXTURES[name])
            answer = await liar.ingest("launcher:7", lies)
            assert (answer.stored, len(answer.refused)) == (0, len(lies))
            assert await records(house) == before
            for kind in {type(lie) for lie in lies}:
                removing.item(MAY, kind, {Kind.LAUNCHER: ()})
            assert (await liar.ingest("launcher:7", lies)).stored == len(lies)

    run(work)


@pytest.mark.attempt(
    actor="A launcher, or a user of the cluster who holds its token", asset="other jobs", removed="api.authority.MAY"
)
@pytest.mark.parametrize(("token", "source"), [("of-7", "launcher:7"), ("of-n1", "agent:n1")])
@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_the_outcome_of_an_order_is_its_receivers_to_tell(
    tmp_path: Path, removing: Removing, token: str, source: str, outcome: str
) -> None:
    """An order that job 8's launcher has, one that nobody has, and ids that are nearly one: nobody else ends them."""

    async def work() -> None:
        async with (
            engine_served(tmp_path, reviewer=Bound()) as house,
            AsyncClient(house.server.url, token, timeout_s=120) as liar,
        ):
            await training(house)
            await evacuate(house)
            before = await records(house)
            theirs = OPEN_ORDER[""]
            ids = [theirs, theirs.upper(), f"{theirs} ", f"{theirs}/", "o1.1", "", "'; drop table orders --", "%"]
            make = {
                "done": lambda order: e.OrderDone(id=f"l{order}", at=now(), order=order),
                "failed": lambda order: e.OrderFailed(id=f"l{order}", at=now(), order=order, why="x"),
            }[outcome]
            assert (await liar.ingest(source, [make(one) for one in ids])).stored == 0
            assert await records(house) == before
            for kind in (e.OrderDone, e.OrderFailed):
                removing.item(MAY, kind, {Kind.LAUNCHER: (), Kind.AGENT: ()})
            assert (await liar.ingest(source, [make(theirs)])).stored == 1
            assert await records(house) != before

    run(work)


@pytest.mark.attempt(
    actor="A launcher, or a user of the cluster who holds its token",
    asset="other jobs",
    removed="api.authority.Reporter.check_beat",
)
def test_its_beats_bring_no_others_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removing: Removing) -> None:
    """A beat's answer holds what waits for its sender; one for another job, or from another node, is refused.

    With the check removed the other launcher's order is handed out.
    """
    monkeypatch.setattr(authority, "CATCH_UP_S", 0.0)

    async def work() -> None:
        async with (
            engine_served(tmp_path, reviewer=Bound()) as house,
            AsyncClient(house.server.url, "of-7", timeout_s=120) as liar,
        ):
            await training(house)
            await evacuate(house)
            own = Beat(source="launcher:7", at=now(), cluster="test", job="7", node="n1")
            assert (await liar.beat(own)).requests == []
            foreign = Beat(source="launcher:7", at=now(), cluster="test", job="8", node="n2")
            with pytest.raises((RefusedError, LinkError)):
                await liar.beat(foreign)

            async def unchecked(_self: authority.Reporter, beat: Beat) -> Beat:
                return beat

            removing(authority.Reporter, "check_beat", unchecked)
            assert [one.id for one in (await liar.beat(foreign)).requests] == [OPEN_ORDER[""]]

    run(work)
