"""A report's figures once more, in the plainest way, from the raw lines of a history: dictionaries, loops, sums. For `test_audit`.

Nothing here uses the code that it checks. What happened to attempts and nodes is read from events and orders. Of an incident the engine's judgement is
taken as it is (which jobs, nodes, attempts and cause, whether it recovered) and its marks, which `test_audit` holds against the events.
"""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime
from statistics import fmean, median
from typing import Any

OVER = {"pending", "held", "completed", "failed", "cancelled", "timeout", "node_fail", "preempted"}
PHASES = {
    "detected": "detect", "diagnosed": "diagnose", "isolated": "isolate", "stopped": "stop", "requeued": "requeue", "released": "release",
    "placed": "wait for a node", "started": "start", "first_step": "first step", "proven": "prove",
}  # fmt: skip
STEPS = {"step_reached", "first_step_done", "checkpoint_saved", "attempt_ended"}
WEEK = 7 * 86400.0
Json = dict[str, Any]


class Hand:
    """One history. `lines`: of its journal; `records`: what the engine remembered; `prices`: what a reader says."""

    def __init__(
        self, lines: Any, records: Json, *, since: float, now: float, prices: Json, drills_count: bool
    ) -> None:
        self.events: list[Json] = [line["event"] for line in lines]
        self.orders: list[Json] = [
            order | {"at": line["event"]["received_at"]} for line in lines for order in line["orders"]
        ]
        self.by_seq = {e["seq"]: e for e in self.events}
        self.by_attempt: dict[tuple[str, int], list[Json]] = {}
        for e in self.events:
            if "attempt" in e and "job" in e:
                self.by_attempt.setdefault((e["job"]["id"], e["attempt"]), []).append(e)
        self.records, self.since, self.now, self.prices = records, since, now, prices
        self.incidents = sorted(records["incidents"], key=lambda i: i["opened_at"])
        self.gpus = {e["node"]["name"]: e["node"].get("gpus", 0) for e in self.events if e["event"] == "node_observed"}
        seen = [(e["node"]["name"], e["received_at"]) for e in self.events if e["event"] == "node_observed"]
        self.seen = {name: min(at for other, at in seen if other == name) for name in self.gpus}
        self.jobs = {job["key"]["id"]: self.attempts(job["key"]["id"]) for job in records["jobs"]}
        self.real = [i for i in self.incidents if i.get("outcome") != "observed"]
        self.faults = [i for i in self.real if not cause(i).startswith("operator.")]
        self.failed = [i for i in self.faults if i.get("attempt_before") is not None]
        self.fleet_failed = [i for i in self.failed if drills_count or not i.get("drill")]
        self.accounts = {name: self.account(name) for name in self.jobs}

    # --- attempts, out of events ---

    def attempts(self, job: str) -> list[Json]:
        """Each attempt's start, first step, best step and end. Without a launcher: one for each start by the scheduler."""
        own = [e for e in self.events if "job" in e and (e["job"].get("key") or e["job"]).get("id") == job]
        found: dict[int, Json] = {}
        for e in own:
            if e["event"] == "attempt_started":
                found[e["attempt"]] = {"number": e["attempt"], "started": e["at"], "nodes": e["nodes"]}
        if not found:
            for e in own:
                view = e["job"]
                if (
                    e["event"] == "job_observed"
                    and view["state"] == "running"
                    and view.get("restart_count", 0) not in found
                ):
                    at = view.get("started_at") or e["received_at"]
                    found[view.get("restart_count", 0)] = {
                        "number": view.get("restart_count", 0),
                        "started": at,
                        "nodes": view["nodes"],
                    }
        rows = [found[number] for number in sorted(found)]
        requeues = {o["id"] for o in self.orders if o["order"] in {"requeue", "requeue_held"} and o["job"]["id"] == job}
        overs = [e["received_at"] for e in own if e["event"] == "job_observed" and e["job"]["state"] in OVER]
        overs += [e["received_at"] for e in self.events if e["event"] == "order_done" and e["order"] in requeues]
        for row, after in zip(rows, [*rows[1:], None], strict=True):
            told = self.by_attempt.get((job, row["number"]), [])
            ended = [e["at"] for e in told if e["event"] == "attempt_ended"]
            concluded = [at for at in overs if at > row["started"] and (after is None or at < after["started"])]
            row["end"] = ended[0] if ended else min(concluded, default=after["started"] if after else self.now)
            firsts = [e for e in told if e["event"] == "first_step_done"]
            row["first_at"], row["first"] = (firsts[0]["at"], firsts[0]["step"]) if firsts else (0.0, None)
            steps = [e["step"] for e in told if e["event"] in {"step_reached", "first_step_done"}]
            saves = [e for e in told if e["event"] == "checkpoint_saved" and e["durable"]]
            steps += [e["step"] for e in saves]
            loaded = firsts[0].get("resumed_from") if firsts else None
            new = [e for e in saves if loaded is None or e["step"] > loaded]
            row["saved_at"] = max((e["received_at"] for e in saves), default=0.0) if new else 0.0
            row["whole"] = any(
                e.get("exit_code") == 0 and not e.get("stopped") for e in told if e["event"] == "attempt_ended"
            )
            steps += [e["last_step"] for e in told if e["event"] == "attempt_ended" and e.get("last_step") is not None]
            row["best"] = max(steps, default=None)
        return rows

    def account(self, job: str) -> Json:
        """Every second from the first start to the last end: what it was spent on."""
        rows = self.jobs[job]
        spent = dict.fromkeys(("productive", "startup", "detect", "stop", "restart", "load", "recompute", "other"), 0.0)
        ended_by = {
            i["attempt_before"]: i["marks"]
            for i in self.real
            if i.get("attempt_before") is not None and job in names(i)
        }
        lost, best = 0, None
        for n, row in enumerate(rows):
            begin, end = row["started"], max(row["started"], row["end"])
            marks = ended_by.get(row["number"], {})
            fault = between(marks.get("fault", end), begin, end)
            seen = between(marks.get("detected", fault), fault, end)
            first = between(row["first_at"], begin, fault) if row["first_at"] else fault
            spent["startup" if n == 0 else "load"] += first - begin
            again = 0
            if best is not None and row["first"] is not None:
                again = max(0, min(row["best"], best) - row["first"] + 1)
            lost += again
            share = (again - 1) / (row["best"] - row["first"]) if again > 1 else 0.0
            spent["recompute"] += (fault - first) * share
            spent["productive"] += (fault - first) * (1 - share)
            spent["detect"] += seen - fault
            spent["stop"] += end - seen
            spent["restart"] += max(0.0, rows[n + 1]["started"] - end) if n + 1 < len(rows) else 0.0
            best = row["best"] if best is None or (row["best"] or 0) > best else best
        wall = (rows[-1]["end"] - rows[0]["started"]) if rows else 0.0
        untold = 0.0
        if best is None:
            untold, spent["startup"], spent["load"] = spent["startup"] + spent["load"], 0.0, 0.0
        up = sum(max(0.0, row["end"] - row["started"]) for row in rows)
        productive = spent.pop("productive")
        return {"wall": wall, "productive": productive, "lost": spent, "up": up, "again": lost, "untold": untold}

    def training(self, job: str) -> Json:
        """Of each attempt what lies between its first step and its newest save; all else from the first step on is downtime."""
        rows = self.jobs[job] if any(row["best"] is not None for row in self.jobs[job]) else []
        state = next(r.get("state", "watching") for r in self.records["jobs"] if r["key"]["id"] == job)
        found, handed_over = [], 0.0
        for place, row in enumerate(rows):
            end, is_last = max(row["started"], row["end"]), place == len(rows) - 1
            runs = is_last and row["end"] == self.now
            first = min(row["first_at"] or row["started"], end) if row["first_at"] or row["best"] is not None else end
            whole = runs or row["whole"] or (is_last and state == "completed")
            kept = end if whole else min(end, max(first, row["saved_at"]))
            if place == 0:
                handed_over = first
            stops = kept
            if not whole and is_last:
                stops = end if state in {"completed", "given_up", "cancelled"} else self.now
            elif not whole and place and not row["saved_at"]:
                stops = end
            failed = place > 0 and not row["saved_at"] and not row["whole"] and not runs
            trained = kept - first
            found.append(
                {
                    "attempt": row["number"],
                    "trained_s": trained,
                    "downtime_s": stops - handed_over - trained,
                    "failed": failed,
                }
            )
            handed_over = stops
        trained, down = sum(one["trained_s"] for one in found), sum(one["downtime_s"] for one in found)
        return {
            "efficiency": trained / (trained + down) if trained + down else None, "trained_s": trained, "downtime_s": down,
            "restarts": max(0, len(found) - 1), "restarts_failed": sum(one.pop("failed") for one in found), "attempts": found,
        }  # fmt: skip

    def training_in_total(self) -> Json:
        """The same of all jobs together."""
        told = [self.training(job) for job in self.jobs]
        total = {
            name: sum(one[name] for one in told) for name in ("trained_s", "downtime_s", "restarts", "restarts_failed")
        }
        return total | {"efficiency": total["trained_s"] / (total["trained_s"] + total["downtime_s"])}

    def ratio(self) -> tuple[float | None, float | None]:
        """ETTR and goodput of the jobs whose steps are told."""
        told = [a for a in self.accounts.values() if not a["untold"]]
        productive, wall = sum(a["productive"] for a in told), sum(a["wall"] for a in told)
        started = wall - sum(a["lost"]["startup"] for a in told)
        return (productive / wall if wall else None, 100 * productive / started if started else None)

    # --- parts of the report ---

    def totals(self) -> Json:
        back = [i for i in self.faults if i.get("outcome") == "recovered"]
        ettr, goodput = self.ratio()
        return {
            "incidents": len(self.real), "recovered": sum(i.get("outcome") == "recovered" for i in self.real),
            "open": sum(not i.get("closed_at") for i in self.real),
            "mttd": spread(gaps(self.faults, "detected")), "mttr": spread(gaps(back, "first_step")), "mttp": spread(gaps(back, "proven")),
            "mtbf_s": sum(a["up"] for a in self.accounts.values()) / len(self.failed) if self.failed else None,
            "ettr": ettr, "goodput_percent": goodput, "steps_lost": sum(a["again"] for a in self.accounts.values()),
            "badput": {name: sum(a["lost"][name] for a in self.accounts.values()) for name in next(iter(self.accounts.values()))["lost"]},
            "by_cause": dict(Counter(cause(i) for i in self.real)), "by_domain": dict(Counter(domain(i) for i in self.real)),
        }  # fmt: skip

    def job_forms(self) -> list[Json]:
        found = []
        for name, rows in self.jobs.items():
            a = self.accounts[name]
            started = a["wall"] - a["lost"]["startup"]
            found.append(
                {
                    "wall_s": a["wall"], "productive_s": a["productive"], "badput": a["lost"], "untold_s": a["untold"],
                    "ettr": None if a["untold"] else a["productive"] / a["wall"], "training": self.training(name),
                    "goodput_percent": None if a["untold"] else 100 * a["productive"] / started,
                    "attempts": [
                        {"number": r["number"], "started_at": r["started"], "first_step_at": r["first_at"], "first_step": r["first"], "ended_at": r["end"] if r["end"] != self.now else None}
                        for r in rows
                    ],
                }
            )  # fmt: skip
        return found

    def held(self, job: str) -> int:
        """GPUs of the nodes of its newest attempt."""
        return sum(max(1, self.gpus[name]) for name in self.jobs[job][-1]["nodes"])

    def fleet(self) -> Json:
        failed = self.fleet_failed
        back = [i for i in failed if "first_step" in i["marks"] or "proven" in i["marks"]]
        alone = [i for i in back if not self.helped(i)]
        fenced = [i for i in self.incidents if "isolated" in i["marks"] and (not i.get("drill") or i in failed)]
        repairs = {"reset_gpu", "reboot", "replace", "retire"}
        false = [
            i
            for i in fenced
            if "node_returned" in i["marks"]
            and not repairs & set(i.get("remedies", ()))
            and not cause(i).startswith("node.")
        ]
        days = (self.now - self.since) / 86400
        node_days = self.node_days(self.since, self.now)
        rate = 1000 * len(failed) / node_days
        ettr, goodput = self.ratio()
        weeks = self.weeks(failed)
        moments = [datetime.fromtimestamp(i["opened_at"], UTC) for i in failed]
        return {
            "since": self.since, "until": self.now, "nodes": len(self.gpus), "node_days": node_days,
            "gpus": sum(max(1, count) for count in self.gpus.values()), "jobs": len(self.jobs), "failures": len(failed), "per_1000_node_days": rate,
            "mtbf_s": sum(a["up"] for a in self.accounts.values()) / len(failed) if failed else None,
            "mttd": spread(gaps(failed, "detected")), "mttr": spread(gaps(back, "first_step")),
            "by_cause": dict(Counter(map(cause, failed))), "by_domain": dict(Counter(map(domain, failed))),
            "came_back": len(back), "by_themselves": len(alone), "resubmitted": len(back) - len(alone),
            "given_up": sum(i.get("outcome") == "given_up" for i in failed), "false_alarms": len(false), "fenced": len(fenced), "lemons": self.lemons(),
            "ettr": ettr, "goodput_percent": goodput, "badput_gpu_h": self.lost_gpu_h(), "weeks": weeks,
            "by_hour": [sum(m.hour == hour for m in moments) for hour in range(24)],
            "by_day": [sum(m.weekday() == day for m in moments) for day in range(7)],
            "trend_percent_per_week": trend(weeks, min(self.seen.values()), self.now), "cost": self.cost(alone, days),
        }  # fmt: skip

    def node_days(self, begin: float, end: float) -> float:
        """Days for which the nodes were observed, each since the scheduler first told of it; none ever left."""
        return sum(max(0.0, end - max(begin, at)) for at in self.seen.values()) / 86400

    def helped(self, incident: Json) -> bool:
        """Did a person order anything about it while it was open?"""
        end = incident.get("closed_at") or math.inf
        said = [e for e in self.events if e["event"] == "operator_command" and incident["opened_at"] <= e["at"] <= end]
        return any(
            (e.get("job") or {}).get("id") in names(incident) or e.get("node") in incident.get("nodes", ()) or incident["id"] in e.get("order", "")
            for e in said
        )  # fmt: skip

    def lemons(self) -> list[list[Any]]:
        """Machines that were ordered to be fenced more than once within the 28 days before the newest time; another machine begins anew."""
        machine = {
            e["node"]["name"]: e["node"].get("instance_id") for e in self.events if e["event"] == "node_observed"
        }
        at: dict[str, list[float]] = {}
        for order in self.orders:
            if order["order"] == "quarantine_node" and order.get("instance_id") == machine[order["node"]]:
                at.setdefault(order["node"], []).append(order["at"])
        counts = {node: sum(time > max(times) - 28 * 86400 for time in times) for node, times in at.items()}
        return sorted(([node, n] for node, n in counts.items() if n > 1), key=lambda row: (-row[1], row[0]))

    def lost_gpu_h(self) -> Json:
        found: Json = {}
        for job, account in self.accounts.items():
            for name, seconds in account["lost"].items():
                found[name] = found.get(name, 0.0) + seconds * self.held(job) / 3600
        return found

    def weeks(self, failed: list[Json]) -> list[Json]:
        found, begin = [], self.since
        while begin < self.now:
            end = min(begin + WEEK, self.now)
            own = [i for i in failed if begin <= i["opened_at"] < end]
            up = sum(
                max(0.0, min(end, r["end"]) - max(begin, r["started"])) for rows in self.jobs.values() for r in rows
            )
            found.append(
                {
                    "begins_at": begin, "failures": len(own), "node_days": self.node_days(begin, end), "up_s": up,
                    "mttd_s": spread(gaps(own, "detected"))["mean"], "mttr_s": spread(gaps(own, "first_step"))["mean"],
                }
            )  # fmt: skip
            begin += WEEK
        return found

    def cost(self, alone: list[Json], days: float) -> Json:
        lost = sum(self.lost_gpu_h().values())
        saved = 0.0
        for incident in [i for i in alone if "first_step" in i["marks"]]:
            took = max(0.0, incident["marks"]["first_step"] - incident["marks"]["fault"])
            saved += (
                max(0.0, self.prices["minutes"] * 60 - took) * sum(self.held(job) for job in names(incident)) / 3600
            )
        spares = self.prices["spares"] * max(self.gpus.values()) * days * 24
        price = self.prices["gpu_hour"]
        return {
            "lost": lost, "saved": saved, "spares": spares, "lost_money": lost * price, "saved_money": saved * price, "spares_money": spares * price,
            "holdfast_money": self.prices["holdfast_hour"] * days * 24,
        }  # fmt: skip

    def incident_form(self, incident: Json) -> Json:
        marks = {name: at for name, at in incident["marks"].items() if name in PHASES}
        begin = incident["marks"].get("fault", incident["marks"].get("detected"))
        rows, last = [], begin
        order = list(PHASES)
        for name, at in sorted(marks.items(), key=lambda item: (max(item[1], begin), order.index(item[0]))):
            at = max(at, begin)  # noqa: PLW2901 - never before the fault
            rows.append([PHASES[name], at - last])
            last = at
        whole = last - begin
        lost = None
        if incident.get("step_before") is not None and incident.get("step_resumed") is not None:
            lost = max(0, self.reached(incident) - self.resumed(incident))
        return {
            "opened_at": self.received(incident["id"]), "closed_at": incident["marks"].get("closed"), "marks": incident["marks"],
            "phases": [{"name": name, "seconds": s, "percent": 100 * s / whole if whole > 0 else 0.0} for name, s in rows], "total_s": whole,
            "step_before": self.reached(incident) if incident.get("step_before") is not None else None,
            "step_resumed": self.resumed(incident) if incident.get("step_resumed") is not None else None, "lost_steps": lost,
        }  # fmt: skip

    def received(self, incident: str) -> float:
        """When the controller heard of the event that opened it: its number stands in the incident's name."""
        return float(self.by_seq[int(incident.removeprefix("ic").partition(".")[0])]["received_at"])

    def attempt(self, incident: Json, number: int) -> Json:
        return next(row for row in self.jobs[names(incident)[0]] if row["number"] == number)

    def reached(self, incident: Json) -> int:
        """The best step that was told while it was open; of one that ended no attempt, when it opened."""
        until = (
            incident["opened_at"] if incident.get("outcome") == "observed" else incident.get("closed_at") or math.inf
        )
        told = self.by_attempt[names(incident)[0], incident["attempt_before"]]
        told = [e for e in told if e["received_at"] <= until and e["event"] in STEPS]
        return max(max(e.get("step") or 0, e.get("last_step") or 0) for e in told if e.get("durable", True))

    def resumed(self, incident: Json) -> int:
        """The step before the first one of the attempt that came after."""
        return int(self.attempt(incident, incident["attempt_after"])["first"]) - 1


