"""The rules of `proposals` on histories that nobody wrote: the real engine's, over simulated clusters.

Each cluster lacks one thing: spares, hang detection, rules for what its jobs print, patience before a node is fenced.
What a proposal says is worked out once more from the events, orders and the world's own account.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest
from tests.decide.play import KEY, Play

from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.decide.waits import STUCK
from holdfast.detect.catalogue import StreamKind
from holdfast.detect.findings import to_finding
from holdfast.detect.matcher import Matcher, StreamSource
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobView
from holdfast.model.evidence import Finding, Place, Role
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, Mark
from holdfast.report.gather import ReportData
from holdfast.report.proposals import Proposal, unseen_s
from holdfast.sim.options import DAY_S, JobPlan, SimOptions
from holdfast.sim.record import SimResult
from holdfast.sim.run import simulate

pytestmark = pytest.mark.timeout(300)
JOB = JobPlan(nodes=8, work_s=500 * DAY_S, save_s=10.0)
PLANS = {
    "no spares": SimOptions(seed=1, nodes=8, jobs=(JOB,), fault_s=3 * DAY_S, failures=250.0, causes="node"),
    "late hangs": SimOptions(seed=1, nodes=8, jobs=(JOB,), fault_s=2 * DAY_S, hangs=2.0, hang_s=900.0),
    "no launcher": SimOptions(
        seed=1, nodes=8, jobs=(msgspec.structs.replace(JOB, launcher=False),), fault_s=4 * DAY_S, crashes=3.0
    ),
    "short outages": SimOptions(
        seed=1,
        nodes=10,
        spares=2,
        jobs=(JOB,),
        fault_s=4 * DAY_S,
        link_faults=2.5,
        policy="[modes]\nreboot = 'advise'",
    ),
}
"""Links that are down for minutes, under nodes whose repair waits for a person: most are well before one has come."""


@cache
def history(name: str) -> SimResult:
    return simulate(PLANS[name])


@cache
def raw(name: str) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Events, and orders by id, as plain dictionaries."""
    entries = list(history(name).entries())
    orders = {order.id: msgspec.to_builtins(order) for entry in entries for order in entry.orders}
    return [msgspec.to_builtins(entry.event) for entry in entries], orders


def done(name: str, *kinds: type) -> list[tuple[float, dict[str, Any]]]:
    """(when it was done, order) of these kinds of orders."""
    tags = {str(kind.__struct_config__.tag) for kind in kinds}
    events, orders = raw(name)
    found = [(one["at"], orders[one["order"]]) for one in events if one["event"] == "order_done"]
    return [(at, order) for at, order in found if order["order"] in tags]


def proposed(name: str, rule: str) -> list[Proposal]:
    result = history(name)
    made = ReportData("t", "sim", result.ended_at, result.jobs, result.nodes, result.incidents, since=result.started_at)
    return [one for one in made.proposals if one.rule == rule]


def waits(name: str) -> list[float]:
    """Seconds from each incident's last release until the world started its job; another incident takes over from it."""
    releases = [at for at, _ in done(name, o.ReleaseJob)]
    starts = [one.at for one in history(name).truth if one.what == "job_started"]
    ends = [*releases[1:], float("inf")]
    # A start may come before the outcome of its release was heard.
    pairs = [
        (begin, next((at for at in starts if begin - 2.0 <= at < end), None))
        for begin, end in zip(releases, ends, strict=True)
    ]
    opened = [incident.opened_at for incident in history(name).incidents]
    found = []
    for begin, end in zip(opened, [*opened[1:], float("inf")], strict=True):
        own = [max(0.0, at - released) for released, at in pairs if begin <= released < end and at is not None]
        found += own[-1:]
    return found


def test_without_a_spare_jobs_wait_for_nodes() -> None:
    """Node losses, and no node to take the place: the waits of the scheduler's own account, and the slowest phase."""
    long = [one for one in waits("no spares") if one > 60.0]
    [told] = proposed("no spares", "spares")
    assert told.evidence == (
        f"{len(long)} recoveries waited more than a minute for nodes, the longest {max(long) / 60:.0f} min"
    )
    assert told.gain == f"{sum(long) / 3600:.1f} hours of waiting"
    [slow] = proposed("no spares", "slowest-phase")
    assert slow.what == "keep more spares: jobs waited for nodes"
    assert proposed("short outages", "spares") == [] or max(waits("short outages")) > 60.0


def test_a_node_that_was_fenced_again_and_again_is_a_lemon() -> None:
    """As many times as its quarantine was carried out."""
    times: dict[str, int] = {}
    for _, order in done("no spares", o.QuarantineNode):
        times[order["node"]] = times.get(order["node"], 0) + 1
    lemons = {node: count for node, count in times.items() if count >= 3}
    told = {one.what.split()[1]: one.evidence for one in proposed("no spares", "lemon")}
    assert told == {node: f"it was fenced {count} times within 28 days" for node, count in lemons.items()} != {}


