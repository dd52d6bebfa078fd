"""Nobody reports what is not theirs: each attempt leaves the world as it is, and succeeds once its check is removed.

The controller is real, with the engine, the journal and the API over HTTP. Job 7 runs on n1, job 8 on n2 and n3; n4 to
n6 are idle. The attacker holds the token of node n1's agent, of job 7's or job 8's launcher, or one that is not bound.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.api.engine_house import EngineHouse, bad_gpu, engine_served, job_view, run, until
from tests.api.test_api import TOKENS

from holdfast.api import authority
from holdfast.api.auth import Role
from holdfast.api.authority import MAY, Kind, Reporter
from holdfast.client import AsyncClient
from holdfast.controller.claims import Claims
from holdfast.errors import LinkError, RefusedError, WireError
from holdfast.model import bounds
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Diagnosis, Domain, Evidence, EvidenceKind, Finding, Place
from holdfast.model.evidence import Role as FindingRole
from holdfast.model.wire import Beat, SamplePoint, decode_event, encode

THEIRS = JobKey("test", "8")
BOUND = {"of-n1": "agent:n1", "of-7": "launcher:7", "of-8": "launcher:8"}
ANY = TOKENS[Role.AGENT]


class Bound:
    """Stands for tokens that are bound to one source."""

    async def source_of(self, token: str) -> str:
        return BOUND.get(token, "")


def now() -> float:
    return time.time()


def about(
    job: JobKey, *, node: str = "n1", at: float | None = None, kind: EvidenceKind = EvidenceKind.EXIT
) -> e.FindingSeen:
    seen = Finding(
        id="lie", rule="exit.signal.11", at=now() if at is None else at, domain=Domain.APPLICATION, role=FindingRole.ROOT,
        place=Place(node=node, rank=0), job=job, attempt=0, evidence=(Evidence(kind, "signal 11"),),
    )  # fmt: skip
    return e.FindingSeen(id="lie", at=now(), finding=seen)


def saved(step: int = 5000, *, attempt: int = 0, at: float | None = None) -> e.CheckpointSaved:
    at = now() if at is None else at
    return e.CheckpointSaved(id="lie", at=at, job=THEIRS, attempt=attempt, step=step, durable=True)


class Attempt(msgspec.Struct, kw_only=True):
    """One attack.

    Args:
        token: who attacks.
        source: what the request says it is.
        events: what is said, made anew at each use.
        opens: what removes the check, and nothing else.
        before: what is brought about first.
        in_records: it would show in the records of nodes, jobs, incidents or orders; else in the journal alone.
    """

    token: str = "of-n1"
    source: str = "agent:n1"
    events: Callable[[], list[e.AnyEvent]]
    opens: Callable[[pytest.MonkeyPatch], None]
    before: Callable[[EngineHouse], Any] | None = None
    in_records: bool = True


def unchecked(event: type, kind: Kind) -> Callable[[pytest.MonkeyPatch], None]:
    """The table lets this kind of reporter send this kind of event, whatever is in it."""
    return lambda patch: patch.setitem(MAY, event, {**MAY[event], kind: ()})


def unbounded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(authority, "check_bounds", lambda _value: None)
    patch.setattr(Reporter, "_check_time", lambda _self, _event: None)


def unconfirmed(patch: pytest.MonkeyPatch) -> None:
    async def believed(_self: Claims, claim: e.NodeGone) -> e.NodeGone:
        return claim

    patch.setattr(Claims, "confirmed", believed)
    patch.setitem(MAY, e.NodeGone, {**MAY[e.NodeGone], Kind.AGENT: ()})


def anybody(patch: pytest.MonkeyPatch) -> None:
    async def known(_self: Reporter) -> None:
        return

    patch.setattr(Reporter, "check_itself", known)


async def down(house: EngineHouse) -> None:
    """A check of n3's own agent has found a fault that its clearing ends."""
    seen = Finding(
        id="down", rule="check.disk_full", at=now(), domain=Domain.STORAGE, role=FindingRole.ROOT, place=Place(node="n3"),
        evidence=(Evidence(EvidenceKind.CHECK, "full"),),
    )  # fmt: skip
    await house.controller.submit(e.FindingSeen(id="down", at=now(), source="agent:n3", finding=seen))


