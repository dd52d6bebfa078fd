"""Figures of a Slurm cluster for Prometheus, where Slurm's own metrics are absent (they came with 25.11).

`holdfast slurm-exporter` serves them. Each look is one `squeue` and one `sinfo`, at most every `LOOK_AGAIN_S` seconds
however often it is scraped. Waiting and running times are counted once per job, when a look first shows it started or
ended; what was over before the first look is not counted. Waiting times are counted by user: a user's series is there,
with zeros, one look before its first count, because Prometheus sees no increase in a series that begins at 1. Parsing
is pure; time passes while the tools run.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from holdfast.adapters.slurm.output import time_of
from holdfast.adapters.slurm.tool import Tool
from holdfast.errors import HoldfastError

SQUEUE = ("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%P|%u|%V|%S|%e")
SINFO = ("sinfo", "--noheader", "--Node", "--format=%N|%T")
LOOK_AGAIN_S = 5.0
LOOK_S = 8.0
"""Below the ten seconds that Prometheus waits for a scrape: so `slurm_up` 0 is heard while Slurm is away."""
GAP_S_MAX = 300.0
"""A longer pause between two looks counts as this long: the exporter did not see what was in between."""
USERS_MAX = 200
OTHERS = "(others)"
"""Whose waits are counted together once `USERS_MAX` users were seen."""
BOUNDS_S = (10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 2 * 3600.0, 6 * 3600.0, 86400.0, 3 * 86400.0, 7 * 86400.0,
            14 * 86400.0, 30 * 86400.0)  # fmt: skip
UNAVAILABLE = ("down", "drain", "fail", "maint", "reboot", "unknown", "no_respond", "power", "not_responding")
"""Beginnings of sinfo's states in which a node takes no work."""
STARTED = frozenset({"running", "completing", "suspended", "stopped", "signaling", "stage_out"})
WAITING = frozenset({"pending", "requeued", "requeue_hold", "requeue_fed", "special_exit", "resv_del_hold"})


class QueuedJob(Struct, frozen=True):
    """One line of squeue. Times are Unix seconds, 0.0: not known."""

    id: str
    state: str
    partition: str
    user: str
    submitted: float
    started: float
    ended: float


class Look(Struct, frozen=True):
    """What was seen at one time."""

    at: float
    jobs: Sequence[QueuedJob]
    nodes: dict[str, str]
    """Name -> state."""


def parse_jobs(text: str) -> list[QueuedJob]:
    """Lines of `SQUEUE`. A line of another form is left out: names may hold anything."""
    found = []
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) != 7:
            continue
        job, state, partition, user = words[:4]
        found.append(QueuedJob(job, state.lower(), partition, user, *(time_of(word) for word in words[4:])))
    return found


def parse_nodes(text: str) -> dict[str, str]:
    """Lines of `SINFO`; a node of several partitions comes once. Marks behind a state (`down*`) are taken off."""
    found = {}
    for line in text.splitlines():
        name, mark, state = line.strip().partition("|")
        if name and mark:
            found[name] = state.lower().rstrip("*~#!%$@^-+")
    return found


def look(conf: Path | None = None) -> Look:
    """Look by Slurm's own tools; `conf`: the cluster's slurm.conf, None: the one that Slurm finds by itself.

    Raises:
        HoldfastError: Slurm does not answer.
    """
    jobs, nodes = asyncio.run(_said(Tool(conf)))
    return Look(time.time(), parse_jobs(jobs), parse_nodes(nodes))


async def _said(tool: Tool) -> list[str]:
    # Both to their end, also when one fails: this loop ends with the look, and must leave no half-read process.
    said = await asyncio.gather(
        *(tool.text(argv, limit_s=LOOK_S, again=False) for argv in (SQUEUE, SINFO)), return_exceptions=True
    )
    for one in said:
        if isinstance(one, BaseException):
            raise one
    return [one for one in said if isinstance(one, str)]


