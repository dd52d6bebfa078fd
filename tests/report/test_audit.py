"""Every number in the JSON of a report over three histories is covered by a recomputation, or by a reason why it needs none.

A drill on an embedded cluster, the same on a real Slurm (both with and without its faults counting as the fleet's), and a simulated year of 481 incidents.
`hand.py` works the figures out from the raw lines; a figure that a report gains and that neither it nor `INPUTS` knows fails here.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from functools import cached_property
from math import isclose, sqrt
from statistics import fmean, median
from typing import Any

import msgspec
import pytest
from tests.report import year
from tests.report.hand import Hand, Json, cause, domain, gaps, spread
from tests.report.test_recorded import HERE, Raw
from tests.report.test_recorded_series import Recorded, interval, lost, speeds

from holdfast.model.policy import Slo
from holdfast.report.fleet import Economics
from holdfast.report.gather import ReportData, gather
from holdfast.report.json_form import report_form

PRICES = {"gpu_hour": 2.5, "minutes": 30.0, "spares": 4, "holdfast_hour": 0.4}
INPUTS = {
    r"version": "the form's",
    r"made_at": "when the report was asked for",
    r"jobs\.\d+\.attempts\.\d+\.(epoch|ranks|restart_count|in_place|exit_code|signal)": "as its event says; in no figure",
    r"jobs\.\d+\.attempts\.\d+\.(resumed_from|last_step|durable_step|durable_at)": "as events say; `first_step` and lost steps are made of them",
    r"incidents\.\d+\.confidence": "the diagnosis' own",
    r"incidents\.\d+\.suspects\.ranks\.\d+": "a rank's number",
}
"""Numbers that are no figures, by the pattern of their path, and why."""


class History:
    """One of the histories: its report, and the same by hand."""

    def __init__(self, name: str, *, unplanned: bool = False, job: str = "", incident: str = "") -> None:
        self.name, self.unplanned, self.job, self.incident = name, unplanned, job, incident
        if name == "simulated-year":
            self.lines: Any = year.raw_lines()
            self.records: Json = year.raw_records()
            self.journal: Any = year.recorded_journal()
            self.since, self.now = self.records["started_at"], self.records["ended_at"]
        else:
            self.journal = Recorded(Raw(name))
            text = (HERE / f"{name}.jsonl").read_text(encoding="utf-8")
            self.lines = [json.loads(line) for line in text.splitlines()]
            self.records = self.journal.records
            self.since = self.lines[0]["event"]["at"]
            self.now = max(self.lines[-1]["event"]["at"], *(s["at"] for s in self.journal.lines)) + 1
        of = [i for i in self.records["incidents"] if not incident or i["id"] == incident]
        if job:
            of = [i for i in of if any(key["id"] == job for key in i.get("jobs", ()))]
        jobs = [one for one in self.records["jobs"] if job in {"", one["key"]["id"]}]
        self.records = self.records | {"incidents": of, "jobs": jobs}

    @cached_property
    def data(self) -> ReportData:
        asked = {"job": self.job, "incident": self.incident}
        made = asyncio.run(gather(self.journal, title="t", cluster="lab", now=self.now, since=self.since, **asked))
        if self.unplanned:
            made.incidents = [msgspec.structs.replace(incident, drill="") for incident in made.incidents]
            made.history = made.incidents
        made.economics = Economics(gpu_hour=2.5, person_minutes=30.0, spare_nodes=4, holdfast_hour=0.4)
        return made

    @cached_property
    def form(self) -> Json:
        found: Json = json.loads(json.dumps(report_form(self.data)))
        return found

    @cached_property
    def hand(self) -> Hand:
        return Hand(
            self.lines, self.records, since=self.since, now=self.now, prices=PRICES, drills_count=self.unplanned
        )

    @cached_property
    def by_hand(self) -> Json:
        hand = self.hand
        return {
            "totals": hand.totals(), "jobs": hand.job_forms(), "fleet": hand.fleet(), "intervals": self.intervals(), "throughput": self.throughput(),
            "incidents": [hand.incident_form(incident) for incident in hand.incidents], "training": hand.training_in_total(),
            "convergence": self.convergence(),
        }  # fmt: skip

    def intervals(self) -> list[Json]:
        if self.name == "simulated-year":
            return []  # nothing measured what a save cost
        found, failed = interval(self.journal), self.hand.failed
        save, between = found["save"], sum(a["up"] for a in self.hand.accounts.values()) / len(failed)
        best = sqrt(2 * save * between) * (1 + sqrt(save / (2 * between)) / 3 + save / (18 * between))
        asked = (save, between, fmean(gaps(failed, "first_step")))
        return [
            {
                "actual_s": found["actual"], "save_s": save, "mtbf_s": between, "best_s": best, "failures": len(failed),
                "drills": sum(bool(i.get("drill")) and not self.unplanned for i in failed),
                "loss_actual": lost(found["actual"], *asked), "loss_best": lost(best, *asked),
            }
        ]  # fmt: skip

    def convergence(self) -> list[Json]:
        """Of each incident the loss of its two attempts: at the step computed twice where they differ most."""
        if self.name == "simulated-year":
            return []  # nobody told a loss
        found = []
        for incident in self.hand.incidents:
            before, after = (losses(self.journal, incident[name]) for name in ("attempt_before", "attempt_after"))
            twice = sorted(set(before) & set(after))
            if twice:
                worst = max(twice, key=lambda step: abs(before[step] - after[step]))
                old, new = before[worst], after[worst]
                found.append({"first_step": twice[0], "last_step": twice[-1], "twice": len(twice), "worst_step": worst})
            else:
                left, right = sorted(before)[-20:], sorted(after)[:20]
                old, new = median(before[step] for step in left), median(after[step] for step in right)
                found.append({"first_step": left[0], "last_step": right[-1], "twice": 0})
            found[-1] |= {"before": old, "after": new, "difference": abs(new - old)}
        return found

    def throughput(self) -> list[Json]:
        if self.name == "simulated-year":
            return []  # two points of an attempt give no speed
        pairs = [speeds(self.journal, i["marks"]["fault"], i["attempt_before"]) for i in self.hand.incidents]
        return [
            {"before": before, "after": after, "loss_percent": 100 - 100 * after / before} for before, after in pairs
        ]


def losses(journal: Recorded, attempt: int) -> dict[int, float]:
    """Step -> loss, of the moments at which both were told."""
    steps = dict(journal.of("step", attempt))
    return {int(steps[at]): value for at, value in journal.of("loss", attempt) if at in steps}


HISTORIES: dict[str, dict[str, Any]] = {
    "embedded": {"name": "embedded-drills"}, "embedded, unplanned": {"name": "embedded-drills", "unplanned": True},
    "slurm": {"name": "slurm-drills"}, "slurm, unplanned": {"name": "slurm-drills", "unplanned": True},
    "one incident": {"name": "slurm-drills", "incident": "last"}, "year": {"name": "simulated-year"},
    "one job of the year": {"name": "simulated-year", "job": "2"},
}  # fmt: skip


@pytest.fixture(scope="module", params=list(HISTORIES))
def history(request: pytest.FixtureRequest) -> History:
    asked = dict(HISTORIES[request.param])
    if asked.get("incident"):
        records = json.loads((HERE / f"{asked['name']}.records.json").read_text(encoding="utf-8"))
        asked["incident"] = max(records["incidents"], key=lambda i: float(i["opened_at"]))["id"]
    return History(**asked)


def numbers(form: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a form with its path: `fleet.weeks.3.up_s`."""
    if isinstance(form, dict):
        for name, value in form.items():
            yield from numbers(value, f"{path}.{name}" if path else str(name))
    elif isinstance(form, list):
        for place, value in enumerate(form):
            yield from numbers(value, f"{path}.{place}")
    elif isinstance(form, int | float) and not isinstance(form, bool):
        yield path, float(form)