async def evacuate(house: EngineHouse) -> None:
    """Job 8's launcher has an order that nobody has carried out yet."""
    wish = e.OperatorCommand(id="wish", at=now(), command=e.Command.EVACUATE, who="mei", why="x", job=THEIRS)
    await house.controller.submit(wish)
    records = await house.controller.journal.orders(pending_only=True)
    [OPEN_ORDER[""]] = [one.order.id for one in records if isinstance(one.order, o.SaveAndStop)]


OPEN_ORDER: dict[str, str] = {}


def invented() -> list[e.AnyEvent]:
    return [bad_gpu(f"x{number}") for number in range(1000)]


ATTEMPTS = {
    "an Xid of another node": Attempt(events=lambda: [bad_gpu("n3")], opens=unchecked(e.FindingSeen, Kind.AGENT)),
    "two forged faults": Attempt(
        events=lambda: [bad_gpu("n4"), bad_gpu("n5")], opens=unchecked(e.FindingSeen, Kind.AGENT)
    ),
    "another node is gone": Attempt(
        events=lambda: [e.NodeGone(id="lie", at=now(), node="n2", evidence="connection reset")], opens=unconfirmed
    ),
    "a follower is gone": Attempt(
        token="of-8",
        source="launcher:8",
        events=lambda: [e.NodeGone(id="lie", at=now(), node="n3", evidence="connection reset")],
        opens=unconfirmed,
    ),
    "another node's finding is cleared": Attempt(
        events=lambda: [e.FindingCleared(id="lie", at=now(), rule="check.disk_full", node="n3")],
        opens=unchecked(e.FindingCleared, Kind.AGENT),
        before=down,
        in_records=False,
    ),
    "a launcher clears an agent's finding": Attempt(
        token="of-8",
        source="launcher:8",
        events=lambda: [e.FindingCleared(id="lie", at=now(), rule="check.disk_full", node="n3")],
        opens=unchecked(e.FindingCleared, Kind.LAUNCHER),
        before=down,
        in_records=False,
    ),
    "another job's attempt has ended": Attempt(
        events=lambda: [e.AttemptEnded(id="lie", at=now(), job=THEIRS, attempt=0, signal=11)],
        opens=unchecked(e.AttemptEnded, Kind.AGENT),
    ),
    "its own job's attempt has ended": Attempt(
        events=lambda: [e.AttemptEnded(id="lie", at=now(), job=JobKey("test", "7"), attempt=0, signal=11)],
        opens=unchecked(e.AttemptEnded, Kind.AGENT),
        before=EngineHouse.run_job,
    ),
    "another job's checkpoint": Attempt(
        events=lambda: [saved()], opens=unchecked(e.CheckpointSaved, Kind.AGENT)
    ),
    "another job's step": Attempt(
        events=lambda: [e.StepReached(id="lie", at=now(), job=THEIRS, attempt=0, step=9000)],
        opens=unchecked(e.StepReached, Kind.AGENT),
    ),
    "another job's fault, on its own node": Attempt(
        events=lambda: [about(THEIRS)], opens=unchecked(e.FindingSeen, Kind.AGENT)
    ),
    "another job's fault, by a launcher": Attempt(
        token="of-7", source="launcher:7", events=lambda: [about(THEIRS)], opens=unchecked(e.FindingSeen, Kind.LAUNCHER)
    ),
    "another node is validated": Attempt(
        events=lambda: [e.NodeValidated(id="lie", at=now(), node="n5", passed=False)],
        opens=unchecked(e.NodeValidated, Kind.AGENT),
        in_records=False,
    ),
    "another's order is done": Attempt(
        events=lambda: [e.OrderDone(id="lie", at=now(), order=OPEN_ORDER[""])],
        opens=unchecked(e.OrderDone, Kind.AGENT),
        before=evacuate,
    ),
    "1,000 invented nodes": Attempt(events=invented, opens=unchecked(e.FindingSeen, Kind.AGENT)),
    "an invented node speaks of itself": Attempt(
        token=ANY, source="agent:x1", events=lambda: [bad_gpu("x1")], opens=anybody
    ),
    "invented nodes to leave out": Attempt(
        token="of-8",
        source="launcher:8",
        events=lambda: [e.Escalated(id="lie", at=now(), job=THEIRS, attempt=0, exclude_nodes=("n4", "x1"), why="x")],
        opens=unchecked(e.Escalated, Kind.LAUNCHER),
    ),
    "a node without a name to leave out": Attempt(
        token="of-8",
        source="launcher:8",
        events=lambda: [e.Escalated(id="lie", at=now(), job=THEIRS, attempt=0, exclude_nodes=("",), why="x")],
        opens=unchecked(e.Escalated, Kind.LAUNCHER),
    ),
    "a step of 2^64-1": Attempt(
        token="of-8", source="launcher:8", events=lambda: [saved(2**64 - 1)], opens=unbounded
    ),
    "a time of 1e18": Attempt(token="of-8", source="launcher:8", events=lambda: [saved(at=1e18)], opens=unbounded),
    "a time in two hours": Attempt(
        token="of-8", source="launcher:8", events=lambda: [saved(at=now() + 7200)], opens=unbounded
    ),
    "a negative attempt": Attempt(
        token="of-8", source="launcher:8", events=lambda: [saved(attempt=-1)], opens=unbounded, in_records=False
    ),
    "a drill without an operator": Attempt(
        token=ANY,
        source="agent:n1",
        events=lambda: [e.DrillFired(id="lie", at=now(), drill="d", kind="kill9", node="n3")],
        opens=lambda patch: patch.setitem(MAY, e.DrillFired, {Kind.AGENT: ()}),
        in_records=False,
    ),
}  # fmt: skip