def names(incident: Json) -> list[str]:
    return [key["id"] for key in incident.get("jobs", ())]


def cause(incident: Json) -> str:
    return str((incident.get("diagnosis") or {}).get("cause", "unknown"))


def domain(incident: Json) -> str:
    return str((incident.get("diagnosis") or {}).get("domain", "unknown"))


def between(at: float, low: float, high: float) -> float:
    return max(low, min(at, high))


def gaps(incidents: list[Json], mark: str) -> list[float]:
    marks = [i["marks"] for i in incidents]
    return [max(0.0, m[mark] - m["fault"]) for m in marks if "fault" in m and mark in m]


def spread(values: list[float]) -> Json:
    if not values:
        return {"n": 0, "mean": None, "median": None, "p95": None, "maximum": None}
    ranked = sorted(values)
    p95 = ranked[math.ceil(0.95 * len(ranked)) - 1]
    return {"n": len(values), "mean": fmean(values), "median": median(values), "p95": p95, "maximum": ranked[-1]}


def trend(weeks: list[Json], first: float, now: float) -> float | None:
    """Slope of the weekly rate against its mean, by the textbook, over the weeks that were observed as a whole."""
    whole = [week for week in weeks if week["begins_at"] >= first and week["begins_at"] + WEEK <= now]
    rates = [1000 * week["failures"] / week["node_days"] for week in whole]
    if len(rates) < 3:
        return None
    mean = sum(rates) / len(rates)
    if not mean:
        return 0.0
    middle = (len(rates) - 1) / 2
    up = sum((x - middle) * (rate - mean) for x, rate in enumerate(rates))
    return 100 * up / sum((x - middle) ** 2 for x in range(len(rates))) / mean
