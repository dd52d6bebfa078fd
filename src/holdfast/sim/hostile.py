"""A hostile reporter: one agent, launcher or user of the simulated shop, which says whatever it likes in good form.

`breaking.py` calls `strikes` at the planned times. Events and beats go through `api.reports`, commands through
`api.operate`, as requests do that carry the token of a node, a job or a user. A lie is aimed at a node and a job,
mostly of others; its fields are drawn by their names from what could hurt. In the calm nobody lies. What must not come
of it is judged in `checkers/hostile.py`. Time is the world's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, get_args

import msgspec
from msgspec import Struct, structs

from holdfast.api.auth import Identity, Role
from holdfast.api.authority import Refusals
from holdfast.api.operate import operate
from holdfast.api.reports import take_batch, take_beat
from holdfast.controller import Controller
from holdfast.errors import HoldfastError
from holdfast.model import events as e
from holdfast.model.answers import CommandRequest
from holdfast.model.cluster import JobKey, JobView, NodeView
from holdfast.model.evidence import EvidenceKind, Finding, Place
from holdfast.model.wire import Batch, Beat, encode
from holdfast.sim.agents import finding
from holdfast.sim.control import ControlPlane
from holdfast.sim.faults import luck
from holdfast.sim.options import EDITION_6
from holdfast.sim.record import Fault
from holdfast.sim.scheduler import Job, Scheduler
from holdfast.sim.world import Node, World

KINDS: tuple[type[e.Event], ...] = get_args(e.AnyEvent)
RULES = (
    "nvidia.xid.79",
    "nvidia.xid.95",
    "check.gpu_trend_ecc",
    "check.fabric_port_down",
    "node.lost",
    "exit.signal.11",
    "hang.step",
    "loss.nan",
    "straggler.rank",
    "nccl.remote",
    "fs.stale",
)
NUMBERS = (0, 1, 2, 17, 5_000, 10**12, 2**53, 2**64 - 1, -1)
BATCHES = 24
FLOOD = 60
"""Lies in a flood; the other batches hold a few."""
SAID = 200
"""So many of the newest events are known to it."""
FORETOLD = 30
"""An id that somebody will use soon is at most this many numbers ahead."""


class Aim(Struct, frozen=True):
    """What a lie is about."""

    node: Node
    job: Job | None
    orders: tuple[str, ...]
    """Ids of the newest orders."""
    said: tuple[e.AnyEvent, ...]
    """The newest events, of everybody."""

    @property
    def job_id(self) -> str:
        """The scheduler's id of the job."""
        return self.job.key.id if self.job is not None else "999"