async def records(house: EngineHouse) -> bytes:
    """Everything that stands of nodes, jobs, incidents and orders, here and in the scheduler."""
    journal = house.controller.journal
    orders = [one for one in await journal.orders() if not isinstance(one.order, o.Notify)]
    told = [await journal.jobs(), await journal.nodes(), await journal.incidents(), orders]
    world = [list(house.world.jobs.values()), list(house.world.nodes.values()), house.controller.shell().agents]
    return msgspec.json.encode([told, world])


async def said(house: EngineHouse, attempt: Attempt) -> int:
    """Send what the attempt says; how much of it was stored."""
    async with AsyncClient(house.server.url, attempt.token, timeout_s=120) as liar:
        try:
            kind, _, name = attempt.source.partition(":")
            place = {"node": name} if kind == "agent" else {"cluster": "test", "job": name}
            await liar.beat(Beat(source=attempt.source, at=now(), **place))
            answer = await liar.ingest(attempt.source, attempt.events())
        except RefusedError:
            return 0
    assert answer.stored or answer.refused or any(isinstance(one, e.NodeGone) for one in attempt.events())
    return answer.stored


async def training(house: EngineHouse) -> None:
    """Job 8 trains on n2 and n3."""
    for node in ("n2", "n3"):
        house.world.set_node(msgspec.structs.replace(house.world.nodes[node], jobs=("8",)))
    house.world.set_job(job_view(THEIRS, ("n2", "n3"), user="ann"))
    await until(lambda: any(view.key == THEIRS and view.nodes for view in house.controller.shell().jobs.values()))
    await until(lambda: house.controller.shell().nodes["n3"].jobs)
    head = {"source": "launcher:8", "job": THEIRS}
    for event in (
        e.LauncherAttached(id="8a", at=now(), restart_count=0, nodes=("n2", "n3"), lease_s=600.0, **head),
        e.AttemptStarted(id="8s", at=now(), attempt=0, epoch=1, nodes=("n2", "n3"), ranks=2, **head),
        e.FirstStepDone(id="8f", at=now(), attempt=0, step=1, **head),
        e.CheckpointSaved(id="8c", at=now(), attempt=0, step=10, durable=True, **head),
    ):
        await house.controller.submit(event)


