"""The table of who may report what: checked on the contents of every event and beat that is received.

A reporter is what its source says: `agent:NODE` speaks for that node, `launcher:JOB` for that job and the nodes that
the scheduler gave it, `drill:NAME` for nothing but the time of a drill's fault. A token that is bound (`only`) allows
one source; a token that is not allows several, and each of them speaks for its own alone. What belongs to whom is taken
from what the controller has seen and journalled, never from the report. A report may be ahead of the watch by a moment:
a request asks for one fresh look, and until the first look everybody is told to come back. `reports` makes one
`Reporter` for each request.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum

import structlog
from msgspec import structs

from holdfast.api.auth import Identity, Role
from holdfast.controller import Controller
from holdfast.controller.mailbox import address_of, agent_address, launcher_address
from holdfast.controller.state import LEFT_KEPT_S, ShellState
from holdfast.decide.incidents import LOST
from holdfast.decide.ladder import OPERATOR
from holdfast.decide.nodes import FAILED_CHECK
from holdfast.decide.state import occupying
from holdfast.errors import LinkError, RefusedError, WireError
from holdfast.model import events as e
from holdfast.model.bounds import FLOAT_MAX, NAME_MAX, TIME_MAX, check_bounds
from holdfast.model.cluster import JobKey, JobView
from holdfast.model.evidence import EvidenceKind, Finding
from holdfast.model.evidence import Role as FindingRole
from holdfast.model.wire import Beat, SamplePoint, kind_of

_log = structlog.get_logger("holdfast.api")

CATCH_UP_S = 3.0
"""A launcher's request waits so long for the controller's own watch to see what it speaks of."""
LOOK_S = 0.05
AHEAD_S = 900.0
"""A reporter's times may be ahead of the controller's by this much, beyond what its beats have told of its clock."""
LAST_WORDS_S = 60.0
"""So long after a job was seen to have left its node the agent there may have read what it printed at its end."""
LOG_AGAIN_S = 600.0
SOURCES_KEPT = 4096
SOURCE_MAX = 256


class Kind(StrEnum):
    """Kind of reporter: the first word of the source."""

    AGENT = "agent"
    LAUNCHER = "launcher"
    DRILL = "drill"


Check = Callable[["Reporter", e.AnyEvent], Awaitable[None]]
"""Returns when the event is the reporter's to say. Raises RefusedError; LinkError when it cannot be told yet."""


def on_our_clock(event: e.AnyEvent, shift_s: float) -> e.AnyEvent:
    """The event with its times as the controller's clock has them.

    Evidence is compared with what the controller itself has done: by a clock that is behind, each new fault would seem
    older than the node's last repair.

    Args:
        event: a reporter's.
        shift_s: `Offsets.shift_s` of the reporter.
    """
    if not shift_s:
        return event
    event = structs.replace(event, at=max(0.0, event.at - shift_s))
    if isinstance(event, e.FindingSeen) and event.finding.at:
        found = structs.replace(event.finding, at=max(0.0, event.finding.at - shift_s))
        event = structs.replace(event, finding=found)
    return event