def is_input(path: str) -> bool:
    return any(re.fullmatch(pattern, path) for pattern in INPUTS)


def slack(history: History, path: str) -> float:
    """Seconds, or GPU-hours. Where only the scheduler tells of an attempt's end, it is heard of twice: from its queue, and as the outcome of
    the requeue half a second later. The engine takes the later one, an attempt that only events tell of the earlier one."""
    if not re.search(r"badput(_gpu_h)?\.(stop|restart)$", path):
        return 2e-3
    hand = history.hand
    told = {key for key, events in hand.by_attempt.items() if any(e["event"] == "attempt_ended" for e in events)}
    found = 2e-3
    for job, rows in hand.jobs.items():
        unsure = 0.51 * sum((job, row["number"]) not in told for row in rows)
        found += unsure * hand.held(job) / 3600 if "gpu_h" in path else unsure
    return found


def test_every_number_is_covered(history: History) -> None:
    """Each number of the report has its equal by hand, at the same place; none by hand is missing in the report."""
    known = dict(numbers(history.by_hand))
    found = {path: value for path, value in numbers(history.form) if not is_input(path)}
    uncovered = sorted(set(found) - set(known))
    assert not uncovered, f"{len(uncovered)} figures that nothing recomputes: {uncovered[:20]}"
    wrong = {
        path: (value, known[path])
        for path, value in found.items()
        if not isclose(value, known[path], rel_tol=1e-6, abs_tol=slack(history, path))
    }
    assert not wrong, f"{len(wrong)} of {len(found)}: {dict(list(wrong.items())[:20])}"
    missing = {path for path in set(known) - set(found) if known[path]}
    assert not missing, sorted(missing)[:20]
    assert len(found) > 100


