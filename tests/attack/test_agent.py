"""Every kind of event, said by every principal of every subject: the table of `authority` answers, and so do the docs.

Real requests to a real controller. Job 7 of mei runs on n1, job 8 of ann on n2 and n3; n4 to n6 are idle. A lie with the
check removed must succeed, so that no attempt here is one that cannot fail.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.api.engine_house import EngineHouse, bad_gpu, engine_served, run
from tests.api.test_authority import ANY, THEIRS, Bound, records, training

from attack_fixture import Removing
from holdfast.api import authority
from holdfast.api.authority import MAY, Kind
from holdfast.client import AsyncClient
from holdfast.errors import LinkError, RefusedError
from holdfast.model import events as e
from holdfast.model.cluster import JobKey, JobView, NodeView
from holdfast.model.evidence import Diagnosis, Evidence, EvidenceKind, Finding, Place

MINE = JobKey("test", "7")
DOCS = Path(__file__).parents[2] / "docs"
PRINCIPALS = {"agent": ("of-n1", "agent:n1"), "launcher": ("of-7", "launcher:7"), "drill": ("of-drill", "drill:d")}
"""Token and source: the agent of n1, the launcher of job 7, a drill with a token of its own."""


def now() -> float:
    return time.time()


def finding(node: str, job: JobKey | None) -> Finding:
    return Finding(
        id="f", rule="check.disk_full", at=now(), place=Place(node=node), job=job,
        evidence=(Evidence(EvidenceKind.CHECK, "x"),),
    )  # fmt: skip


def said(kind: type, node: str, job: JobKey, order: str) -> e.AnyEvent:
    """An event of this kind about this node and job, of the plainest form."""
    head = {"id": f"{kind.__name__}-{node}-{job}", "at": now()}
    fields = {
        e.JobObserved: {"job": JobView(key=job)},
        e.NodeObserved: {"node": NodeView(name=node)},
        e.WatchBlind: {"blind": True},
        e.LauncherAttached: {"job": job, "restart_count": 0, "nodes": (node,)},
        e.LauncherLapsed: {"job": job},
        e.AttemptStarted: {"job": job, "attempt": 0, "epoch": 1, "nodes": (node,)},
        e.FirstStepDone: {"job": job, "attempt": 0, "step": 1},
        e.CheckpointSaved: {"job": job, "attempt": 0, "step": 1, "durable": True},
        e.StepReached: {"job": job, "attempt": 0, "step": 1},
        e.Escalated: {"job": job, "attempt": 0, "diagnosis": Diagnosis(cause="x", nodes=(node,))},
        e.FindingSeen: {"finding": finding(node, job)},
        e.FindingCleared: {"rule": "straggler.rank", "node": node},
        e.AgentAttached: {"node": node, "boot_id": f"b-{node}"},
        e.NodeSilent: {"node": node, "for_s": 60.0},
        e.NodeGone: {"node": node, "evidence": "reset"},
        e.NodeValidated: {"node": node, "passed": True},
        e.OperatorCommand: {"command": e.Command.DRAIN, "who": "x", "node": node},
        e.PolicyLoaded: {"toml": ""},
        e.OrderDone: {"order": order},
        e.OrderFailed: {"order": order, "why": "x"},
        e.TimerFired: {"timer": "x"},
        e.ControllerStarted: {"epoch": 99},
        e.DrillFired: {"drill": "d", "kind": "kill9", "node": node, "job": job},
        e.DrillRun: {"who": "x", "drills": (), "phase": "passed", "run": "r"},
    }.get(kind)
    if fields is None:  # the others have a job and an attempt, or a node, and nothing else that must be said
        names = {field.name for field in msgspec.structs.fields(kind)}
        fields = (
            {"job": job, "attempt": 0} if "attempt" in names else {"job": job} if "job" in names else {"node": node}
        )
    return kind(**head, **fields)


def documented() -> dict[str, dict[str, bool]]:
    """The table of the threat model: kind -> kind of reporter -> may say it of its own."""
    page = DOCS / "threat-model.md"
    table = page.read_text().split("### What each reporter may say, of what", 1)[1].split("\n#", 1)[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \|", table, re.MULTILINE)
    return {name: dict(zip(Kind, (cell.strip() != "no" for cell in cells), strict=True)) for name, *cells in rows}


def test_the_threat_models_table_is_the_codes() -> None:
    """Every kind of event there is has its row, and each of its cells says what the code says."""
    tags = {kind.__struct_config__.tag: kind for kind in e.AnyEvent.__args__}
    made = {tag: {who: who in MAY.get(kind, {}) for who in Kind} for tag, kind in tags.items()}
    assert documented() == made


class BoundDrill(Bound):
    async def source_of(self, token: str) -> str:
        return "drill:d" if token == "of-drill" else await super().source_of(token)


@pytest.mark.attempt(
    actor="An agent that was taken over",
    asset="other nodes",
    removed="api.authority.MAY",
    each=("own", "other", "invented"),
)
@pytest.mark.parametrize("who", PRINCIPALS)
def test_each_kind_of_event_is_taken_of_what_is_the_reporters_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removing: Removing, who: str
) -> None:
    """The whole product: all kinds of events, of the reporter's own node and job, of others', and of invented ones."""
    monkeypatch.setattr(authority, "CATCH_UP_S", 0.0)
    token, source = PRINCIPALS[who]
    subjects = {"own": ("n1", MINE), "other": ("n3", THEIRS), "invented": ("x9", JobKey("test", "99"))}

    async def work() -> None:
        async with (
            engine_served(tmp_path, reviewer=BoundDrill()) as house,
            AsyncClient(house.server.url, token, timeout_s=120) as reporter,
        ):
            await training(house)
            await house.run_job()
            taken: dict[str, set[str]] = {whose: set() for whose in subjects}
            for whose, (node, job) in subjects.items():
                for kind in e.AnyEvent.__args__:
                    event = said(kind, node, job, f"no-such-order-{whose}")
                    try:
                        answer = await reporter.ingest(source, [event])
                    except (RefusedError, LinkError):
                        continue
                    if not answer.refused:
                        taken[whose].add(kind.__struct_config__.tag)
            rows = {name for name, row in documented().items() if row[Kind(who)]}
            assert taken["own"] == rows - {"order_done", "order_failed"}
            # A drill speaks with its own token of whatever node and job there are: the true time of its fault.
            assert taken["other"] == ({"drill_fired"} if who == "drill" else set())
            assert taken["invented"] == set()
            believed: set[str] = set()
            for kind in e.AnyEvent.__args__:
                removing.item(MAY, kind, {Kind(who): ()})
                event = said(kind, "n3", THEIRS, "no-such-order")
                believed |= (
                    {kind.__struct_config__.tag} if not (await reporter.ingest(source, [event])).refused else set()
                )
            assert believed >= {kind.__struct_config__.tag for kind in e.AnyEvent.__args__} - UNREADABLE

    run(work)


UNREADABLE: set[str] = set()
"""Kinds that the controller itself cannot take from outside, whoever is believed."""
NAMES = ("N1", "n1.", "n1/../n3", "n1\x00", "n1 ", " n1", "\uff4e1", "n1\n", "../n1", "n1%2e", "n1.cluster", "nód")


@pytest.mark.attempt(actor="An agent that was taken over", asset="other nodes", removed="api.authority.MAY")
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_nearly_the_own_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removing: Removing, name: str
) -> None:
    """Another case, a dot, a path, a control or wide character: refused as a source, a node and a job, if not checked
    it would make a node that the scheduler does not have."""
    monkeypatch.setattr(authority, "CATCH_UP_S", 0.0)

    async def work() -> None:
        async with engine_served(tmp_path) as house, AsyncClient(house.server.url, ANY, timeout_s=120) as reporter:
            before = await records(house)
            lie = msgspec.structs.replace(bad_gpu("n1"), finding=finding(name, None))
            assert (await reporter.ingest("agent:n1", [lie])).stored == 0
            assert (
                await reporter.ingest("launcher:7", [e.LauncherLapsed(id="l", at=now(), job=JobKey("test", name))])
            ).stored == 0
            with pytest.raises((RefusedError, LinkError)):
                await reporter.ingest(f"agent:{name}", [lie])
            assert await records(house) == before
            removing.item(MAY, e.FindingSeen, {Kind.AGENT: ()})
            assert (await reporter.ingest("agent:n1", [lie])).stored == 1
            assert any(node.name == name for node in await house.controller.journal.nodes()) or await seen(house, name)

    run(work)


def ruled(rule: str, job: JobKey | None = None) -> e.FindingSeen:
    return e.FindingSeen(id=f"f-{rule}", at=now(), finding=msgspec.structs.replace(finding("n1", job), rule=rule))


def unruled(rule: str) -> e.FindingCleared:
    return e.FindingCleared(id=f"c-{rule}", at=now(), rule=rule, node="n1")


def escalated(cause: str) -> e.Escalated:
    return e.Escalated(id=f"e-{cause}", at=now(), job=MINE, attempt=0, diagnosis=Diagnosis(cause=cause, nodes=("n1",)))


SPOKEN = {
    "an order of people": ("agent", lambda: ruled("operator.replace")),
    "an order that there is not, on which the engine breaks": ("agent", lambda: ruled("operator.nonsense")),
    "a loss": ("agent", lambda: ruled("node.lost")),
    "a loss of a whole domain": ("agent", lambda: ruled("node.lost.domain")),
    "a failed check of the scheduler": ("agent", lambda: ruled("node.failed_check")),
    "the end of an order of people": ("agent", lambda: unruled("operator.replace")),
    "the end of a loss": ("agent", lambda: unruled("node.lost")),
    "the end of a failed check": ("agent", lambda: unruled("node.failed_check")),
    "an order of people about its job": ("launcher", lambda: ruled("operator.requeue", MINE)),
    "a loss of a node of its job": ("launcher", lambda: ruled("node.lost", MINE)),
    "a diagnosis as people give it": ("launcher", lambda: escalated("operator.give_up")),
    "a diagnosis of a lost domain": ("launcher", lambda: escalated("node.lost.domain")),
}


@pytest.mark.attempt(
    actor="An agent that was taken over",
    asset="what people and the scheduler say",
    removed="api.authority.NOT_REPORTERS",
)
@pytest.mark.parametrize("what", SPOKEN)
def test_nobody_speaks_as_people_or_as_the_scheduler(tmp_path: Path, removing: Removing, what: str) -> None:
    """Report a finding, or its end, under a rule that people's orders or the scheduler's words have."""
    who, made = SPOKEN[what]
    token, source = PRINCIPALS[who]

    async def work() -> None:
        async with (
            engine_served(tmp_path, reviewer=Bound()) as house,
            AsyncClient(house.server.url, token, timeout_s=120) as reporter,
        ):
            await house.run_job()
            answer = await reporter.ingest(source, [made()])
            assert answer.stored == 0
            assert "which people or the scheduler say" in answer.refused[0]
            removing(authority, "NOT_REPORTERS", ())
            answer = await reporter.ingest(source, [made()])
            assert answer.stored == 1 or house.controller.figures.refused == 1, answer.refused

    run(work)


async def seen(house: EngineHouse, name: str) -> bool:
    return any(name in one.finding.place.node for one in await house.controller.journal.events(kind="finding_seen"))


def test_foreign_events_in_a_batch_are_refused_and_its_own_are_kept(tmp_path: Path) -> None:
    """A batch of own and foreign events in turn: each is judged by itself, and the order of the own ones stays."""

    async def work() -> None:
        async with (
            engine_served(tmp_path, reviewer=Bound()) as house,
            AsyncClient(house.server.url, "of-n1", timeout_s=120) as reporter,
        ):
            await training(house)
            batch = [bad_gpu(node, number) for number in range(5) for node in ("n1", "n3", "x1")]
            answer = await reporter.ingest("agent:n1", batch)
            assert (answer.stored, len(answer.refused)) == (5, 10)
            found = await house.controller.journal.events(kind="finding_seen")
            assert [one.finding.place.node for one in found] == ["n1"] * 5
            assert [one.id for one in found] == [f"agent:n1/seen-xid-n1-{number}" for number in range(5)]

    run(work)


def _checkpoint(**more: object) -> Callable[[], e.AnyEvent]:
    plain = {"id": "c", "at": now(), "job": MINE, "attempt": 0, "step": 100, "durable": True}
    return lambda: e.CheckpointSaved(**{**plain, **more})  # type: ignore[arg-type]


ABSURD = {
    "step 2^63": _checkpoint(step=2**63),
    "step 2^64-1": _checkpoint(step=2**64 - 1),
    "step -1": _checkpoint(step=-1),
    "attempt -1": _checkpoint(attempt=-1),
    "attempt 2^31": _checkpoint(attempt=2**31),
    "a save of 1e300 s": _checkpoint(took_s=1e300),
    "a path of a megabyte": _checkpoint(path="/x" * 500_000),
    "a time of 1e18": _checkpoint(at=1e18),
    "a time in two hours": _checkpoint(at=now() + 7200),
    "a time before 1970": _checkpoint(at=-1.0),
    "generation 0": _checkpoint(job=JobKey("test", "7", 0)),
    "generation 2^53": _checkpoint(job=JobKey("test", "7", 2**53)),
}


@pytest.mark.attempt(
    actor="An agent that was taken over",
    asset="numbers, texts",
    removed="api.authority.check_bounds, api.authority.Reporter._check_time, api.authority.MAY",
)
@pytest.mark.parametrize("name", ABSURD)
def test_an_absurd_field_is_refused_and_poisons_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removing: Removing, name: str
) -> None:
    """The job's own launcher says it: with bounds the job's record stays as it is, without them it is stored."""
    monkeypatch.setattr(authority, "CATCH_UP_S", 0.0)

    async def work() -> None:
        async with engine_served(tmp_path) as house, AsyncClient(house.server.url, ANY, timeout_s=120) as launcher:
            await house.run_job()
            before = await records(house)
            try:
                assert (await launcher.ingest("launcher:7", [ABSURD[name]()])).stored == 0
            except LinkError:
                assert name == "a time in two hours"  # its clock is not known: it is told to beat first
            assert await records(house) == before
            removing(authority, "check_bounds", lambda _value: None)
            removing(authority.Reporter, "_check_time", lambda _self, _event: None)
            removing.item(MAY, e.CheckpointSaved, {Kind.LAUNCHER: ()})
            old = name == "a time before 1970"  # what is older than the journal's memory is dropped all the same
            assert (await launcher.ingest("launcher:7", [ABSURD[name]()])).stored == (0 if old else 1)

    run(work)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "[" * 5000, '"1"', "null"])
def test_a_number_that_json_does_not_have_is_refused(tmp_path: Path, text: str) -> None:
    """NaN, infinity, endless brackets and other types in the place of a time are a bad request, and nothing is stored."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, AsyncClient(house.server.url, ANY, timeout_s=120) as agent:
            head = '{"version":1,"source":"agent:n1","events":[{"event":"agent_attached","id":"a","node":"n1","boot_id":"b"'
            body = f'{head},"at":{text}}}]}}'
            answer = await agent._http.post("/v1/ingest", content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 400 or answer.json()["refused"]
            assert await house.controller.journal.events(kind="agent_attached") == []

    run(work)