@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_changes_nothing_and_would_without_its_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With the check the world stands as before; with that one check removed the very same words change it."""
    attempt = ATTEMPTS[name]
    monkeypatch.setattr(authority, "CATCH_UP_S", 0.1)

    async def work() -> None:
        async with engine_served(tmp_path, reviewer=Bound()) as house:
            await training(house)
            if attempt.before is not None:
                await attempt.before(house)
            before = await records(house)
            refused = house.controller.figures.not_theirs.total()
            assert await said(house, attempt) == 0
            assert await records(house) == before
            is_claim = any(isinstance(one, e.NodeGone) for one in attempt.events())
            assert is_claim or house.controller.figures.not_theirs.total() > refused
            with monkeypatch.context() as patch:
                attempt.opens(patch)
                assert await said(house, attempt) > 0
            assert (await records(house) != before) or not attempt.in_records

    run(work)


def test_beats_speak_of_their_own_node_and_job_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign node or job is refused, also with a token that is not bound; foreign and absurd samples are left out."""
    monkeypatch.setattr(authority, "CATCH_UP_S", 0.1)
    foreign = (
        ("of-n1", Beat(source="agent:n1", node="n2")),
        (ANY, Beat(source="agent:n1", node="n2")),
        (ANY, Beat(source="agent:n1", node="n1", cluster="test", job="8")),
        (ANY, Beat(source="agent:x1", node="x1")),
        (ANY, Beat(source="launcher:7", node="n2", cluster="test", job="7")),
        (ANY, Beat(source="launcher:7", node="n1", cluster="test", job="8")),
        (ANY, Beat(source="launcher:7", node="n1", cluster="test", job="7", generation=9)),
        (ANY, Beat(source="drill:7", node="n1")),
    )
    subjects = {"job:7(0)/rank:0": 1.0, "node:n1": 2.0, "job:8(0)/rank:0": 3.0, "node:n2": 4.0, "job:7(1)": 1e300}

    async def work() -> None:
        async with engine_served(tmp_path, reviewer=Bound()) as house:
            await training(house)
            for token, beat in foreign:
                async with AsyncClient(house.server.url, token, timeout_s=120) as liar:
                    heard = house.controller.presence.beats
                    with pytest.raises(RefusedError):
                        await liar.beat(beat)
                    assert house.controller.presence.beats == heard, beat
            async with AsyncClient(house.server.url, ANY, timeout_s=120) as mine:
                points = [SamplePoint("step", subject, now(), value) for subject, value in subjects.items()]
                await mine.beat(Beat(source="agent:n1", node="n1", at=now(), samples=points))
            kept = {sample.subject for sample in house.controller.presence.samples}
            for subject in subjects:
                kept |= {one.subject for one in await house.controller.journal.samples("step", subject)}
            assert kept == {"job:7(0)/rank:0", "node:n1"}

    run(work)


def test_a_drill_reports_with_an_operators_token(tmp_path: Path) -> None:
    """Its time of a fault is taken from an operator alone, and of nodes and jobs that there are."""

    def fired(node: str = "", job: JobKey | None = None) -> list[e.AnyEvent]:
        return [e.DrillFired(id=f"f{node}{job}", at=now(), drill="d", kind="kill9", node=node, job=job)]

    async def work() -> None:
        async with engine_served(tmp_path) as house:
            async with AsyncClient(house.server.url, ANY, timeout_s=120) as agent:
                with pytest.raises(RefusedError, match="operator's token"):
                    await agent.ingest("drill:d", fired("n1"))
            async with AsyncClient(house.server.url, TOKENS[Role.OPERATOR], timeout_s=120) as operator:
                assert (await operator.ingest("drill:d", fired("n1", JobKey("test", "7")))).stored == 1
                assert "no node 'x1'" in (await operator.ingest("drill:d", fired("x1"))).refused[0]
                assert "no job 99" in (await operator.ingest("drill:d", fired(job=JobKey("test", "99")))).refused[0]
                assert "may not send" in (await operator.ingest("drill:d", [bad_gpu("n1")])).refused[0]

    run(work)


def test_a_scheduler_that_cannot_be_read_loses_nothing(tmp_path: Path) -> None:
    """Whether an unknown node is one is not known then: it is told to come back, and is heard once it is seen."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, AsyncClient(house.server.url, ANY, timeout_s=120) as agent:
            for why, complete in (("slurmctld is away", True), ("", False)):
                house.world.unreadable, house.world.complete = why, complete
                with pytest.raises(LinkError):
                    await agent.ingest("agent:n7", [bad_gpu("n7")])
            house.world.unreadable, house.world.complete = "", True
            with pytest.raises(RefusedError, match="the scheduler has no node 'n7'"):
                await agent.ingest("agent:n7", [bad_gpu("n7")])
            house.world.set_node(msgspec.structs.replace(house.world.nodes["n6"], name="n7"))
            assert (await agent.ingest("agent:n7", [bad_gpu("n7")])).stored == 1

    run(work)


def test_last_words_of_a_job_are_heard_after_it_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent of the node that a job was on until lately may still say why it ended, and that of another may not."""
    monkeypatch.setattr(authority, "CATCH_UP_S", 0.1)

    async def work() -> None:
        async with engine_served(tmp_path, reviewer=Bound()) as house:
            await training(house)
            house.world.set_job(job_view(THEIRS, ("n4",), user="ann"))
            await until(lambda: house.controller.shell().jobs["test/8#1"].nodes == ("n4",))
            async with AsyncClient(house.server.url, ANY, timeout_s=120) as agent:
                assert (await agent.ingest("agent:n3", [about(THEIRS, node="n3")])).stored == 1
                assert (await agent.ingest("agent:n5", [about(THEIRS, node="n5")])).stored == 0
            house.world.remove(THEIRS)
            await until(lambda: "test/8#1" not in house.controller.shell().jobs)
            assert house.controller.shell().nodes_of(THEIRS) == {"n2", "n3", "n4"}

    run(work)