# --- marks: what all times are made of ---

MARKS = {
    "stopped": {"attempt_ended at", "requeue_held", "job_observed", "attempt_started at"},
    "requeued": {"requeue_held", "timer_fired", "attempt_ended", "attempt_started at"},
    "released": {"release_job", "job_observed"},
    "placed": {"release_job", "launcher_attached", "job_observed started"},
    "started": {"attempt_started at", "job_observed", "timer_fired"},
    "first_step": {"first_step_done at"},
    "proven": {"checkpoint_saved", "timer_fired", "attempt_ended"},
    "isolated": {"quarantine_node", "node_observed", "give_up"},
    "node_repaired": {"reset_gpu", "reboot_node", "replace_node", "node_observed", "node_heard", "agent_attached"},
    "node_returned": {"return_node"},
}
"""What may set a mark: an event or the order that was done, when it was received; `at`: when it happened; `started`: since when the job runs."""


def moments(hand: Hand) -> dict[int, list[tuple[float, str]]]:
    """By second: (time, what happened or was heard then)."""
    kinds = {order["id"]: order["order"] for order in hand.orders}
    found: dict[int, list[tuple[float, str]]] = {}

    def add(at: float, what: str) -> None:
        for second in {int(at - 0.01), int(at + 0.01)}:
            found.setdefault(second, []).append((at, what))

    for e in hand.events:
        name = kinds.get(e.get("order", ""), e["event"])
        add(e["received_at"], name)
        add(e["at"], f"{name} at")
        if e["event"] == "job_observed" and e["job"].get("started_at"):
            add(e["job"]["started_at"], "job_observed started")
        if e["event"] == "finding_seen":
            finding = e["finding"]
            began = (finding.get("at") or e["at"]) - float(finding.get("captures", {}).get("stuck_s", 0))
            add(began, "finding")
    return found


def test_every_mark_is_the_time_of_an_event(history: History) -> None:
    """Of each incident: detected when the event that opened it was received, every other mark when what may set it happened or was heard."""
    hand, at_second = history.hand, moments(history.hand)
    counted = 0
    for incident in hand.incidents:
        marks = incident["marks"]
        assert marks["detected"] == incident["opened_at"] == hand.received(incident["id"])
        assert marks.get("closed", 0.0) == incident.get("closed_at", 0.0)
        for name, allowed in {**MARKS, "fault": {"finding", "drill_fired at"}}.items():
            if name in marks:
                there = {what for at, what in at_second.get(int(marks[name]), ()) if abs(at - marks[name]) < 2e-3}
                if name == "fault" and marks["fault"] == pytest.approx(marks["detected"], abs=1.0):
                    there.add("finding")  # what the controller itself found: its own look is its evidence
                assert allowed & there, (incident["id"], name, marks[name], there)
                counted += 1
        if incident.get("attempt_after") is not None and "first_step" in marks:
            assert marks["first_step"] == pytest.approx(hand.attempt(incident, incident["attempt_after"])["first_at"])
    assert counted >= 8