class Reporter:
    """One request's reporter, and what it may speak for. See the module.

    Args:
        controller: knows the cluster.
        identity: whose token the request carries.
        source: what the request says it is.

    Raises:
        WireError: not a source.
        RefusedError: the token does not allow this source.
    """

    def __init__(self, controller: Controller, identity: Identity, source: str) -> None:
        kind, colon, name = source.partition(":")
        if not (colon and name and kind in set(Kind)) or len(source) > SOURCE_MAX:
            raise WireError(f"source {source[:SOURCE_MAX]!r} must begin with agent:, launcher: or drill:")
        if identity.only and identity.only != source:
            raise RefusedError(f"the token of {identity.name!r} may report only as {identity.only}")
        if kind == Kind.DRILL and identity.only != source and not identity.may(Role.OPERATOR):
            raise RefusedError(f"{source} reports with an operator's token; that of {identity.name!r} is an agent's")
        self.source = source
        self.kind = Kind(kind)
        self.node = name if self.kind is Kind.AGENT else ""
        self.job_id = name.partition("#")[0] if self.kind is Kind.LAUNCHER else ""
        self.controller = controller
        self._deadline = controller.clock.monotonic() + CATCH_UP_S
        self._looked: bool | None = None
        self._in_use: dict[str, bool] = {}

    @property
    def shell(self) -> ShellState:
        """The cluster as the controller has seen it."""
        return self.controller.shell()

    async def check_itself(self) -> None:
        """Return when the reporter's own node is one of the scheduler's; a launcher's job is looked at where it speaks.

        Raises:
            RefusedError: the scheduler has no such node.
            LinkError: the cluster has not been seen yet.
        """
        if self.kind is Kind.AGENT:
            await self.check_known([self.node], "start its agent with --node and the name that the scheduler gives it")

    async def check_known(self, nodes: Iterable[str], hint: str = "") -> None:
        """Return when the scheduler has all of these nodes. Raises as `check_itself`."""
        wanted = set(nodes)
        if not await self.finds(lambda: wanted <= self.shell.nodes.keys()):
            what = f"the scheduler has no node {min(wanted - self.shell.nodes.keys())!r}"
            raise RefusedError(f"{what}: {hint}" if hint else what)

    async def finds(self, known: Callable[[], bool]) -> bool:
        """Is this known of the cluster, now or after a `look`? Raises as that."""
        if not known():
            await self.look()
        return known()

    async def look(self) -> None:
        """A look at the cluster that began after this request did, once for each request.

        Raises:
            LinkError: the scheduler cannot be read, or has answered in part: what is missing is not known to be absent.
        """
        if self._looked is None:
            self._looked = await self.controller.watch.look_again()
        if not self._looked:
            raise LinkError("the scheduler has answered in part only: come back later")

    async def check_event(self, event: e.AnyEvent) -> e.AnyEvent:
        """The event, when it is this reporter's to say and its fields are within their bounds.

        A host that a log line names stays only where it is one of the reporter's own, see `_own_line`.

        Raises:
            WireError: a field is out of its bounds.
            RefusedError: it is not this reporter's to say.
            LinkError: the controller has not seen yet what it speaks of.
        """
        checks = MAY.get(type(event), {}).get(self.kind)
        if checks is None:
            raise RefusedError(f"{self.source} may not send {kind_of(event)}")
        check_bounds(event)
        event = on_our_clock(self._with_own_ids(event), self.controller.presence.clocks.shift_s(self.source))
        self._check_time(event)
        if isinstance(event, e.FindingSeen) and is_line(event.finding):
            event = structs.replace(event, finding=await self._own_line(event.finding))
        for check in checks:
            await check(self, event)
        return self._of_given_nodes(event)

    def _with_own_ids(self, event: e.AnyEvent) -> e.AnyEvent:
        """The event with ids that only this reporter can give: one that somebody else's will have would silence it."""
        event = structs.replace(event, id=self._own_id(event.id))
        if isinstance(event, e.FindingSeen):
            return structs.replace(event, finding=structs.replace(event.finding, id=self._own_id(event.finding.id)))
        if isinstance(event, e.Escalated) and event.diagnosis is not None:
            judged = tuple(structs.replace(one, finding=self._own_id(one.finding)) for one in event.diagnosis.judged)
            return structs.replace(event, diagnosis=structs.replace(event.diagnosis, judged=judged))
        return event

    def _own_id(self, said: str) -> str:
        return said if said.startswith((f"{self.source}/", f"{self.source}:")) else f"{self.source}/{said}"

    async def _own_line(self, finding: Finding) -> Finding:
        """A finding of log lines: a line may name any host, which is no word of the reporter's about that node."""
        named = finding.place.node
        if not named or named == self.node:
            return finding
        if finding.job is None:
            place = structs.replace(finding.place, node=self.node)
            same = named.partition(".")[0] == self.node.partition(".")[0]
            return structs.replace(finding, place=place, role=finding.role if same else FindingRole.CONTEXT)
        nodes = self.shell.nodes_of(finding.job)
        if named not in nodes and self._looked is None:
            await self.look()
            nodes = self.shell.nodes_of(finding.job)
        if named in nodes:
            return finding
        short = [node for node in nodes if node.partition(".")[0] == named.partition(".")[0]]
        return structs.replace(finding, place=structs.replace(finding.place, node=short[0] if len(short) == 1 else ""))

    def _of_given_nodes(self, event: e.AnyEvent) -> e.AnyEvent:
        """The event without the nodes that a launcher may not speak of any more: what ended its job is heard.

        Of a node that its job has left it tells of the time before alone, and nothing once another job is there.
        """
        if not self.job_id:
            return event
        if isinstance(event, e.FindingSeen) and self._is_given_away(event.finding.place.node, event.finding.at):
            place = structs.replace(event.finding.place, node="")
            return structs.replace(event, finding=structs.replace(event.finding, place=place))
        if isinstance(event, e.Escalated) and event.diagnosis is not None:
            judged = event.diagnosis
            nodes = tuple(node for node in judged.nodes if not self._is_given_away(node, event.at))
            gpus = tuple(gpu for gpu in judged.gpus if not self._is_given_away(gpu.rpartition("/")[0], event.at))
            return structs.replace(event, diagnosis=structs.replace(judged, nodes=nodes, gpus=gpus))
        return event

    def _is_given_away(self, node: str, at: float) -> bool:
        """Had the launcher's job left the node by then, or does another job, and not the launcher's, use it now?"""
        view = self.view()
        if not node or view is None or node in occupying(view):
            return False
        left = self.shell.left_at(view.key, node)
        return (left is not None and at > left) or self._is_in_use(node)

    def _is_in_use(self, node: str) -> bool:
        """Is some job on the node? Asked about a node that the launcher's own has left; one answer for each request."""
        if node not in self._in_use:
            self._in_use[node] = any(node in occupying(view) for view in self.shell.jobs.values())
        return self._in_use[node]

    def _check_time(self, event: e.AnyEvent) -> None:
        now = self.controller.clock.now()
        latest = now + AHEAD_S
        times = [event.at, event.finding.at] if isinstance(event, e.FindingSeen) else [event.at]
        if max(times) > latest:
            if self.kind is not Kind.DRILL and self.controller.presence.clocks.ahead_s(self.source) is None:
                raise LinkError(f"the clock of {self.source} is not known yet: beat first")
            raise RefusedError(
                f"{self.source} says that {kind_of(event)} happens {max(times) - now:.0f} s from now: set its clock"
            )
        if times[-1] < now - self.controller.settings.retain_s <= event.at:
            raise RefusedError(f"{self.source} reports a finding that is older than the journal's memory")

    async def check_beat(self, beat: Beat) -> Beat:
        """The beat without the samples that are not this reporter's to tell.

        Raises:
            WireError: a field is out of its bounds.
            RefusedError: it beats for another node or job.
            LinkError: the controller has not seen its job or node yet.
        """
        check_bounds(structs.replace(beat, samples=[]))
        if self.kind is Kind.LAUNCHER:
            await self.check_job(JobKey(beat.cluster, beat.job, beat.generation))
            await self.check_job_nodes({beat.node})
        elif beat.node != self.node or beat.job or self.kind is Kind.DRILL:
            named = f"node {beat.node!r}{f', job {beat.job}' * bool(beat.job)}"
            raise RefusedError(f"{self.source} may not beat for {named}")
        return structs.replace(beat, samples=[point for point in beat.samples if self._may_plot(point)])

    def _may_plot(self, point: SamplePoint) -> bool:
        if not 0.0 <= point.at <= TIME_MAX or len(point.series) > NAME_MAX or len(point.subject) > NAME_MAX:
            return False
        if point.value is not None and abs(point.value) > FLOAT_MAX:
            return False
        kind, _, name = point.subject.partition(":")
        if kind == "job":
            job = name.partition("(")[0].partition("#")[0]
            return job == self.job_id if self.job_id else any(view.key.id == job for view in self._jobs_here())
        return kind == "node" and bool(name) and name == self.node

    def _jobs_here(self) -> list[JobView]:
        return [view for view in self.shell.jobs.values() if self.node in self.shell.nodes_of(view.key)]

    # --- what a launcher speaks for ---

    def view(self) -> JobView | None:
        """The job of this launcher as the watch sees it."""
        same = [view for view in self.shell.jobs.values() if view.key.id == self.job_id]
        return max(same, key=lambda view: view.key.generation, default=None)

    async def check_job(self, job: JobKey) -> None:
        """Return when this is the launcher's job, which the scheduler has."""
        if job.id != self.job_id:
            raise RefusedError(f"{self.source} may not speak of job {job}")
        if not self.shell.has_job(job) and self.view() is None:
            await self.look()
        view = self.view()
        if view is not None and job.cluster != view.key.cluster:
            raise RefusedError(
                f"this controller's cluster is {view.key.cluster!r}, and {self.source} says {job.cluster!r}: "
                f"set HOLDFAST_CLUSTER={view.key.cluster} where it runs"
            )
        if not self.shell.has_job(job):
            if view is not None:
                raise RefusedError(f"the scheduler has no job {job}")
            raise LinkError(f"no job {self.job_id!r} has been seen here yet")

    async def check_job_nodes(self, named: Iterable[str], *, left_out: Iterable[str] = ()) -> None:
        """Return when the scheduler has given all of these nodes to the launcher's job, now or lately.

        Args:
            named: the nodes.
            left_out: nodes to be kept out of the job, which may also be some that it is kept out of already. Its user
                chooses those, so nothing else can be said of them.
        """
        wanted, out = set(named) - {""}, set(left_out)
        while True:
            view = self.view()
            lately = self.controller.clock.now() - LEFT_KEPT_S
            known = self.shell.nodes_of(view.key, left_after=lately) if view is not None else set()
            foreign = sorted((wanted - known) | (out - known - {*(view.excluded if view is not None else ())}))
            if not foreign:
                return
            if self._looked is None:
                await self.look()
            elif self.controller.clock.monotonic() < self._deadline:
                await asyncio.sleep(LOOK_S)
            elif view is None or not view.nodes:
                raise LinkError(f"the nodes of {self.job_id} are not known yet")
            else:
                named_first = ", ".join(one or "a node without a name" for one in foreign[:3])
                raise RefusedError(
                    f"{self.source} speaks of {named_first}, which the scheduler has not given to its job: "
                    "in pods, set HOLDFAST_NODE from spec.nodeName"
                )