class _Times:
    """A histogram of durations."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[next((n for n, bound in enumerate(BOUNDS_S) if seconds <= bound), len(BOUNDS_S))] += 1
        self._sum += seconds

    def into(self, family: HistogramMetricFamily, *labels: str) -> None:
        total, buckets = 0, []
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric(labels, buckets, self._sum)


class SlurmCollector(Collector):
    """Turns looks (`looks` takes one now) into families. Asked by one scrape at a time."""

    def __init__(self, looks: Callable[[], Look], *, look_again_s: float = LOOK_AGAIN_S) -> None:
        self._looks = looks
        self._look_again_s = look_again_s
        self._last: Look | None = None
        self._tried_at = -LOOK_AGAIN_S
        self._started: set[tuple[str, float]] = set()
        self._over: set[tuple[str, float]] = set()
        self._waits: dict[str, _Times] = {}
        self._new: list[tuple[str, float]] = []
        """Waits of users whose series the last look began: user and seconds, counted at the next look."""
        self._runs = _Times()
        self._lost: Counter[str] = Counter()
        self._failures = 0
        self._why = ""

    def collect(self) -> Iterator[Metric]:
        """All families; when Slurm does not answer, `slurm_up` 0 and the counters only."""
        up = self._look()
        yield GaugeMetricFamily("slurm_up", "1 while squeue and sinfo answer.", float(up))
        yield CounterMetricFamily("slurm_look_failures", "Looks that failed.", value=self._failures)
        if up and self._last is not None:
            yield from self._now(self._last)
        text = "From submission to start, of jobs that started."
        waits = HistogramMetricFamily("slurm_job_wait_seconds", text, labels=["user"])
        for user, times in sorted(self._waits.items()):
            times.into(waits, user)
        yield waits
        runs = HistogramMetricFamily("slurm_job_run_seconds", "From start to end, of jobs that ended.")
        self._runs.into(runs)
        yield runs
        lost = CounterMetricFamily(
            "slurm_node_unavailable_seconds", "Node-seconds in states that take no work.", labels=["state"]
        )
        for state, seconds in sorted(self._lost.items()):
            lost.add_metric([state], seconds)
        yield lost

    def _look(self) -> bool:
        now = time.monotonic()
        if now - self._tried_at < self._look_again_s:
            return not self._why and self._last is not None
        self._tried_at = now
        try:
            look = self._looks()
        except (HoldfastError, OSError) as error:
            self._failures += 1
            self._why = str(error)
            return False
        self._why = ""
        self._count(look)
        self._last = look
        return True

    def _count(self, look: Look) -> None:
        before = self._last
        started = {(job.id, job.started): job for job in look.jobs if job.started and _has_started(job)}
        over = {
            (job.id, job.ended): job
            for job in look.jobs
            if _is_over(job) and _has_started(job) and job.started and job.ended
        }
        known = set(self._waits)
        for user, waited in self._new:
            self._waits[user].add(waited)
        self._new = []
        for job in look.jobs:
            self._waits.setdefault(self._counted_as(job.user), _Times())
        if before is not None:
            for key in started.keys() - self._started:
                user = self._counted_as(started[key].user)
                waited = max(0.0, started[key].started - started[key].submitted)
                if user in known:
                    self._waits[user].add(waited)
                else:
                    self._new.append((user, waited))
            for key in over.keys() - self._over:
                self._runs.add(max(0.0, over[key].ended - over[key].started))
            passed = min(GAP_S_MAX, max(0.0, look.at - before.at))
            for state in look.nodes.values():
                if state.startswith(UNAVAILABLE):
                    self._lost[state] += passed  # type: ignore[assignment]
        self._started, self._over = set(started), set(over)

    def _counted_as(self, user: str) -> str:
        return user if user in self._waits or len(self._waits) < USERS_MAX else OTHERS

    def _now(self, look: Look) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("slurm_jobs", "Jobs in the queue.", labels=["partition", "state"])
        for (partition, state), count in sorted(Counter((job.partition, job.state) for job in look.jobs).items()):
            jobs.add_metric([partition, state], count)
        yield jobs
        ages: dict[tuple[str, str], float] = {}
        for job in look.jobs:
            if job.state in WAITING and job.submitted:
                key = (job.partition, job.user)
                ages[key] = max(ages.get(key, 0.0), look.at - job.submitted)
        oldest = GaugeMetricFamily(
            "slurm_job_pending_age_seconds_max",
            "Age of the oldest pending job.",
            labels=["partition", "user"],
        )
        for (partition, user), age in sorted(ages.items(), key=lambda one: -one[1])[:USERS_MAX]:
            oldest.add_metric([partition, user], age)
        yield oldest
        nodes = GaugeMetricFamily("slurm_nodes", "Nodes by state.", labels=["state"])
        for state, count in sorted(Counter(look.nodes.values()).items()):
            nodes.add_metric([state], count)
        yield nodes


def _has_started(job: QueuedJob) -> bool:
    # A job that was cancelled while it waited gets the time of its end as its start.
    never_ran = job.state.startswith("cancelled") and job.started == job.ended
    return job.state not in WAITING and not never_ran


def _is_over(job: QueuedJob) -> bool:
    return job.state not in WAITING and job.state not in STARTED and job.state != "configuring"