@pytest.mark.parametrize(("checked", "off_s", "stored"), [(True, 0.0, 0), (True, 3000.0, 0), (False, 0.0, 3)])
def test_an_agent_speaks_of_the_time_in_which_a_job_was_on_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool, off_s: float, stored: int
) -> None:
    """What it read a moment after the job left is heard, and what was before; nothing of the hour after that.

    A node's clock that is far ahead gives it no more time.
    """
    monkeypatch.setattr(authority, "CATCH_UP_S", 0.1)

    async def work() -> None:
        async with engine_served(tmp_path) as house:
            await training(house)
            before = now()
            house.world.set_job(job_view(THEIRS, ("n4",), user="ann"))
            await until(lambda: house.controller.shell().jobs["test/8#1"].nodes == ("n4",))
            async with AsyncClient(house.server.url, ANY, timeout_s=120) as agent:
                heard = [about(THEIRS, node="n3", kind=EvidenceKind.LOG), saved(at=before)]
                heard = [msgspec.structs.replace(event, id=f"true{n}") for n, event in enumerate(heard)]
                assert (await agent.ingest("agent:n3", heard)).stored == 2
                monkeypatch.setattr(authority, "LAST_WORDS_S", 0.0 if checked else 3600.0)
                step = e.StepReached(id="lie2", at=now(), job=THEIRS, attempt=0, step=9000)
                line = about(THEIRS, node="n3", kind=EvidenceKind.LOG)
                lies = [
                    msgspec.structs.replace(one, id=f"lie{n}", at=one.at + off_s)
                    for n, one in enumerate((saved(), line, step))
                ]
                if off_s:
                    await agent.beat(Beat(source="agent:n3", node="n3", at=now() + off_s))
                    lies.pop(1)  # its finding's time is another matter
                assert (await agent.ingest("agent:n3", lies)).stored == stored

    run(work)


@pytest.mark.parametrize(
    ("reporter", "job", "host", "heard_of"),
    [
        ("agent:n1", JobKey("test", "7"), "n1.cluster", "n1"),
        ("agent:n1", JobKey("test", "7"), "n3", ""),
        ("agent:n1", JobKey("test", "7"), "10.0.0.3", ""),
        ("agent:n2", THEIRS, "n3", "n3"),
        ("launcher:8", THEIRS, "n3.cluster", "n3"),
        ("launcher:8", THEIRS, "n1", ""),
        ("agent:n1", None, "n3", "n1"),
    ],
)
def test_a_host_that_a_line_names_is_no_word_about_that_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reporter: str, job: JobKey | None, host: str, heard_of: str
) -> None:
    """The finding is heard; its place is a node of the reporter's job by the scheduler's name, or not known."""
    monkeypatch.setattr(authority, "CATCH_UP_S", 0.1)

    async def work() -> None:
        async with engine_served(tmp_path) as house, AsyncClient(house.server.url, ANY, timeout_s=120) as mine:
            await training(house)
            line = about(THEIRS, node=host, kind=EvidenceKind.LOG)
            line = msgspec.structs.replace(line, finding=msgspec.structs.replace(line.finding, job=job))
            assert (await mine.ingest(reporter, [line])).stored == 1
            [heard] = await house.controller.journal.events(kind="finding_seen")
            assert heard.finding.place.node == heard_of
            assert (heard.finding.role is FindingRole.CONTEXT) is (job is None)

    run(work)