class Refusals:
    """Counts what was not a reporter's to say, and logs each reporter once in a while, not each event."""

    def __init__(self) -> None:
        self._logged: OrderedDict[str, float] = OrderedDict()

    def add(self, controller: Controller, source: str, reasons: Sequence[str]) -> None:
        """Take in why things of one request were refused."""
        kind = source.partition(":")[0]
        controller.figures.not_theirs[kind if kind in set(Kind) else "other"] += len(reasons)
        now = controller.clock.monotonic()
        if now - self._logged.get(source, -LOG_AGAIN_S) < LOG_AGAIN_S:
            return
        self._logged[source] = now
        if len(self._logged) > SOURCES_KEPT:
            self._logged.popitem(last=False)
        _log.warning("a reporter was refused", source=source[:SOURCE_MAX], count=len(reasons), first=reasons[0])


# --- checks, each a sentence of the table ---


async def own_node(reporter: Reporter, event: e.AnyEvent) -> None:
    """Check that the event names the agent's node and no other."""
    named = nodes_named(event)
    if named != {reporter.node}:
        others = ", ".join(sorted(named - {reporter.node})[:3]) or "no node"
        raise RefusedError(f"{reporter.source} may not speak of {others}")


async def own_finding(reporter: Reporter, event: e.AnyEvent) -> None:
    """Check that the finding is about the agent's node; log lines, which move no node, about any node of their job."""
    if not (isinstance(event, e.FindingSeen) and event.finding.job is not None and is_line(event.finding)):
        await own_node(reporter, event)


