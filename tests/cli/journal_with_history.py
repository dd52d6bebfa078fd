"""A real SQLite journal with one job that recovered from a crash and one that waits, for tests of the command line.

The records are written as the engine writes them; `NOW` is the moment at which the tests look.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.adapters.journal import open_journal
from holdfast.model.cluster import JobKey, JobView, NodeView, SchedulerState
from holdfast.model.events import JobObserved
from holdfast.model.evidence import (
    Diagnosis,
    Domain,
    Evidence,
    EvidenceKind,
    Finding,
    JudgedFinding,
    Place,
    Remedy,
    Role,
)
from holdfast.model.orders import OrderStatus, ReplaceNode, RestartInPlace, StartTimer
from holdfast.model.records import (
    AttemptRecord,
    BrakeRecord,
    IncidentRecord,
    JobRecord,
    JobState,
    Mark,
    NodeRecord,
    NodeState,
    OrderRecord,
    Touched,
)
from holdfast.ports import Entry, Sample

NOW = 1_800_000_300.0
T = NOW - 300
KEY = JobKey("lab", "1778")
HOSTILE = "[red]x[/red] \x1b[2J\x1b[31m</script> :smile: \u202eevil"


def a_job() -> JobRecord:
    nodes = ("node01", "node02", "node03")
    return JobRecord(
        key=KEY,
        view=JobView(
            KEY, name="gpt", user="mei", partition="gpu", state=SchedulerState.RUNNING, nodes=nodes, submitted_at=T - 5
        ),
        state=JobState.PROVING,
        since=NOW - 90,
        attempts=[
            AttemptRecord(
                0, epoch=1, nodes=nodes, ranks=6, started_at=T, first_step_at=T + 4, first_step=1, last_step=130,
                durable_step=100, durable_at=T + 90, ended_at=T + 121, signal=11, stopped=False, incident="i-1",
            ),
            AttemptRecord(
                1, epoch=2, nodes=nodes, ranks=6, started_at=T + 122, first_step_at=T + 123, first_step=101,
                resumed_from=100, last_step=180, durable_step=150, durable_at=T + 200, log_dir="/jobs/1778/logs/attempt-1",
            ),
        ],
        epoch=2,
        incident="i-2",
        in_place=1,
        durable_step=150,
        best_step=180,
        story=["18:00:01Z The job was first seen.", f"18:02:01Z Rank 5 died: {HOSTILE}"],
    )  # fmt: skip


def an_incident() -> IncidentRecord:
    return IncidentRecord(
        id="i-1",
        opened_at=T + 120.1,
        jobs=[KEY],
        findings=[
            Finding(
                id="f-2", rule="nccl.remote_error", at=T + 120.3, role=Role.CASCADE, domain=Domain.NETWORK,
                place=Place(node="node02", rank=2), job=KEY, count=5,
                evidence=(Evidence(EvidenceKind.LOG, f"NCCL WARN {HOSTILE}", "rank-00002.log", 40),),
            ),
            Finding(
                id="f-1", rule="exit.signal.11", at=T + 120.0, role=Role.ROOT, domain=Domain.APPLICATION,
                place=Place(node="node03", rank=5), job=KEY, summary="segmentation fault",
                evidence=(Evidence(EvidenceKind.EXIT, "rank 5 ended by signal 11"),),
            ),
        ],
        diagnosis=Diagnosis(
            cause="exit.signal.11", domain=Domain.APPLICATION, summary="segmentation fault in rank 5", confidence=0.9,
            nodes=("node03",), ranks=(5,),
            judged=(JudgedFinding("f-1", "exit.signal.11", Role.ROOT, "seen first"),),
            story="Rank 5 on node03 died of signal 11; the errors of the others followed.",
        ),
        remedies=[Remedy.RESTART_IN_PLACE],
        marks={
            Mark.FAULT: T + 120.0, Mark.DETECTED: T + 120.1, Mark.DIAGNOSED: T + 120.3, Mark.STOPPED: T + 121,
            Mark.REQUEUED: T + 121.1, Mark.STARTED: T + 122, Mark.FIRST_STEP: T + 123, Mark.PROVEN: T + 200,
        },
        attempt_before=0,
        attempt_after=1,
        step_before=130,
        step_resumed=100,
        closed_at=T + 200,
        outcome="recovered",
        story=["18:02:00Z Rank 5 ended by signal 11.", "18:02:02Z Attempt 1778(1) was started."],
    )  # fmt: skip


def records() -> Touched:
    incident = IncidentRecord(
        id="i-2",
        opened_at=NOW - 60,
        jobs=[KEY],
        nodes=["node04"],
        nodes_open=["node04"],
        marks={Mark.DETECTED: NOW - 60},
    )
    bad = NodeRecord(
        "node04",
        NodeView("node04", group="gpu", alive=True, drained=True, drain_reason="[holdfast] Xid 74", gpus=8),
        state=NodeState.QUARANTINED,
        since=NOW - 59,
        incident="i-2",
        drained_by_us=True,
        findings=["nvidia.xid.74"],
        offences=[NOW - 59],
        instance_id="m-4",
        story=["18:04:00Z Xid 74 on GPU 3."],
    )
    good = [
        NodeRecord(f"node0{n}", NodeView(f"node0{n}", group="gpu", alive=True, jobs=("1778",)), since=T)
        for n in (1, 2, 3)
    ]
    spare = NodeRecord("node05", NodeView("node05", group="gpu", alive=True, spare=True), since=T)
    waiting = JobRecord(
        key=JobKey("lab", "1779"),
        view=JobView(JobKey("lab", "1779"), name=HOSTILE, submitted_at=NOW - 30),
        since=NOW - 30,
    )
    orders = [
        OrderRecord(
            RestartInPlace(id="o-1", cause=4, incident="i-1", remedy=Remedy.RESTART_IN_PLACE, job=KEY, attempt=1, epoch=2,
                           why="application crash, restart 1 of 3"),
            OrderStatus.DONE, T + 121.1, ended_at=T + 122, detail="6 ranks started",
        ),
        OrderRecord(
            ReplaceNode(id="o-2", cause=9, incident="i-2", remedy=Remedy.REPLACE, node="node04", why="NVLink error"),
            OrderStatus.PROPOSED, NOW - 50, expires_at=NOW + 850,
        ),
        OrderRecord(StartTimer(id="o-3", cause=9, timer="propose:o-2", after_s=900), OrderStatus.PENDING, NOW - 50),
    ]  # fmt: skip
    return Touched(
        jobs=[a_job(), waiting],
        nodes=[*good, bad, spare],
        incidents=[an_incident(), incident],
        orders=orders,
        brakes=[BrakeRecord("gpu", 5, [NOW - 59], tripped_at=NOW - 20, waiting=["node02", "node03"])],
    )


async def fill(path: Path, touched: Touched | None = None, at: float = T) -> None:
    """Write the journal as a controller would; its one event is of `at`."""
    await fill_in(f"sqlite:///{path}", touched, at)


async def fill_in(url: str, touched: Touched | None = None, at: float = T) -> None:
    """The same in the journal at this URL."""
    journal = open_journal(url)
    try:
        await journal.acquire("test", lease_s=10, now=NOW)
        event = JobObserved(id="e-1", at=at, received_at=at, seq=1, job=JobView(KEY, name="gpt"))
        await journal.append([Entry(event, [], touched or records())])
        await journal.add_samples(
            [Sample("step", "job:1778(0)", T + 5 + n, 10.0 * n) for n in range(1, 13)]
            + [Sample("loss", "job:1778(0)", T + 5 + n, 3.0 - n / 10) for n in range(1, 13)]
        )
        await journal.release()
    finally:
        await journal.close()


def make(path: Path, touched: Touched | None = None, at: float = T) -> Path:
    asyncio.run(fill(path, touched, at))
    return path