class Knocks:
    """Stands for the port of slurmd on each node: quiet about a node until it is listed."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.asked = 0

    async def why_gone(self, node: str, *, claimed: bool = False) -> str:
        self.asked += 1
        return "its slurmd does not run either" if claimed and node in self.dead else ""


@pytest.mark.parametrize("when", ["by a look", "at once", "later", "never"])
def test_a_launchers_word_of_a_lost_node_waits_for_the_schedulers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Confirmed at once by a fresh look or by the witness, or later by the witness; refuted by the node's own agent."""
    monkeypatch.setattr("holdfast.controller.claims.AGAIN_FIRST_S", 0.2)
    monkeypatch.setattr("holdfast.controller.claims.ANSWER_S", 60.0)  # a loaded machine answers late
    knocks = Knocks()

    async def work() -> None:
        async with engine_served(tmp_path) as house, AsyncClient(house.server.url, ANY, timeout_s=120) as mine:
            await training(house)
            claims = house.controller.claims
            claims.witness = knocks
            if when == "by a look":  # nobody tells of it: only a look of the claim's own, or the next of the watch's
                off = msgspec.structs.replace(house.world.nodes["n3"], alive=False, state_text="powered off")
                house.world.nodes["n3"] = off
            elif when == "at once":
                knocks.dead.add("n3")
            claim = e.NodeGone(id="gone", at=now(), node="n3", evidence="connection reset")
            answer = await mine.ingest("launcher:8", [claim])
            is_quick = when in {"by a look", "at once"}
            assert (answer.stored, answer.refused, list(claims.open)) == (int(is_quick), [], [] if is_quick else ["n3"])
            if when == "never":
                await mine.beat(Beat(source="agent:n3", node="n3"))
            elif when == "later":
                asked = knocks.asked
                await until(lambda: knocks.asked > asked)
                assert await house.controller.journal.events(kind="node_gone") == []
                knocks.dead.add("n3")
            await until(lambda: not claims.open)
            stored = [one.evidence for one in await house.controller.journal.events(kind="node_gone")]
            why = "the scheduler says so too (powered off)" if when == "by a look" else "its slurmd does not run either"
            assert stored == ([] if when == "never" else [f"connection reset; {why}"])

    run(work)


class Together(Knocks):
    """Gives no answer about one node before it is asked about all of them."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.met = asyncio.Barrier(nodes)

    async def why_gone(self, node: str, *, claimed: bool = False) -> str:
        await self.met.wait()
        return f"nobody answers at {node}" if claimed else ""


def test_claims_of_one_batch_are_asked_about_in_parallel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rack that is lost as a whole does not keep the batch back by one answer's time for each of its nodes."""
    monkeypatch.setattr("holdfast.controller.claims.ANSWER_S", 8.0)

    async def work() -> None:
        async with engine_served(tmp_path) as house, AsyncClient(house.server.url, ANY, timeout_s=120) as mine:
            await training(house)
            house.controller.claims.witness = Together(2)
            view = house.world.jobs[THEIRS]
            claims = [
                e.NodeGone(id=f"gone-{node}", at=now(), node=node, evidence="connection reset") for node in view.nodes
            ]
            assert len(claims) == 2
            assert (await mine.ingest("launcher:8", claims)).stored == 2

    run(work)


def test_stored_events_load_whatever_their_numbers() -> None:
    """Bounds are of what comes in: a journal of before that holds an absurd step opens as it did."""
    stored = saved(2**64 - 1, attempt=-1, at=1e18)
    assert decode_event(encode(stored)) == stored


@pytest.mark.parametrize("event", [*MAY, Beat])
def test_every_field_that_comes_in_has_a_bound(event: type) -> None:
    """An absurd number, text or list is refused in each field of each event, at any depth."""
    seen = 0
    for name, kind in fields_of(msgspec.inspect.type_info(event), "", set()):
        for absurd in ABSURD[kind]:
            with pytest.raises(WireError):
                bounds.check_field(absurd, name)
            seen += 1
    assert seen > 3


ABSURD: dict[type, tuple[Any, ...]] = {
    int: (-(2**40), 2**64 - 1, 10**30),
    float: (-1e300, 1e300, float("nan")),
    str: ("x" * 10**6,),
}