async def job_here(reporter: Reporter, event: e.AnyEvent) -> None:
    """Check that the scheduler has placed the job that the event names, if any, on the agent's node at that time."""
    job = _job(event)
    if job is None:
        return
    lately = reporter.controller.clock.now() - LEFT_KEPT_S
    if not await reporter.finds(lambda: reporter.node in reporter.shell.nodes_of(job, left_after=lately)):
        raise RefusedError(f"{reporter.source} may not speak of job {job}, which is not on its node")
    left = reporter.shell.left_at(job, reporter.node)
    at = event.finding.at if isinstance(event, e.FindingSeen) else event.at
    clocks = reporter.controller.presence.clocks
    slack_s = max(0.0, (clocks.ahead_s(reporter.source) or 0.0) - clocks.shift_s(reporter.source))
    if left is not None and at > left + LAST_WORDS_S + slack_s:
        raise RefusedError(f"{reporter.source} may not speak of job {job} of a time when it had left the node")


async def own_job(reporter: Reporter, event: e.AnyEvent) -> None:
    """Check that the event names the launcher's job and no other."""
    job = _job(event)
    if job is None:
        raise RefusedError(f"{reporter.source} may send {kind_of(event)} of its own job only, and this one names none")
    await reporter.check_job(job)


async def job_nodes(reporter: Reporter, event: e.AnyEvent) -> None:
    """Check that the event names nodes of the launcher's job alone, or nodes that it leaves out already."""
    out = event.exclude_nodes if isinstance(event, e.Escalated) else ()
    await reporter.check_job_nodes(nodes_named(event), left_out=out)


async def own_condition(reporter: Reporter, event: e.AnyEvent) -> None:
    """Check that the event names a node and clears a condition that launchers themselves find."""
    rule = getattr(event, "rule", "")
    if not nodes_named(event):
        raise RefusedError(f"{reporter.source} names no node")
    if rule not in LAUNCHER_CONDITIONS:
        raise RefusedError(f"{reporter.source} may not clear {rule!r}: launchers clear {min(LAUNCHER_CONDITIONS)}")


