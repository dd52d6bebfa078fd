"""A job, a controller and a breaker in memory, on virtual time, for the shells of drills."""

import asyncio
import json
from pathlib import Path

import pytest

from holdfast.adapters.clock import VirtualClock
from holdfast.drill.runner import Site
from holdfast.errors import NotFoundError
from holdfast.failpoint import command
from holdfast.model.cluster import JobKey, JobView, NodeView
from holdfast.model.evidence import Diagnosis, Domain, Remedy
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, Mark, NodeRecord

JOB = JobKey("c", "7")


class World:
    """A controller that recovers from every fault that it is told of, one virtual second later."""

    def __init__(self, folder: Path, clock):
        self.clock = clock
        self.folder = folder
        self.told = []
        self.calls = []
        self.orders_given = []
        self.found = []
        self.answers = True
        self.cause = "exit.signal.9"
        attempt = AttemptRecord(number=2, nodes=("node01", "node02"), ranks=4, started_at=1.0, durable_step=40)
        view = JobView(key=JOB, job_dir=str(folder), drill_ok=True)
        self.record = JobRecord(key=JOB, view=view, attempts=[attempt])
        self.node_records = [NodeRecord(name=f"node{n:02d}", view=NodeView(name=f"node{n:02d}")) for n in (1, 2, 3)]

    # --- Eyes ---

    async def job(self, key):
        if key != JOB:
            raise NotFoundError(f"no job {key}")
        return self.record

    async def nodes(self):
        return self.node_records

    async def incidents(self, *, incident="", job="", node="", limit=1000):
        fits = (
            one
            for one in reversed(self.found)
            if incident in {"", one.id} and (not job or job in map(str, one.jobs)) and (not node or node in one.nodes)
        )
        return list(fits)[:limit]

    async def orders(self, **_):
        return self.orders_given

    async def wait(self, after, timeout_s):
        await asyncio.sleep(timeout_s)
        return after

    async def ingest(self, source, events):
        self.told += events
        if self.answers:
            asyncio.get_running_loop().call_later(1.0, self.recover, events[0])

    async def step_times(self, key, attempt):
        return [0.2, 0.2, 5.0]

    def recover(self, fault):
        self.record.attempts.append(
            AttemptRecord(number=3, nodes=("node01", "node02"), ranks=4, started_at=2.0, durable_step=50)
        )
        now = self.clock.now()
        self.found.append(
            IncidentRecord(
                id="i1",
                opened_at=now - 0.9,
                closed_at=now,
                jobs=[JOB],
                nodes=[fault.node],
                drill=fault.drill,
                outcome="recovered",
                diagnosis=Diagnosis(
                    cause=self.cause,
                    domain=Domain.UNKNOWN,
                    nodes=(fault.node,),
                    ranks=() if fault.rank is None else (fault.rank,),
                ),
                remedies=[Remedy.RESTART_IN_PLACE],
                marks={Mark.FAULT: fault.at, Mark.DETECTED: fault.at + 0.1, Mark.PROVEN: fault.at + 1.0},
                jobs_done=True,
                step_before=47,
                step_resumed=30,
            )
        )

    # --- FaultPort ---

    deeds = frozenset({"kmsg", "power_off", "power_on", "cut", "heal", "fill_disk", "free_disk"})

    async def do(self, deed, node="", **facts):
        assert deed in self.deeds
        self.calls.append((deed, node, *facts.values()))

    # --- the ranks ---

    async def obey(self):
        """Mark every command as fired half a second after it came, as a rank would."""
        while True:
            for path in (self.folder / "drill").glob("*.json"):
                what = command.decode(path.read_bytes())
                fired = path.parent / command.fired_name(what.id, what.ranks[0])
                if not fired.exists():
                    await asyncio.sleep(0.5)
                    fired.write_text(json.dumps({"at": self.clock.now(), "pid": 1, "step": what.at_step}))
            await asyncio.sleep(0.1)


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def world(tmp_path, clock):
    return World(tmp_path, clock)


@pytest.fixture
def site(world, clock):
    return Site(eyes=world, job=JOB, clock=clock, breaker=world, step_s=0.1)