def fields_of(found: msgspec.inspect.Type, name: str, above: set[type]) -> Iterator[tuple[str, type]]:
    """Name and type of every number and text that a value of this type may hold."""
    match found:
        case msgspec.inspect.IntType():
            yield name, int
        case msgspec.inspect.FloatType() if name != "value":
            yield name, float
        case msgspec.inspect.StrType():
            yield name, str
        case msgspec.inspect.UnionType():
            for one in found.types:
                yield from fields_of(one, name, above)
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            yield from fields_of(found.item_type, name, above)
        case msgspec.inspect.DictType():
            yield from fields_of(found.value_type, name, above)
        case msgspec.inspect.StructType() if found.cls not in above:
            for field in found.fields:
                yield from fields_of(field.type, field.name, above | {found.cls})


async def foretold(house: EngineHouse) -> list[str]:
    """Ids that the controller's own next events will have: of its watch, of its timers, of its next start."""
    epoch = house.controller.epoch
    stored = await house.controller.journal.events(limit=1000)
    seen = max(int(one.id.rpartition(".")[2]) for one in stored if one.id.startswith("watch:"))
    watch = [f"watch:{epoch}.{number}" for number in range(seen + 1, seen + 400)]
    return [*watch, *(one.event_id for one in house.controller.shell().timers.values()), f"started:{epoch + 1}"]


def test_an_id_that_is_said_first_keeps_nobody_elses_event_back(tmp_path: Path) -> None:
    """An agent says events and findings with the ids that the watch and another agent will use: both are heard."""

    async def work() -> None:
        async with engine_served(tmp_path, reviewer=Bound()) as house:
            await training(house)
            steps = [saved(), e.StepReached(id="", at=now(), job=JobKey("test", "7"), attempt=0, step=3)]
            lies = [msgspec.structs.replace(steps[1], id=one) for one in await foretold(house)]
            theirs = bad_gpu("n3")
            mine = msgspec.structs.replace(theirs.finding, place=Place(node="n1"), role=FindingRole.CONTEXT)
            lies.append(e.FindingSeen(id=theirs.id, at=now(), finding=mine))
            async with AsyncClient(house.server.url, "of-n1", timeout_s=120) as liar:
                await liar.beat(Beat(source="agent:n1", node="n1", at=now()))
                assert (await liar.ingest("agent:n1", lies)).stored == len(lies)
                assert (await liar.ingest("agent:n1", lies)).stored == len(lies), "sent again, they are known"
            heard = await house.controller.journal.events(kind="finding_seen")
            assert len(heard) == 1
            async with AsyncClient(house.server.url, ANY, timeout_s=120) as honest:
                await honest.beat(Beat(source="agent:n3", node="n3", at=now()))
                await honest.ingest("agent:n3", [theirs])
            assert [one.name for one in await house.controller.journal.nodes() if one.incident] == ["n3"]
            off = msgspec.structs.replace(house.world.nodes["n6"], state_text="seen")
            house.world.set_node(off)
            await until(lambda: house.controller.shell().nodes["n6"].state_text == "seen", 20.0)

    run(work)


@pytest.mark.parametrize("how", ["left out by its user", "left long ago"])
def test_a_launcher_says_nothing_of_a_node_that_its_job_has_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A user chooses what a job leaves out, and what it left may be another's: no word about such a node is taken."""
    monkeypatch.setattr(authority, "CATCH_UP_S", 0.1)

    async def work() -> None:
        async with engine_served(tmp_path, reviewer=Bound()) as house:
            await training(house)
            [view] = [job for job in house.world.jobs.values() if job.key == THEIRS]
            house.world.set_job(msgspec.structs.replace(view, nodes=("n2",), excluded=("n4",)))
            await until(lambda: any(job.excluded for job in house.controller.shell().jobs.values()))
            node = "n4"
            if how == "left long ago":
                node = "n3"
                monkeypatch.setattr(authority, "LEFT_KEPT_S", -1.0)
            seen = msgspec.structs.replace(bad_gpu(node).finding, job=THEIRS, attempt=0)
            diagnosis = Diagnosis(cause="nvidia.xid.79", domain=Domain.HARDWARE, nodes=(node,))
            lies: list[e.AnyEvent] = [
                e.FindingSeen(id="lie", at=now(), finding=seen),
                e.Escalated(id="lie2", at=now(), job=THEIRS, attempt=0, diagnosis=diagnosis, why="x"),
            ]
            async with AsyncClient(house.server.url, "of-8", timeout_s=120) as liar:
                await liar.beat(Beat(source="launcher:8", cluster="test", job="8", at=now()))
                answer = await liar.ingest("launcher:8", lies)
                assert (answer.stored, len(answer.refused)) == (0, 2)
                again = e.Escalated(id="true", at=now(), job=THEIRS, attempt=0, exclude_nodes=("n4",), why="x")
                assert (await liar.ingest("launcher:8", [again])).stored == 1
            assert not [one.name for one in await house.controller.journal.nodes() if one.incident]

    run(work)


