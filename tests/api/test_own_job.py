"""A launcher that logs in by its pod's token speaks of its own job, its own nodes and its own orders, and of no others."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.api.engine_house import EngineHouse, engine_served, job_view, run, until
from tests.controller.cases import KEY

from holdfast.api import authority
from holdfast.client import AsyncClient
from holdfast.controller.mailbox import address_of
from holdfast.errors import LinkError, RefusedError
from holdfast.model import events as e
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Diagnosis, Finding, Place
from holdfast.model.wire import Beat

OTHER = JobKey("test", "8")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authority, "CATCH_UP_S", 0.2)


class Pods:
    """Stands for the API server's word about tokens."""

    async def source_of(self, token: str) -> str:
        return {"of-7": "launcher:7", "of-9": "launcher:9"}.get(token, "")


def launcher(house: EngineHouse, token: str = "of-7") -> AsyncClient:
    return AsyncClient(house.server.url, token, timeout_s=120)


def found(event_id: str, *, job: JobKey | None = KEY, node: str = "n1") -> e.FindingSeen:
    finding = Finding(id=event_id, rule="exit.signal.11", at=time.time(), job=job, place=Place(node=node, rank=0))
    return e.FindingSeen(id=event_id, at=time.time(), finding=finding)


def attached(event_id: str, *, job: JobKey = KEY, nodes: tuple[str, ...] = ("n1",)) -> e.LauncherAttached:
    return e.LauncherAttached(id=event_id, at=time.time(), job=job, restart_count=0, nodes=nodes)


def test_its_own_job_is_heard(tmp_path: Path):
    """Beats and events of the job, on nodes of the job, as with a token of the book."""

    async def work() -> None:
        async with engine_served(tmp_path, reviewer=Pods()) as house, launcher(house) as mine:
            said = [attached("a"), found("f"), found("g", node="")]
            said.append(e.AttemptStarted(id="s", at=time.time(), job=KEY, attempt=0, epoch=1, nodes=("n1",)))
            answer = await mine.ingest("launcher:7", said)
            assert (answer.stored, answer.refused) == (4, [])
            assert (await mine.beat(Beat(source="launcher:7", node="n1", cluster="test", job="7"))).attached

    run(work)


def test_of_others_it_may_not_speak(tmp_path: Path):
    """Another job, another's node, an agent's words: each is refused with the reason, and what stands beside it is stored."""
    at = time.time()
    blamed = Diagnosis(cause="x", nodes=("n1", "n3"))
    foreign = {
        "may not speak of job 8": [attached("j", job=OTHER), found("k", job=OTHER)],
        "names none": [found("l", job=None)],
        "n2, which the scheduler has not given to its job": [
            attached("m", nodes=("n1", "n2")),
            found("n", node="n2"),
            e.NodeGone(id="o", at=at, node="n2", evidence="reset"),
            e.FindingCleared(id="p", at=at, rule="straggler.rank", node="n2"),
        ],
        "n3, which the scheduler has not given to its job": [
            e.Escalated(id="r", at=at, job=KEY, attempt=0, diagnosis=blamed)
        ],
        "may not clear 'nvidia.xid.79'": [e.FindingCleared(id="u", at=at, rule="nvidia.xid.79", node="n1")],
        "launcher:7 may not send": [
            e.DrillFired(id="q", at=at, drill="d", kind="kill9", node="n1"),
            e.NodeValidated(id="v", at=at, node="n1", passed=True),
            e.AgentAttached(id="w", at=at, node="n1", boot_id="b"),
        ],
        "set HOLDFAST_CLUSTER=test": [attached("x", job=JobKey("local", "7"))],
    }

    async def work() -> None:
        async with engine_served(tmp_path, reviewer=Pods()) as house, launcher(house) as mine:
            for number, (why, events) in enumerate(foreign.items()):
                for event in events:
                    answer = await mine.ingest("launcher:7", [found(f"fine-{number}-{event.id}"), event])
                    assert answer.stored == 1
                    assert why in answer.refused[0], event
            for source in ("launcher:8", "agent:n1"):
                with pytest.raises(RefusedError, match="may report only as launcher:7"):
                    await mine.ingest(source, [found("y")])
            for beat in (
                Beat(source="launcher:7", cluster="test", job="8"),
                Beat(source="launcher:7", cluster="test", job="7", node="n2"),
                Beat(source="launcher:7", node="n1"),
            ):
                with pytest.raises(RefusedError):
                    await mine.beat(beat)
            with pytest.raises(RefusedError):
                await mine.state()

    run(work)


def test_what_is_not_seen_yet_comes_back_later(tmp_path: Path):
    """A job or a node that the watch has not brought yet loses no event: the launcher is told to try again."""
    key = JobKey("test", "9")

    async def work() -> None:
        async with engine_served(tmp_path, reviewer=Pods()) as house, launcher(house, "of-9") as mine:
            with pytest.raises(LinkError, match="no job '9' has been seen"):
                await mine.ingest("launcher:9", [attached("a", job=key, nodes=("n2",))])
            house.world.set_job(job_view(key, ()))
            await until(lambda: any(view.key == key for view in house.controller.shell().jobs.values()))
            with pytest.raises(LinkError, match="nodes of 9 are not known"):
                await mine.ingest("launcher:9", [attached("a", job=key, nodes=("n2",))])
            house.world.set_job(job_view(key, ("n2",)))
            await until(lambda: any(view.nodes == ("n2",) for view in house.controller.shell().jobs.values()))
            assert (await mine.ingest("launcher:9", [attached("a", job=key, nodes=("n2",))])).stored == 1

    run(work)


def test_outcomes_are_taken_of_its_own_orders_only(tmp_path: Path):
    """What became of an order for a node, or of one that there never was, is not a launcher's to say."""

    async def work() -> None:
        async with engine_served(tmp_path, reviewer=Pods()) as house, launcher(house) as mine:
            await house.run_job()
            for command, target in ((e.Command.DRAIN, {"node": "n3"}), (e.Command.EVACUATE, {"job": KEY})):
                said = e.OperatorCommand(id=command, at=time.time(), command=command, who="mei", why="x", **target)
                await house.controller.submit(said)
            records = await house.controller.journal.orders()
            given = {address_of(one.order): one.order.id for one in records}
            assert {"", "launcher:test/7#1"} <= given.keys()
            for event_id, order in (("x", given[""]), ("y", "never")):
                answer = await mine.ingest("launcher:7", [e.OrderDone(id=event_id, at=time.time(), order=order)])
                assert "is not one for launcher:7" in answer.refused[0]
            done = e.OrderFailed(id="z", at=time.time(), order=given["launcher:test/7#1"], why="no")
            assert (await mine.ingest("launcher:7", [done])).stored == 1

    run(work)