class Liar:
    """See the module. Who it is comes from the seed: the same one in all strikes of a run."""

    def __init__(self, world: World, scheduler: Scheduler, control: ControlPlane) -> None:
        self._world = world
        self._scheduler = scheduler
        self._control = control
        self._dice = luck(world.options, "liar")
        self._refusals = Refusals()
        self._number = 0
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._shapes: dict[str, msgspec.inspect.StructType] = {}
        options = world.options
        self._may_withdraw = options.seed >= EDITION_6
        """A command of a later day would change what the earlier seeds draw."""
        self.node = self._one_of(list(world.nodes.values()))
        plan = self._one_of(options.jobs)
        self.job_id = plan.id
        self.source = self._one_of((f"agent:{self.node.name}", f"launcher:{plan.id}", f"operator:{plan.user}"))
        self.kind, _, name = self.source.partition(":")
        is_user = self.kind == "operator"
        self.identity = Identity(name, Role.OWNER) if is_user else Identity(name, Role.AGENT, only=self.source)

    def strikes(self, fault: Fault) -> None:
        """Lie now and then, for as long as the fault lasts."""
        self._world.say("lie", fault=fault.id, who=self.source)
        for _ in range(BATCHES):
            self._world.later(fault.for_s * self._dice.random(), self._begin)

    def end(self) -> None:
        """The run is over."""
        for task in self._tasks:
            task.cancel()

    def _begin(self) -> None:
        controller = self._control.active
        if controller is not None and not self._world.calm:
            task = asyncio.ensure_future(self._lie(controller))
            self._tasks[task] = None
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _lie(self, controller: Controller) -> None:
        with contextlib.suppress(HoldfastError):
            orders = await controller.journal.orders(limit=20)
            said = await controller.journal.events(limit=SAID, newest=True)
            ids = tuple(record.order.id for record in orders)
            if self.kind == "operator":
                aim = self._aim(ids, tuple(said))
                asked = self._filled(CommandRequest, aim, id=f"lie-{self._next()}", value="", remedy="")
                await operate(controller, self.identity, self._with_one_target(asked))
                return
            await self._beat(controller, self._own_beat())
            if self._chance(0.3):
                await self._beat(controller, self._filled(Beat, self._aim(ids, tuple(said)), version=1, samples=[]))
            count = FLOOD if self._chance(0.05) else 1 + int(self._dice.random() * 6)
            aims = [self._aim(ids, tuple(said)) for _ in range(count)]
            source = self.source
            if self._chance(0.1):  # as somebody else, who is the one that it is said of
                aims = aims[:1] * count
                source = self._one_of((f"agent:{aims[0].node.name}", f"launcher:{aims[0].job_id}", "drill:x", "sim"))
            events = [msgspec.Raw(encode(self._event(aim))) for aim in aims]
            await take_batch(controller, self.identity, Batch(source=source, events=events), self._refusals)

    # --- beats and commands ---

    def _own_beat(self) -> Beat:
        """What makes its clock known."""
        at = self._world.now() + self._one_of((0.0, 0.0, 5.0, 5000.0))
        if self.kind == "agent":
            return Beat(source=self.source, node=self.node.name, at=at)
        job = self._own_job()
        key = job.key if job is not None else JobKey(self._world.cluster, self.job_id)
        return Beat(source=self.source, cluster=key.cluster, job=key.id, generation=key.generation, at=at)

    async def _beat(self, controller: Controller, beat: Beat) -> None:
        said = structs.replace(beat, source=self.source if self._chance(0.9) else beat.source)
        with contextlib.suppress(HoldfastError):
            await take_beat(controller, self.identity, said, self._refusals)
            self._world.say("lie_taken", who=self.source, node=said.node, job=said.job, detail="beat")

    def _with_one_target(self, asked: CommandRequest) -> CommandRequest:
        kept = self._one_of(("node", "job", "job", "job", "order", "group"))
        empty = {"node": "", "job": None, "order": "", "group": ""}
        return structs.replace(asked, **{name: value for name, value in empty.items() if name != kept})

    # --- events ---

    def _event(self, aim: Aim) -> Any:
        own = [event for event in aim.said if event.source == self.source]
        if own and self._chance(0.1):
            return self._one_of(own)  # once more
        kind = self._one_of(KINDS)
        return self._filled(kind, aim, at=self._at(), source="", seq=0, received_at=0.0)

    def _finding(self, aim: Aim) -> Finding:
        job = self._key(aim) if self._chance(0.6) else None
        return finding(
            self._one_of(RULES),
            id=self._id(aim),
            at=self._at(),
            place=Place(node=self._name(aim), rank=self._one_of((None, 0, 8)), gpu=self._one_of((None, 0, 3))),
            job=job,
            attempt=self._attempt(aim) if job is not None else None,
            kind=self._one_of(list(EvidenceKind)),
        )

    def _aim(self, orders: tuple[str, ...], said: tuple[e.AnyEvent, ...]) -> Aim:
        """A node and the job there, or another one; mostly not its own."""
        own, jobs = self._own_job(), list(self._scheduler.jobs.values())
        if self._chance(0.25):
            return Aim(self.node, self._scheduler.running_on(self.node) if self.kind == "agent" else own, orders, said)
        nodes = list(self._world.nodes.values())
        troubled = [one for one in nodes if one.drained or one.links]
        node = self._one_of(troubled if troubled and self._chance(0.3) else nodes)
        job = self._scheduler.running_on(node) if self._chance(0.7) else None
        return Aim(node, job or (self._one_of(jobs) if jobs else None), orders, said)

    def _own_job(self) -> Job | None:
        own = [job for job in self._scheduler.jobs.values() if job.key.id == self.job_id]
        return own[-1] if own else None

    # --- fields ---

    def _filled(self, kind: type[Any], aim: Aim, **fields: Any) -> Any:
        """A value of this type; a field's name says what it is drawn from, else its type does."""
        made = dict(fields)
        for field in self._shape(kind).fields:
            if field.name not in made:
                made[field.name] = self._field(field.name, field.type, aim)
        return kind(**made)

    def _shape(self, kind: type[Any]) -> msgspec.inspect.StructType:
        """Fields of a struct, with their types."""
        name = kind.__name__
        if name not in self._shapes:
            found = msgspec.inspect.type_info(kind)
            if not isinstance(found, msgspec.inspect.StructType):
                raise TypeError(f"{name} is not a struct")
            self._shapes[name] = found
        return self._shapes[name]

    def _field(self, name: str, kind: msgspec.inspect.Type, aim: Aim) -> Any:
        by_name: dict[str, Callable[[Aim], Any]] = {
            "id": self._id,
            "source": lambda one: f"agent:{one.node.name}",
            "node": self._name,
            "nodes": lambda one: tuple(self._name(one) for _ in range(2)),
            "exclude_nodes": lambda one: tuple(self._name(one) for _ in range(2)),
            "attempt": self._attempt,
            "rule": self._rule,
            "cause": lambda _: self._one_of(RULES),
            "order": lambda one: self._one_of(one.orders or ("c1.1",)),
            "boot_id": lambda one: self._one_of((one.node.boot, "boot")),
            "instance_id": lambda one: self._one_of((one.node.machine, "machine")),
            "cluster": lambda _: self._world.cluster,
            "restart_count": lambda one: one.job.restart_count if one.job is not None else 0,
            "by": lambda _: "",
        }
        if name in by_name and not (name == "node" and isinstance(kind, msgspec.inspect.StructType)):
            return by_name[name](aim)
        return self._of_type(name, kind, aim)

    def _of_type(self, name: str, kind: msgspec.inspect.Type, aim: Aim) -> Any:
        match kind:
            case msgspec.inspect.BoolType():
                return self._chance(0.5)
            case msgspec.inspect.IntType():
                return self._one_of(NUMBERS)
            case msgspec.inspect.FloatType():
                return float(self._one_of(NUMBERS))
            case msgspec.inspect.StrType() if name == "job":
                return self._key(aim).id
            case msgspec.inspect.StrType():
                return "x" * (70_000 if self._chance(0.01) else 1)
            case msgspec.inspect.EnumType():
                return self._one_of([one for one in kind.cls if one is not e.Command.WITHDRAW or self._may_withdraw])
            case msgspec.inspect.UnionType():
                return self._of_type(name, self._one_of(kind.types), aim)
            case msgspec.inspect.VarTupleType():
                return tuple(self._of_type(name, kind.item_type, aim) for _ in range(int(self._dice.random() * 3)))
            case msgspec.inspect.DictType():
                return {}
            case msgspec.inspect.StructType():
                return self._struct(kind.cls, aim)
            case _:
                return None

    def _struct(self, kind: type[Any], aim: Aim) -> Any:
        job = aim.job or next(iter(self._scheduler.jobs.values()), None)
        if kind is JobKey:
            return self._key(aim)
        if kind is Finding:
            return self._finding(aim)
        if kind is NodeView:
            return structs.replace(self._world.view_of(aim.node), alive=self._one_of((None, False)))
        if kind is JobView and job is not None:
            return structs.replace(self._scheduler.view_of(job), restart_count=self._attempt(aim), nodes=())
        return self._filled(kind, aim)

    def _name(self, aim: Aim) -> str:
        """Mostly the node that it is aimed at, else one that nobody has, or none."""
        return aim.node.name if self._chance(0.85) else self._one_of((f"x{self._next()}", self.node.name, ""))

    def _key(self, aim: Aim) -> JobKey:
        if aim.job is not None and self._chance(0.9):
            return aim.job.key
        return JobKey(self._one_of((self._world.cluster, "elsewhere")), self._one_of((self.job_id, "999")))

    def _rule(self, aim: Aim) -> str:
        """One that was found on the node lately, if any was."""
        found = [one.finding for one in aim.said if isinstance(one, e.FindingSeen)]
        there = [one.rule for one in found if one.place.node == aim.node.name]
        return str(self._one_of(there if there and self._chance(0.5) else RULES))

    def _attempt(self, aim: Aim) -> int:
        job = aim.job
        newest = job.attempt.number if job is not None and job.attempt is not None else 0
        return newest if self._chance(0.8) else self._one_of(NUMBERS)

    def _id(self, aim: Aim) -> str:
        """A new one, or one that somebody else will use soon."""
        head, mark, number = self._one_of(aim.said).id.rpartition(".") if aim.said else ("", "", "")
        if not number.isdigit() and aim.said:
            head, mark, number = self._one_of(aim.said).id.rpartition("/")
        if number.isdigit() and self._chance(0.3):
            return f"{head}{mark}{int(number) + 1 + int(self._dice.random() * FORETOLD)}"
        return f"lie-{self._next()}"

    def _at(self) -> float:
        now = self._world.now()
        return now if self._chance(0.8) else self._one_of((now - 5 * 86400.0, now + 4000.0, 0.0, 1e18, -1.0))

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _chance(self, share: float) -> bool:
        return self._dice.random() < share

    def _one_of(self, among: Any) -> Any:
        return among[int(self._dice.random() * len(among))]