# --- texts: numbers that stand in tables, verdicts and evidence ---

NUMBER = re.compile(r"(?<![\w.:-])-?\d+(?:\.\d+)?(?![\w.:]*\d)")


def said(text: str) -> list[tuple[float, float]]:
    """(number, half of its last digit) of each number in a text."""
    return [(float(n), 0.51 * 10.0 ** -len(n.partition(".")[2])) for n in NUMBER.findall(text)]


def backed(text: str, offered: list[float | None]) -> list[str]:
    """Numbers of a text that none of the offered values rounds to."""
    return [
        f"{n:g}" for n, half in said(text) if not any(v is not None and abs(v - n) <= half + 1e-6 * abs(n) for v in offered)
    ]  # fmt: skip


def test_numbers_of_verdicts_are_backed(history: History) -> None:
    """Target, measured value and every number of the arithmetic of each objective, for the whole report and the fleet's."""
    hand = history.hand
    slo = Slo(detect_s=1.5, recover_s=90.0, availability=98.0)
    made = msgspec.structs.replace(history.data, slo=slo)
    wall = sum(account["wall"] for account in hand.accounts.values())
    for kind in ("full", "fleet"):
        own = [i for i in hand.faults if kind == "full" or history.unplanned or not i.get("drill")]
        failed = [i for i in own if i.get("attempt_before") is not None]
        seen, again = spread_of(own, "detected"), spread_of(failed, "first_step")
        lost = sum(i.get("outcome") == "given_up" for i in failed)
        down = sum(down_s(i) for i in failed)
        offered = [
            *(1.5, 90.0, 98.0, 95.0, 1.0), *seen, *again, lost, len(failed), 100 * lost / max(1, len(failed)), down, wall,
            100 - 100 * down / wall, 0.02 * wall, 30 * 24 * 60 * 0.02,
        ]  # fmt: skip
        for verdict in report_form(made, kind)["objectives"]:
            text = f"{verdict['target']} {verdict['measured']} {verdict['arithmetic']}".replace("p95", "").replace(
                "n=", ""
            )
            assert not backed(text, offered), (kind, text, backed(text, offered))


def spread_of(incidents: list[Json], mark: str) -> list[float | None]:
    found = spread(gaps(incidents, mark))
    return [found["n"], found["p95"]]


def down_s(incident: Json) -> float:
    """From the fault to the first step behind it, of each of its jobs; without one, until it was closed."""
    marks = incident["marks"]
    again = marks.get("first_step") or incident.get("closed_at") or marks["fault"]
    return max(0.0, again - marks["fault"]) * len(incident["jobs"]) * still_share(incident)


def still_share(incident: Json) -> float:
    """A job that a straggler keeps waiting goes on: what counts is what its others waited, as far as it was measured."""
    cause = (incident.get("diagnosis") or {}).get("cause", "")
    if not cause.startswith("straggler.") or "stopped" in incident["marks"]:
        return 1.0
    told = [one.get("captures", {}) for one in incident.get("findings", [])]
    return max(
        [1 - float(c["usual_step_s"]) / float(c["slow_step_s"]) for c in told if "slow_step_s" in c], default=0.0
    )


def test_numbers_of_proposals_are_backed(history: History) -> None:
    """Evidence and gain of every proposal, and the money's arithmetic, are made of numbers by hand."""
    hand = history.hand
    by_hand, form = history.by_hand, history.form
    cost, fleet = by_hand["fleet"]["cost"], by_hand["fleet"]
    total = sum(a["wall"] * hand.held(job) for job, a in hand.accounts.items()) / 3600
    days = (hand.now - hand.since) / 86400
    offered = [
        cost["lost"], total, 100 * cost["lost"] / total, fleet["by_themselves"], sum("first_step" in i["marks"] and not hand.helped(i) for i in hand.fleet_failed), 30.0, cost["saved"], 4, max(hand.gpus.values()), days, cost["spares"],
        0.4, days * 24, cost["holdfast_money"],
    ]  # fmt: skip
    text = form["fleet"]["cost"]["arithmetic"]
    assert not backed(text, offered), (text, backed(text, offered))
    for proposal in form["proposals"]:
        text = f"{proposal['evidence']} {proposal['gain']}"
        pool = PROPOSED[proposal["rule"]](history)
        assert not backed(text, pool), (proposal["rule"], text, backed(text, pool))