@pytest.mark.parametrize(("when", "heard_of"), [("after", ""), ("before", "n3")])
def test_a_launcher_tells_of_a_node_that_it_has_left_what_was_before(tmp_path: Path, when: str, heard_of: str) -> None:
    """The machine there may be another one by now: its word about later is heard as one about its job alone."""

    async def work() -> None:
        async with engine_served(tmp_path, reviewer=Bound()) as house:
            await training(house)
            before = now()
            house.world.set_job(job_view(THEIRS, ("n2",), user="ann"))
            await until(lambda: house.controller.shell().jobs["test/8#1"].nodes == ("n2",))
            at = now() if when == "after" else before
            seen = msgspec.structs.replace(bad_gpu("n3").finding, job=THEIRS, attempt=0, at=at)
            diagnosis = Diagnosis(cause="nvidia.xid.79", domain=Domain.HARDWARE, nodes=("n3", "n2"), gpus=("n3/0",))
            said: list[e.AnyEvent] = [
                e.FindingSeen(id="f", at=at, finding=seen),
                e.Escalated(id="x", at=at, job=THEIRS, attempt=0, diagnosis=diagnosis, why="x"),
            ]
            async with AsyncClient(house.server.url, "of-8", timeout_s=120) as launcher:
                await launcher.beat(Beat(source="launcher:8", cluster="test", job="8", at=now()))
                assert (await launcher.ingest("launcher:8", said)).stored == 2
            [heard] = await house.controller.journal.events(kind="finding_seen")
            [handed] = await house.controller.journal.events(kind="escalated")
            assert heard.finding.place.node == heard_of
            assert handed.diagnosis.nodes == (("n3", "n2") if heard_of else ("n2",))
            blamed = [one for one in await house.controller.journal.nodes(node="n3") if one.incident]
            assert bool(blamed) == bool(heard_of)

    run(work)


def test_a_launcher_says_nothing_of_a_node_that_another_job_has_now(tmp_path: Path) -> None:
    """What ended its own job is heard, without the node: that one is not taken from the job that runs there."""

    async def work() -> None:
        async with engine_served(tmp_path, reviewer=Bound()) as house:
            await training(house)
            house.world.set_job(job_view(THEIRS, ("n2",), user="ann"))
            await until(lambda: house.controller.shell().jobs["test/8#1"].nodes == ("n2",))
            house.world.set_job(job_view(JobKey("test", "9"), ("n3",)))
            await until(lambda: "test/9#1" in house.controller.shell().jobs)
            seen = msgspec.structs.replace(bad_gpu("n3").finding, job=THEIRS, attempt=0)
            diagnosis = Diagnosis(cause="nvidia.xid.79", domain=Domain.HARDWARE, nodes=("n3", "n2"), gpus=("n3/0",))
            lies: list[e.AnyEvent] = [
                e.FindingSeen(id="lie", at=now(), finding=seen),
                e.Escalated(id="lie2", at=now(), job=THEIRS, attempt=0, diagnosis=diagnosis, why="x"),
            ]
            async with AsyncClient(house.server.url, "of-8", timeout_s=120) as liar:
                await liar.beat(Beat(source="launcher:8", cluster="test", job="8", at=now()))
                assert (await liar.ingest("launcher:8", lies)).stored == 2
            [heard] = await house.controller.journal.events(kind="finding_seen")
            [handed] = await house.controller.journal.events(kind="escalated")
            assert heard.finding.place.node == ""
            assert (handed.diagnosis.nodes, handed.diagnosis.gpus) == (("n2",), ())
            assert not [one for one in await house.controller.journal.nodes(node="n3") if one.incident]
            assert not [one for one in await house.controller.journal.jobs(job="9") if one.incident]

    run(work)