def test_hangs_that_were_found_late_were_hidden() -> None:
    """Fifteen minutes from the fault that the world tells of to its finding, each."""
    events, _ = raw("late hangs")
    faults = [one.at for one in history("late hangs").truth if one.what == "fault"]
    first = {incident.opened_at for incident in history("late hangs").incidents}
    seen = [one["received_at"] for one in events if one["event"] == "finding_seen" and one["received_at"] in first]
    late = [found - max(at for at in faults if at < found) for found in seen]
    assert len(late) == len(first)
    [told] = proposed("late hangs", "hidden-by-time-out")
    assert told.evidence.startswith(f"{len(late)} faults were noticed only 10 minutes or more after they happened: ")
    assert told.gain == f"{sum(late) / 3600:.1f} hours of detection"


def test_an_exit_alone_is_no_cause() -> None:
    """Nobody but the scheduler spoke, of how processes ended: none of the failures has a cause."""
    events, _ = raw("no launcher")
    crashes = [one for one in history("no launcher").truth if one.what == "fault"]
    assert "finding_seen" not in {one["event"] for one in events}
    [told] = proposed("no launcher", "unknown-causes")
    assert told.evidence == f"{len(crashes)} of {len(crashes)} failures have no known cause"
    assert proposed("short outages", "unknown-causes") == []


def test_nodes_that_were_well_before_anyone_came_are_false_alarms() -> None:
    """Fenced and returned, with no reset, reboot or replacement in between."""
    name = "short outages"
    fenced = {order["incident"] for _, order in done(name, o.QuarantineNode)}
    back = {order["incident"] for _, order in done(name, o.ReturnNode)}
    repaired = {order["incident"] for _, order in done(name, o.ResetGpu, o.RebootNode, o.ReplaceNode)}
    false = (fenced & back) - repaired
    [told] = proposed(name, "false-alarms")
    assert told.evidence == f"{len(false)} of {len(fenced)} fenced nodes came back without any repair"
    assert len(false) * 5 > len(fenced) >= 5


# --- what a time-out hid, in the words of real logs ---

WATCHDOG = (
    b"[rank3]:[E1105 10:21:07.100 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout:"
    b" WorkNCCL(SeqNum=1177, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=%d) ran for %d milliseconds"
    b" before timing out.\n"
)


@cache
def matcher() -> Matcher:
    return Matcher(read_catalogue())


@pytest.mark.parametrize(("waited_ms", "proposed_n"), [(600_029, 1), (590_000, 0)])
def test_a_time_out_hides_a_fault_for_as_long_as_it_says(waited_ms: int, proposed_n: int) -> None:
    """The watchdog's line, read by the catalogue; then its rank aborts, which the engine takes for the incident."""
    reading = matcher().stream(StreamSource(kind=StreamKind.ANY))
    line = WATCHDOG % (600_000, waited_ms)
    [match] = [*reading.feed(line, 0.0), *reading.flush(0.0)]
    play = Play().running()
    at = play.now + 900.0
    seen = to_finding(match, source_place=Place(node="n2"), job=KEY, attempt=0, at=at, id_prefix="f")
    play.do(e.FindingSeen, finding=seen, at=at, source="agent:n2")
    play.crash(rank=3, node="n2", at=at + 0.5)
    [incident] = play.engine.state.incidents.values()
    assert unseen_s(incident) == pytest.approx(waited_ms / 1000 + 0.5, abs=0.1)
    made = ReportData("t", "lab", at + 60, [], [], [msgspec.structs.replace(incident)])
    told = [one for one in made.proposals if one.rule == "hidden-by-time-out"]
    assert len(told) == proposed_n


def test_a_hang_says_in_its_finding_how_long_nothing_moved() -> None:
    """By the watcher's own number, with and without the decimals of a short wait; no sentence is read."""
    for stuck_s in ("1800", "650.25"):
        found = Finding(id="f", rule="hang.first_step", at=5000.0, role=Role.ROOT, captures={STUCK: stuck_s})
        incident = IncidentRecord("i", 5000.0, findings=[found], marks={Mark.FAULT: 5000.0, Mark.DETECTED: 5001.0})
        assert unseen_s(incident) == pytest.approx(float(stuck_s) + 1.0, abs=0.1)


@pytest.mark.parametrize(("started_at", "proposed_n"), [(4500.0, 0), (4000.0, 1)])
def test_nothing_was_hidden_before_its_attempt_began(started_at: float, proposed_n: int) -> None:
    """A time-out that says it waited 15 minutes, of an attempt that is eight minutes old, was not unseen for ten."""
    says = {"elapsed_ms": "900000"}
    found = Finding(id="f", rule="nccl.timeout", at=5000.0, role=Role.ROOT, captures=says)
    marks = {Mark.FAULT: 5000.0, Mark.DETECTED: 5001.0}
    incident = IncidentRecord("i", 5000.0, jobs=[KEY], findings=[found], attempt_before=0, marks=marks)
    job = JobRecord(KEY, JobView(KEY), attempts=[AttemptRecord(0, started_at=started_at)])
    assert unseen_s(incident, started_at) == min(901.0, 5001.0 - started_at)
    made = ReportData("t", "lab", 6000.0, [job], [], [incident])
    assert len([one for one in made.proposals if one.rule == "hidden-by-time-out"]) == proposed_n