def _slowest(history: History) -> list[float | None]:
    """Seconds of each phase over the recoveries at the first try, their sum without the proof, shares, and how many."""
    hand = history.hand
    real = [i for i in hand.failed if i.get("outcome") == "recovered" and _tries(hand, i) == 1]
    total: dict[str, float] = {}
    for incident in real:
        for phase in hand.incident_form(incident)["phases"]:
            if phase["name"] != "prove":
                total[phase["name"]] = total.get(phase["name"], 0.0) + phase["seconds"]
    whole = sum(total.values())
    per = [seconds / len(real) for seconds in total.values()] if real else []
    return [*total.values(), whole, *(100 * seconds / whole for seconds in total.values()), len(real), *per]


def _tries(hand: Hand, incident: Json) -> int:
    before, after = incident.get("attempt_before"), incident.get("attempt_after")
    if before is None or after is None:
        return 0
    return sum(before < row["number"] <= after for row in hand.jobs[incident["jobs"][0]["id"]])


def _hidden(history: History) -> list[float | None]:
    """Detections of ten minutes or more: how many, and their hours; ten minutes."""
    late = [s for s in gaps(history.hand.incidents, "detected") if s >= 600]
    return [len(late), 10.0, sum(late) / 3600, *_digits(*(i["id"] for i in history.hand.incidents))]


def _unknown(history: History) -> list[float | None]:
    failed = history.hand.fleet_failed
    blank = [i for i in failed if cause(i) == "unknown" or (cause(i).startswith("exit.") and domain(i) == "unknown")]
    return [len(blank), len(failed)]


def _waits(history: History) -> list[float | None]:
    marks = [i["marks"] for i in history.hand.incidents]
    long = [
        m["placed"] - m["released"]
        for m in marks
        if "placed" in m and "released" in m and m["placed"] - m["released"] > 60
    ]
    return [len(long), max(long, default=0.0) / 60, sum(long) / 3600]


def _interval(history: History) -> list[float | None]:
    [found] = history.intervals()
    gain = found["loss_actual"] - found["loss_best"]
    values = [found[name] for name in ("actual_s", "save_s", "mtbf_s", "best_s")]
    shares = [100 * found["loss_actual"], 100 * found["loss_best"], 100 * gain]
    return [*values, *(float(f"{v:.2g}") for v in values), *(v / 60 for v in values), *shares, 3]


def _digits(*texts: str) -> list[float]:
    return [n for text in texts for n, _ in said(text)]


PROPOSED = {
    "slowest-phase": _slowest, "hidden-by-time-out": _hidden, "unknown-causes": _unknown, "spares": _waits, "checkpoint-interval": _interval,
    "lemon": lambda history: [28, *(count for _, count in history.hand.lemons())],
    "false-alarms": lambda history: [history.hand.fleet()["false_alarms"], history.hand.fleet()["fenced"]],
}  # fmt: skip