async def own_rule(reporter: Reporter, event: e.AnyEvent) -> None:
    """Check that the event speaks of no finding that people or the scheduler alone make."""
    rule = getattr(event, "rule", "")
    if isinstance(event, e.FindingSeen):
        rule = event.finding.rule
    elif isinstance(event, e.Escalated):  # a launcher's engine finds a lost node of its job by itself
        rule = event.diagnosis.cause if event.diagnosis is not None else ""
        rule = "" if rule == LOST else rule
    if rule.startswith(NOT_REPORTERS):
        raise RefusedError(f"{reporter.source} may not speak of {rule!r}, which people or the scheduler say")


async def own_order(reporter: Reporter, event: e.AnyEvent) -> None:
    """Check that the order is one that was handed to this reporter."""
    order = getattr(event, "order", "")
    found = await reporter.controller.journal.orders(order=order, limit=1)
    view = reporter.view() if reporter.job_id else None
    mine = agent_address(reporter.node) if reporter.node else launcher_address(view.key) if view is not None else ""
    if not found or not mine or address_of(found[0].order) != mine:
        raise RefusedError(f"order {order!r} is not one for {reporter.source}")


async def known_target(reporter: Reporter, event: e.AnyEvent) -> None:
    """Check that the scheduler has the node and the job of a drill."""
    await reporter.check_known(nodes_named(event))
    job = _job(event)
    if job is not None and not await reporter.finds(lambda: reporter.shell.has_job(job)):
        raise RefusedError(f"the scheduler has no job {job}")


LAUNCHER_CONDITIONS = frozenset({"straggler.rank"})
"""Findings of launchers that are lifted when their condition is over; all others are agents' to clear."""

NOT_REPORTERS = (OPERATOR, LOST, FAILED_CHECK)
"""Beginnings of the rules of what people order and of what the scheduler says of a node, or confirms."""

_NODE = {Kind.AGENT: (own_node,)}
_RUN = {Kind.LAUNCHER: (own_job, job_nodes)}
_PROGRESS = {Kind.AGENT: (job_here,), Kind.LAUNCHER: (own_job,)}
_OUTCOME = {Kind.AGENT: (own_order,), Kind.LAUNCHER: (own_order,)}

MAY: Mapping[type, Mapping[Kind, tuple[Check, ...]]] = {
    e.AgentAttached: _NODE,
    e.NodeValidated: _NODE,
    e.FindingSeen: {Kind.AGENT: (own_finding, job_here, own_rule), Kind.LAUNCHER: (own_job, job_nodes, own_rule)},
    e.FindingCleared: {Kind.AGENT: (own_node, own_rule), Kind.LAUNCHER: (own_condition, job_nodes)},
    e.OrderDone: _OUTCOME,
    e.OrderFailed: _OUTCOME,
    e.FirstStepDone: _PROGRESS,
    e.StepReached: _PROGRESS,
    e.CheckpointSaved: _PROGRESS,
    e.LauncherAttached: _RUN,
    e.LauncherLapsed: _RUN,
    e.AttemptStarted: _RUN,
    e.AttemptEnded: _RUN,
    e.StacksCaptured: _RUN,
    e.Escalated: {Kind.LAUNCHER: (own_job, job_nodes, own_rule)},
    e.NodeGone: {Kind.LAUNCHER: (job_nodes,)},
    e.DrillFired: {Kind.DRILL: (known_target,)},
}
"""Events that each kind of reporter may send, with their checks. An event that is not here is refused from everybody.

A launcher's `NodeGone` is a claim: `controller.claims` asks the scheduler before the engine gets it.
"""


def _job(event: e.AnyEvent) -> JobKey | None:
    job = event.finding.job if isinstance(event, e.FindingSeen) else getattr(event, "job", None)
    return job if isinstance(job, JobKey) else None


def is_line(finding: Finding) -> bool:
    """Return whether the finding rests on log lines alone."""
    return bool(finding.evidence) and all(piece.kind is EvidenceKind.LOG for piece in finding.evidence)


def nodes_named(event: e.AnyEvent) -> set[str]:
    """Return every node that the event says something of; nodes to be left out are no claim about them."""
    match event:
        case e.FindingSeen():
            found = {event.finding.place.node}
        case e.Escalated():
            blamed = event.diagnosis.nodes if event.diagnosis is not None else ()
            gpus = (gpu.rpartition("/")[0] for gpu in event.diagnosis.gpus) if event.diagnosis is not None else ()
            found = {*blamed, *gpus}
        case e.LauncherAttached() | e.AttemptStarted():
            found = set(event.nodes)
        case e.NodeGone() | e.FindingCleared() | e.DrillFired() | e.AgentAttached() | e.NodeValidated():
            found = {event.node}
        case _:
            found = set()
    return found - {""}
