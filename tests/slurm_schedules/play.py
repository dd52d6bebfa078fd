"""Plays schedules on one lab or several and has each judged. Called by the tests and by hand."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.errors import RefusedError
from holdfast.lab.waiting import wait_until

from . import checker
from .record import Broken, Evidence, Ran, affected, fences
from .schedule import ON_A_NODE, Drain, Fault, Schedule, draw
from .site import LIMIT_S, SLURMD_TIMEOUT_S, Site, open_site

DRAWN_MAX = 3
"""Schedules that may be drawn for one that counts."""


@dataclass
class Outcome:
    """What many schedules have shown."""

    schedules: int = 0
    """With a fault that affected a job."""
    without_effect: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    affected: int = 0
    not_judged: int = 0
    """Jobs that a killed slurmctld may have forgotten a turn of."""
    requeues: int = 0
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        return (
            f"{self.schedules} schedules ({self.without_effect} more without effect); faults: {faults}; "
            f"{self.jobs} jobs, {self.affected} affected, {self.requeues} requeues, "
            f"{self.not_judged} not judged; {len(self.complaints)} complaints"
        )

    def add(self, seen: Evidence) -> list[str]:
        """Count one; returns its complaints."""
        hit = {name for fault in seen.broken for name in affected(fault, seen.jobs)}
        self.schedules += bool(hit)
        self.without_effect += not hit
        self.faults.update(fault.kind for fault in seen.broken if affected(fault, seen.jobs))
        self.jobs += len(seen.jobs)
        self.affected += len(hit)
        self.requeues += sum(job.restarts for job in seen.jobs)
        self.not_judged += sum(checker.is_slurms_own(job, seen) for job in seen.jobs)
        return checker.judge(seen)


class Run:
    """One schedule on a site."""

    def __init__(self, site: Site, schedule: Schedule) -> None:
        self._site, self._schedule = site, schedule
        self._folder = site.lab.folder / "jobs" / f"s{schedule.number}"
        self._ids: list[str] = []
        self._submitted: list[float] = []
        self._broken: list[Broken] = []
        self._drained = ("", "")
        self._drained_at = 0.0
        self._failed: list[BaseException] = []

    def play(self) -> Evidence:
        """Submit, break, wait for rest, and gather what is seen."""
        began = time.time()
        for job in self._schedule.jobs:
            self._submitted.append(time.time())
            self._ids.append(self._site.submit(job, self._folder))
        deeds: list[Fault | Drain] = [*self._schedule.faults]
        deeds += [self._schedule.drain] if self._schedule.drain else []
        threads = [threading.Thread(target=self._one, args=(deed, time.monotonic())) for deed in deeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failed:
            raise self._failed[0]
        jobs = dict(zip(self._ids, self._schedule.jobs, strict=True))
        unrest = self._site.until_rest(jobs, self._drained[0])
        seen = Evidence(
            jobs=tuple(self._ran(index) for index in range(len(self._ids))),
            broken=tuple(sorted(self._broken, key=lambda fault: fault.began)),
            fenced=fences(self._site.kept.folder / "controller" / "journal.db", began),
            drained=self._drained,
            drained_at=self._drained_at,
            nodes=self._site.nodes(),
            unrest=unrest,
            slurmd_timeout_s=SLURMD_TIMEOUT_S,
        )
        if self._drained[0]:
            self._site.lab.resume(self._drained[0], limit_s=LIMIT_S)
        return seen

    def _ran(self, index: int) -> Ran:
        job, job_id = self._schedule.jobs[index], self._ids[index]
        state, restarts = self._site.last_word(job_id)
        return Ran(
            id=job_id,
            name=job.name,
            ranks=job.ranks,
            limit=job.limit,
            fails=job.shape.startswith("fails"),
            requeue=job.requeue,
            submitted_at=self._submitted[index],
            lines=self._lines(index),
            state=state,
            restarts=restarts,
        )

    def _lines(self, index: int):
        return self._site.lines(self._schedule.jobs[index], self._folder)

    # --- deeds, each in a thread of its own ---

    def _one(self, deed: Fault | Drain, began: float) -> None:
        time.sleep(max(0.0, began + deed.at_s - time.monotonic()))
        try:
            self._drain(deed) if isinstance(deed, Drain) else self._break(deed)
        except BaseException as error:
            self._failed.append(error)

    def _drain(self, drain: Drain) -> None:
        used = {self._node_of(index) for index in range(len(self._ids))}
        idle = [name for name in self._site.lab.facts.names if name not in used]
        node = (self._node_of(drain.job) if drain.job >= 0 else "") or idle[-1]
        self._drained = node, f"mei: schedule {self._schedule.number}"
        self._site.drain(*self._drained)
        self._drained_at = time.time()

    def _break(self, fault: Fault) -> None:
        node = ""
        if fault.kind in ON_A_NODE:
            node = self._running_node(fault.job)
            if not node:
                return
        begin, end = self._site.ways(fault.kind, node)
        if fault.kind.startswith("slurmctld killed"):
            first = self._lines(fault.job)[:1] if fault.kind == "slurmctld killed" else ()
            self._until_saved([*self._submitted, *(line.at for line in first)])
        saved_at = self._site.saved_at() if fault.kind.startswith("slurmctld") else 0.0
        at = time.time()
        try:
            begin()
        except RefusedError:
            return  # another fault has switched the node off
        time.sleep(fault.for_s)
        with contextlib.suppress(RefusedError):
            end()
        self._broken.append(Broken(fault.kind, node, at, time.time(), saved_at))

    def _node_of(self, index: int) -> str:
        """A node on which the job has a task now; empty: none."""
        last = {line.rank: line for line in self._lines(index)}
        return next((line.node for line in last.values() if line.did in {"start", "beat"}), "")

    def _running_node(self, first: int) -> str:
        """A node of this job, or of another one when this does not run."""
        count = len(self._ids)
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            found = [node for step in range(count) if (node := self._node_of((first + step) % count))]
            if found:
                return found[0]
            time.sleep(0.05)
        return ""

    def _until_saved(self, turns: list[float]) -> None:
        """Wait until slurmctld has saved what happened then."""
        wait_until(
            lambda: self._site.saved_at() > max(turns) + checker.CLOCK_S, "slurmctld saves its state", limit_s=LIMIT_S
        )


def play(
    *,
    seed: int,
    count: int,
    first: int = 0,
    prefix: str = "",
    labs: int = 1,
    say: Callable[[str], object] = print,
) -> Outcome:
    """Play until `count` schedules had an effect, on so many labs beside each other; one of them has accounting.

    Ends after the first that has complaints.
    """
    return Play(seed, count, first, prefix, say).on(labs)


class Play:
    """Schedules that are dealt out to labs."""

    def __init__(self, seed: int, count: int, first: int, prefix: str, say: Callable[[str], object]) -> None:
        self._seed, self._count, self._prefix, self._say = seed, count, prefix, say
        self._drawn = [draw(seed, number) for number in range(first, first + DRAWN_MAX * count)]
        self._lock = threading.Lock()
        self._dealt = 0
        self.outcome = Outcome()
        self._failed: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def on(self, labs: int) -> Outcome:
        threads = [threading.Thread(target=self._lab, args=(number,)) for number in range(labs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not self._failed.empty():
            raise self._failed.get()
        return self.outcome

    def _lab(self, number: int) -> None:
        """Play as long as schedules are wanted, on a new lab after one that did not come to rest."""
        try:
            first_job = 1 + 1_000_000 * number
            at_rest = False
            while not at_rest and self._wanted():
                with open_site(accounting=number == 0, prefix=self._prefix, first_job=first_job) as site:
                    at_rest = True
                    while at_rest and (schedule := self._next(site)) is not None:
                        at_rest = self._one(site, schedule)
                first_job += 10_000
        except BaseException as error:
            self._failed.put(error)

    def _wanted(self) -> bool:
        return (
            self.outcome.schedules + self._dealt < self._count
            and bool(self._drawn)
            and not (self.outcome.complaints or not self._failed.empty())
        )

    def _next(self, site: Site) -> Schedule | None:
        """The next schedule that this lab can play."""
        with self._lock:
            if not self._wanted():
                return None
            fits = [one for one in self._drawn if site.accounting == one.needs_accounting]
            fits = fits or [one for one in self._drawn if site.accounting or not one.needs_accounting]
            if not fits:
                return None
            self._drawn.remove(fits[0])
            self._dealt += 1
            return fits[0]

    def _one(self, site: Site, schedule: Schedule) -> bool:
        """Play one, judge it, and say what it has shown; returns whether the lab came to rest."""
        began = time.monotonic()
        try:
            seen = Run(site, schedule).play()
        finally:
            with self._lock:
                self._dealt -= 1
        with self._lock:
            complaints = self.outcome.add(seen)
            said = f"seed {self._seed} schedule {schedule.number}"
            self.outcome.complaints += [f"{said}: {complaint}" for complaint in complaints]
        fired = [
            f"{fault.kind}{f' {fault.node}' if fault.node else ''} -> jobs {', '.join(affected(fault, seen.jobs)) or 'none'}"
            for fault in seen.broken
        ]
        self._say(f"{said} ({time.monotonic() - began:.1f} s): {'; '.join(fired) or 'no fault fired'}")
        if complaints:
            site.is_evidence = True
            self._say(f"  {schedule}\n  files: {site.lab.folder}\n  {seen}")
        return not seen.unrest