def test_numbers_of_an_incidents_tables_are_backed(history: History) -> None:
    """Phases, what it cost and the losses: every number of every cell; clock times are those of marks."""
    hand = history.hand
    seen = 0
    for incident, form in zip(hand.incidents, history.form["incidents"], strict=True):
        marks, begin = incident["marks"], incident["marks"].get("fault", incident["opened_at"])
        edges = sorted({max(at, begin) for at in (*marks.values(), *_inside(history, incident))})
        ends = [at for at in edges if at >= begin]
        steps = [b - a for n, a in enumerate(ends) for b in ends[n:]]
        whole = [100 * gap / total for total in [*steps[-1:], ends[-1] - begin] for gap in steps if total > 0]
        pool: list[float | None] = [
            *steps,
            *(share for total in _wholes(marks, begin) for gap in steps for share in [100 * gap / total]),
        ]
        pool += whole
        for table in form["tables"]:
            if table["key"] == "phases":
                for row in table["rows"]:
                    text = f"{row['seconds']} {row['percent']}"
                    assert not backed(text, pool), (incident["id"], row, backed(text, pool))
                    seen += 1
                shares = [float(row["percent"]) for row in table["rows"] if row["percent"] != "-"]
                assert sum(shares) == pytest.approx(100.0, abs=0.6) or not sum(shares)
            if table["key"] == "lost-to-it":
                [row] = table["rows"]
                job = incident["jobs"][0]["id"]
                still = down_s(incident) / len(incident["jobs"])
                if not incident.get("closed_at") and "first_step" not in marks:
                    still = (hand.now - begin) * still_share(incident)
                again = 0.0 if row["computed again [s]"] == "-" else float(row["computed again [s]"])
                assert float(row["stood still [s]"]) == pytest.approx(still, abs=2e-3)
                assert int(row["GPUs"]) == hand.held(job)
                assert float(row["GPU-hours"]) == pytest.approx((still + again) * hand.held(job) / 3600, abs=1e-3)
                shown = hand.incident_form(incident)["lost_steps"]
                assert row["lost steps"] == ("-" if shown is None else str(shown))
                seen += 1
    assert seen > 5


def _inside(history: History, incident: Json) -> list[float]:
    """Moments between marks: the new launcher's first word, and when the old best step was passed."""
    own = {key["id"] for key in incident.get("jobs", ())}
    events = [e["at"] for e in history.hand.events if e["event"] == "launcher_attached" and e["job"]["id"] in own]
    first = incident["marks"].get("fault", 0.0)
    last = incident["marks"].get("proven", incident.get("closed_at") or history.now)
    if isinstance(history.journal, Recorded):
        events += [s["at"] for s in history.journal.lines if s["series"] == "step"]
    return [at for at in events if first <= at <= last]


def _wholes(marks: Json, begin: float) -> list[float]:
    """The span that the percents are of: to the last mark of the job's side, or the moment within it."""
    return [at - begin for at in marks.values() if at > begin]


# --- drills ---


@pytest.mark.parametrize("name", ["embedded-drills", "slurm-drills"])
def test_every_number_of_a_drills_result_is_covered(name: str) -> None:
    """Fault, offsets, phases, detection, recovery and lost steps of `drills.json`, from the journal's events."""
    hand = History(name).hand
    form = json.loads((HERE / f"{name}.drills.json").read_text(encoding="utf-8"))
    inputs = r"version|seed|started_at|seconds|drills\.\d+\.(seconds|target\.(rank|step)|suspects\.ranks\.\d+)"
    fired = [e for e in hand.events if e["event"] == "drill_fired"]
    expected: list[Json] = []
    for incident, event in zip(hand.incidents, fired, strict=True):
        by_hand = hand.incident_form(incident)
        phases: dict[str, float] = {}
        for phase in by_hand["phases"]:
            phases[phase["name"]] = phases.get(phase["name"], 0.0) + phase["seconds"]
        offsets = {mark: at - event["at"] for mark, at in incident["marks"].items()}
        expected.append(
            {
                "fault_at": event["at"], "phases": phases, "offsets": offsets, "lost_steps": by_hand["lost_steps"],
                "detect_s": incident["marks"]["detected"] - event["at"], "recover_s": incident["marks"]["proven"] - event["at"],
            }
        )  # fmt: skip
    known = dict(numbers({"drills": expected}))
    found = {path: value for path, value in numbers(form) if not re.fullmatch(inputs, path)}
    assert set(found) == set(known)
    assert {path for path in found if found[path] != pytest.approx(known[path], abs=2e-3)} == set()
    for drill, by_hand in zip(form["drills"], expected, strict=True):
        shown = {check["name"]: check["actual"] for check in drill["checks"]}
        assert not backed(shown["detected in time"], [by_hand["detect_s"]])
        assert not backed(shown["recovered in time"], [by_hand["recover_s"]])
        assert not backed(shown["lost steps"], [by_hand["lost_steps"]])
