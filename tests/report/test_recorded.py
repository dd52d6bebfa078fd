"""Every figure of a report over a recorded history, worked out once more from the raw events in the plainest way.

`recorded/*.jsonl` are canonical exports of the journals of a real embedded cluster and of a real Slurm on one machine
(three drills on real processes each: a killed rank, a hang, Xid 74 with a replaced node), `...records.json` what their
controllers had projected (`record.py` wrote them). Nothing here uses the code that it checks: raw dictionaries, sums, a sort.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.model.orders import AnyOrder, OrderStatus
from holdfast.model.policy import Slo
from holdfast.model.records import IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.model.wire import decode, decode_event
from holdfast.report.fleet import Economics
from holdfast.report.gather import DETAILS, ReportData
from holdfast.report.json_form import report_form
from holdfast.report.sections import coverage, sections
from holdfast.report.single import affected, cost, machines, phases
from holdfast.report.trace import Told, trace

HERE = Path(__file__).parent / "recorded"


class Raw:
    """A recording's events as they were written."""

    def __init__(self, name: str) -> None:
        self.name = name
        text = (HERE / f"{name}.jsonl").read_text(encoding="utf-8")
        entries = [json.loads(line) for line in text.splitlines()]
        self.lines: list[dict[str, Any]] = [entry["event"] for entry in entries]
        self.orders: list[dict[str, Any]] = [order for entry in entries for order in entry["orders"]]
        self.attempts = sorted(e["attempt"] for e in self.all("attempt_started"))
        self.faults = [e["at"] for e in self.all("drill_fired")]
        self.started = {n: self.all("attempt_started", attempt=n)[0]["at"] for n in self.attempts}
        self.ended = {e["attempt"]: e for e in self.all("attempt_ended")}
        self.end = {n: self.ended[n]["at"] if n in self.ended else self._requeued(n) for n in self.attempts}
        self.first = {n: self.all("first_step_done", attempt=n)[0] for n in self.attempts}
        self.last = {n: max(e["step"] for e in self.all("step_reached", attempt=n)) for n in self.attempts}
        for e in (*self.all("attempt_ended"), *self.all("checkpoint_saved", durable=True)):
            self.last[e["attempt"]] = max(self.last[e["attempt"]], e.get("last_step") or 0, e.get("step") or 0)

    def _requeued(self, attempt: int) -> float:
        """A launcher that was ended with its job could not tell: the attempt was over when the requeue was done."""
        requeues = {order["id"] for order in self.orders if order["order"] in {"requeue", "requeue_held"}}
        done = [e["received_at"] for e in self.all("order_done") if e["order"] in requeues]
        return min(at for at in done if at > self.started[attempt])

    def all(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        return [e for e in self.lines if e["event"] == kind and all(e.get(k) == v for k, v in fields.items())]

    def first_after(self, kind: str, at: float, time: str = "at") -> dict[str, Any]:
        return min((e for e in self.all(kind) if e[time] > at), key=lambda e: e[time])

    def proof(self, attempt: int) -> float:
        """When the first durable checkpoint beyond the attempt before was known."""
        saved = self.all("checkpoint_saved", attempt=attempt, durable=True)
        return min(c["received_at"] for c in saved if c["step"] > self.last[attempt - 1])


@pytest.fixture(scope="module", params=["embedded-drills", "slurm-drills"])
def raw(request: pytest.FixtureRequest) -> Raw:
    return Raw(request.param)


@pytest.fixture(scope="module")
def data(raw: Raw) -> ReportData:
    records = json.loads((HERE / f"{raw.name}.records.json").read_text(encoding="utf-8"))

    def read(name: str, kind: type[Any]) -> list[Any]:
        return [decode(json.dumps(one), kind) for one in records[name]]

    incidents = sorted(read("incidents", IncidentRecord), key=lambda i: i.opened_at)
    made = ReportData(
        "t",
        "lab",
        raw.lines[-1]["at"] + 1,
        read("jobs", JobRecord),
        read("nodes", NodeRecord),
        incidents,
        since=raw.lines[0]["at"],
    )
    made.events = [decode_event(json.dumps(e)) for e in raw.lines if e["event"] in DETAILS]
    return made


def near(value: float | None) -> Any:
    return pytest.approx(value, abs=2e-3)


def test_detection(raw: Raw, data: ReportData) -> None:
    """From each drill's fault to the moment at which the controller received the first finding behind it."""
    times = sorted(raw.first_after("finding_seen", at, "received_at")["received_at"] - at for at in raw.faults)
    got = data.totals.mttd
    assert (got.n, got.mean, got.median, got.p95, got.maximum) == (
        3, near(sum(times) / 3), near(times[1]), near(times[math.ceil(0.95 * 3) - 1]), near(times[2]),
    )  # fmt: skip


def test_recovery(raw: Raw, data: ReportData) -> None:
    """From each fault to the first step of the attempt that follows, and to the first durable checkpoint behind it."""
    steps = [raw.first_after("first_step_done", at) for at in raw.faults]
    assert data.totals.mttr.mean == near(sum(e["at"] - at for e, at in zip(steps, raw.faults, strict=True)) / 3)
    proofs = [raw.proof(e["attempt"]) for e in steps]
    assert data.totals.mttp.mean == near(sum(p - at for p, at in zip(proofs, raw.faults, strict=True)) / 3)
    assert (data.totals.incidents, data.totals.recovered, data.totals.open) == (len(raw.faults), 3, 0)


def test_up_time_and_failures(raw: Raw, data: ReportData) -> None:
    """Seconds in which an attempt's processes ran, over three failures."""
    up = sum(raw.end[n] - raw.started[n] for n in raw.attempts)
    assert data.totals.mtbf_s == near(up / len(raw.faults))


def test_lost_steps(raw: Raw, data: ReportData) -> None:
    """Steps that each attempt computed although an earlier one had them."""
    again = sum(
        max(0, max(raw.last[m] for m in raw.attempts if m < n) - raw.first[n]["step"] + 1) for n in raw.attempts if n
    )
    assert data.totals.steps_lost == again > 0


def test_effective_training_time(raw: Raw, data: ReportData) -> None:
    """Every second of the job by hand: trained seconds less the share spent on steps that were there, over wall time."""
    productive, best = 0.0, 0
    for n in raw.attempts:
        end = next((at for at in raw.faults if raw.started[n] < at < raw.end[n]), raw.end[n])
        begin, step = raw.first[n]["at"], raw.first[n]["step"]
        done = raw.last[n] - step
        again = max(0, min(best, raw.last[n]) - step) if n else 0
        productive += (end - begin) * (1 - again / max(1, done))
        best = max(best, raw.last[n])
    wall = raw.end[raw.attempts[-1]] - raw.started[0]
    startup = raw.first[0]["at"] - raw.started[0]
    assert data.totals.ettr == near(productive / wall)
    assert data.totals.goodput_percent == pytest.approx(100 * productive / (wall - startup), abs=0.2)
    assert sum(data.totals.badput.values()) == near(wall - productive)


def test_causes_and_the_fleet(raw: Raw, data: ReportData) -> None:
    """Causes as the drills mean them; since all of it was drills, the fleet had no failure."""
    assert sorted(data.totals.by_cause) == ["exit.signal.9", "hang.rank", "nvidia.xid.74"]
    assert {i.drill for i in data.incidents} == {e["drill"] for e in raw.all("drill_fired")}
    assert (data.fleet.failures, data.fleet.fenced, data.fleet.by_cause) == (0, 0, {})


def test_phases_of_the_issue_add_up(raw: Raw, data: ReportData) -> None:
    """Xid 74: the phases that were measured sum to the whole span from the fault to the proof."""
    incident = data.incidents[-1]
    rows = phases(data, incident).rows
    assert [row[0] for row in rows if row[1] != "-"][:2] == ["detect", "isolate"] or rows[0][0] == "detect"
    measured = [float(row[1]) for row in rows if row[1] != "-"]
    assert sum(measured) == pytest.approx(raw.proof(3) - raw.faults[-1], abs=0.01)


def test_what_each_incident_cost(raw: Raw, data: ReportData) -> None:
    """From each fault to the first step behind it, times the GPUs that its nodes tell (a node without GPUs is one)."""
    records = json.loads((HERE / f"{raw.name}.records.json").read_text(encoding="utf-8"))
    gpus = {node["view"]["name"]: max(1, node["view"].get("gpus", 0)) for node in records["nodes"]}
    held = sum(gpus[name] for name in records["jobs"][0]["attempts"][-1]["nodes"])
    for incident, at in zip(data.incidents, raw.faults, strict=True):
        still = raw.first_after("first_step_done", at)["at"] - at
        (row,) = cost(data, incident).rows
        assert (row[4], float(row[2])) == (f"{held}", near(still))
        assert float(row[5]) == pytest.approx(still * held / 3600, abs=1e-4 * held)


@pytest.mark.parametrize(
    "figure", ["MTTD", "MTTR", "MTTP", "MTBF", "lost steps", "incidents", "recovered", "availability"]
)
def test_each_number_is_followed_to_a_real_event(raw: Raw, data: ReportData, figure: str) -> None:
    """Every mark of every part names an event of the recording, and the event's time is the mark's."""
    events = [decode_event(json.dumps(e)) for e in raw.lines]
    found = trace(data, figure, Told({i.id: events for i in data.incidents} | {str(j.key): events for j in data.jobs}))
    by_seq = {e["seq"]: e for e in raw.lines}
    assert found.parts
    for point in (p for part in found.parts for p in part.points if p.at):
        assert point.seq, (figure, point)
        event = by_seq[point.seq]
        times = [event["at"], event["received_at"], event.get("finding", {}).get("at", 0.0)]
        assert min(abs(at - point.at) for at in times) < 5e-3, (figure, point)


@pytest.fixture(scope="module")
def fleet(data: ReportData) -> ReportData:
    """The same history as if nobody had planned its faults: they count as the fleet's failures."""
    incidents = [msgspec.structs.replace(incident, drill="") for incident in data.incidents]
    made = ReportData("t", "lab", data.made_at, data.jobs, data.nodes, incidents, since=data.since)
    made.economics = Economics(gpu_hour=2.0, person_minutes=30.0, spare_nodes=1)
    return made


def test_the_fleets_counts_and_times(raw: Raw, fleet: ReportData) -> None:
    """Three failures; two of an application or unknown, one of hardware whose node was fenced, replaced and no false alarm."""
    made = fleet.fleet
    fenced = [order for order in raw.orders if order["order"] == "quarantine_node"]
    assert (made.failures, made.came_back, made.by_themselves, made.given_up) == (3, 3, 3, 0)
    assert (made.fenced, made.false_alarms, made.lemons) == (len(fenced), 0, ())
    assert made.by_cause == {"exit.signal.9": 1, "hang.rank": 1, "nvidia.xid.74": 1}
    assert sum(made.by_domain.values()) == 3
    assert made.by_domain["hardware"] == 1
    again = [raw.first_after("first_step_done", at)["at"] - at for at in raw.faults]
    seen = [raw.first_after("finding_seen", at, "received_at")["received_at"] - at for at in raw.faults]
    assert (made.mttr.mean, made.mttd.mean) == (near(sum(again) / 3), near(sum(seen) / 3))
    seen = {e["node"]["name"]: e["received_at"] for e in reversed(raw.all("node_observed"))}
    days = sum(raw.lines[-1]["at"] + 1 - at for at in seen.values()) / 86400
    assert (len(seen), made.node_days) == (4, pytest.approx(days))
    assert made.per_1000_node_days == pytest.approx(1000 * 3 / days)
    assert [week.failures for week in made.weeks] == [3]


def test_the_fleets_gpu_hours_and_money(raw: Raw, fleet: ReportData) -> None:
    """Every second from the first start to the last end that was not productive, and what a person would have taken."""
    records = json.loads((HERE / f"{raw.name}.records.json").read_text(encoding="utf-8"))
    gpus = {node["name"]: node["view"]["gpus"] for node in records["nodes"]}
    held = sum(gpus[name] for name in records["jobs"][0]["attempts"][-1]["nodes"])
    wall = raw.end[raw.attempts[-1]] - raw.started[0]
    lost = wall * (1 - (fleet.totals.ettr or 0.0)) * held / 3600
    made = fleet.fleet
    assert sum(made.badput_gpu_h.values()) == pytest.approx(lost, rel=1e-3)
    assert (made.cost.lost, made.cost.lost_money) == (pytest.approx(lost, rel=1e-3), pytest.approx(2 * lost, rel=1e-3))
    saved = sum(1800 - (raw.first_after("first_step_done", at)["at"] - at) for at in raw.faults) * held / 3600
    assert made.cost.saved == pytest.approx(saved, rel=1e-6)
    spares = (raw.lines[-1]["at"] + 1 - raw.lines[0]["at"]) / 3600 * 8
    assert made.cost.net_money == pytest.approx(2 * (saved - spares), rel=1e-6)


@pytest.mark.parametrize(
    "figure", ["failures", "trained again", "automatic", "fenced", "failure rate", "GPU hours saved"]
)
def test_each_number_of_the_fleet_is_followed_to_a_real_event(raw: Raw, fleet: ReportData, figure: str) -> None:
    """Parts add up to the figure that the fleet's report shows, and each point names an event at its time."""
    events = [decode_event(json.dumps(e)) for e in raw.lines]
    found = trace(fleet, figure, Told({i.id: events for i in fleet.incidents}))
    shown = {
        "failures": fleet.fleet.failures, "trained again": fleet.fleet.came_back, "automatic": fleet.fleet.by_themselves,
        "fenced": fleet.fleet.fenced, "failure rate": fleet.fleet.per_1000_node_days, "GPU hours saved": fleet.fleet.cost.saved,
    }[figure]  # fmt: skip
    assert found.value == pytest.approx(shown)
    total = sum(part.value for part in found.parts)
    assert total == pytest.approx(fleet.fleet.failures if figure == "failure rate" else shown)
    by_seq = {e["seq"]: e for e in raw.lines}
    for point in (p for part in found.parts for p in part.points):
        event = by_seq[point.seq]
        times = [event["at"], event["received_at"], event.get("finding", {}).get("at", 0.0)]
        assert min(abs(at - point.at) for at in times) < 5e-3, (figure, point)


def test_jobs_and_machines_of_each_incident(raw: Raw, data: ReportData) -> None:
    """The one job came back by itself each time, as the attempt that started next; the replaced node passed its checks."""
    for incident, at in zip(data.incidents, raw.faults, strict=True):
        number = raw.first_after("attempt_started", at)["attempt"]
        assert affected(data, incident).rows == (("1", "running", f"1({number}), by itself"),)
    [said] = raw.all("node_validated")
    [row] = machines(data, data.incidents[-1]).rows
    assert (row[0], row[2], row[3]) == (said["node"], "PASS", said["detail"])
    assert machines(data, data.incidents[0]).rows == ()


def test_coverage_of_a_recording(raw: Raw, data: ReportData) -> None:
    """All three injected faults were noticed; people count as told of an incident only when a notice of it was done."""
    done = {e["order"] for e in raw.all("order_done")}
    orders = [order for order in raw.orders if order["order"] == "notify"]
    told = {order["incident"] for order in orders if order["id"] in done}
    made = msgspec.structs.replace(data)
    made.notices = [
        OrderRecord(
            order=decode(json.dumps(order), AnyOrder),
            status=OrderStatus.DONE if order["id"] in done else OrderStatus.PENDING,
            issued_at=1.0,
        )
        for order in orders
    ]
    rows = {row[0]: row[1] for row in coverage(made).rows}
    fired = {e["drill"] for e in raw.all("drill_fired")}
    assert rows["injected faults that were noticed"] == f"100.0 % ({len(fired)} of {len(fired)})"
    known = {i.id for i in data.incidents}
    share = 100 * len(told & known) / len(known)
    assert rows["incidents that people were told of"] == f"{share:.1f} % ({len(told & known)} of {len(known)})"


def test_objectives_of_a_recording(raw: Raw, data: ReportData) -> None:
    """The slowest of three is their p95; availability is the job's time less that from each fault to the first step after it."""
    seen = max(raw.first_after("finding_seen", at, "received_at")["received_at"] - at for at in raw.faults)
    again = [raw.first_after("first_step_done", at)["at"] - at for at in raw.faults]
    wall = raw.end[raw.attempts[-1]] - raw.started[0]
    up = 100 * (1 - sum(again) / wall)
    for spare, word in ((0.02, "PASS"), (-0.02, "FAIL")):
        made = msgspec.structs.replace(data)
        made.slo = Slo(detect_s=seen + spare, recover_s=max(again) + spare, availability=up - spare)
        told = {verdict.objective: verdict for verdict in made.verdicts}
        assert {name: verdict.word for name, verdict in told.items()} == {
            "detect": word, "recover": word, "availability": word,
        }  # fmt: skip
        shown = {name: float(verdict.measured.split()[0]) for name, verdict in told.items()}
        assert (shown["detect"], shown["recover"]) == (near(seen), near(max(again)))
        assert shown["availability"] == pytest.approx(up, abs=0.01)


def test_objectives_of_the_fleet_leave_drills_out(raw: Raw, data: ReportData) -> None:
    """One of the three faults was no drill: the fleet is judged by it alone, the whole report by all, and each says so."""
    made = msgspec.structs.replace(data, slo=Slo(detect_s=1e-6, recover_s=1e-6, availability=100.0))
    made.incidents = [
        msgspec.structs.replace(one, drill=one.drill if n else "") for n, one in enumerate(data.incidents)
    ]
    again = [raw.first_after("first_step_done", at)["at"] - at for at in raw.faults]
    wall = raw.end[raw.attempts[-1]] - raw.started[0]
    for kind, counted in (("fleet", again[:1]), ("full", again), ("summary", again)):
        told = {verdict.objective: verdict for verdict in made.verdicts_of(kind)}
        assert told["recover"].arithmetic.startswith(f"p95 of n={len(counted)}: ")
        assert float(told["recover"].measured.split()[0]) == near(max(counted))
        down = 100 * sum(counted) / wall
        assert float(told["availability"].measured.split()[0]) == pytest.approx(100 - down, abs=0.01)
        [table] = [one for one in sections(made, kind) if one.key == "objectives"]
        assert ("Drills are left out" in table.intro, "Drills count" in table.intro) == (
            kind == "fleet",
            kind != "fleet",
        )
        assert [row[4] for row in table.rows] == [verdict.arithmetic for verdict in told.values()]
        form = report_form(made, kind)["objectives"]
        assert [one["arithmetic"] for one in form] == [verdict.arithmetic for verdict in told.values()]
    nothing = msgspec.structs.replace(data, slo=Slo(detect_s=1.0))
    assert [verdict.word for verdict in nothing.verdicts_of("fleet")] == ["no data"]


def test_the_week_and_the_hour_of_a_recording(raw: Raw, fleet: ReportData) -> None:
    """All of it lies in one week and, by the clock of the first words about each fault, in these hours and days."""
    [week] = fleet.fleet.weeks
    seen = [raw.first_after("finding_seen", at, "received_at")["received_at"] - at for at in raw.faults]
    again = [raw.first_after("first_step_done", at)["at"] - at for at in raw.faults]
    up = sum(raw.end[n] - raw.started[n] for n in raw.attempts)
    assert (week.mttd_s, week.mttr_s, week.mtbf_s) == (near(sum(seen) / 3), near(sum(again) / 3), near(up / 3))
    moments = [datetime.fromtimestamp(incident.opened_at, UTC) for incident in fleet.incidents]
    assert fleet.fleet.by_hour == tuple(sum(m.hour == hour for m in moments) for hour in range(24))
    assert fleet.fleet.by_day == tuple(sum(m.weekday() == day for m in moments) for day in range(7))


def test_phases_by_their_names(raw: Raw, data: ReportData) -> None:
    """Detect ends with the first finding that arrived, loading a checkpoint lasts from the new ranks to their first step."""
    for incident, at in zip(data.incidents, raw.faults, strict=True):
        rows = {row[0]: row for row in phases(data, incident).rows}
        seen = raw.first_after("finding_seen", at, "received_at")["received_at"]
        first = raw.first_after("first_step_done", at)
        assert float(rows["detect"][1]) == near(seen - at)
        # A start that is heard of before its decision is dated by the decision: between the launcher's word and its arrival.
        [start] = raw.all("attempt_started", attempt=first["attempt"])
        load = float(rows["load checkpoint"][1])
        assert first["at"] - start["received_at"] - 2e-3 <= load <= first["at"] - start["at"] + 2e-3
        assert float(rows["prove"][1]) == near(raw.proof(first["attempt"]) - first["at"])
        known = [row for row in rows.values() if row[1] != "-"]
        assert sum(float(row[2]) for row in known) == pytest.approx(100, abs=0.5)
