"""Incidents: one underlying trouble each, from first evidence to proven recovery, with diagnosis and timeline.

`findings.py` opens and merges them; the flows of jobs and nodes attach themselves, and settle their side when they are
through; the incident closes when no side is open. Times are those of the events, as the engine sees them.
"""

from __future__ import annotations

import functools

from holdfast.decide import ladder, waits
from holdfast.decide.diagnosis import DiagnosisContext, diagnose
from holdfast.decide.records import incident as incident_record
from holdfast.decide.records import job as job_record
from holdfast.decide.records.turn import Turn
from holdfast.decide.state import Drill
from holdfast.detect.meaning import Trait, has
from holdfast.model import story
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Diagnosis, Domain, Finding, Role, Severity
from holdfast.model.policy import Trouble
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, JobState, Mark, NodeRecord

CONTEXT_MAX = 24
"""Context findings kept per job and per node."""
CONTEXT_S = 1800.0
"""How far back context is taken into a new incident: diagnosis looks no further for hardware evidence."""
DRILL_S = 900.0
"""A drill's fault is what an incident is about when it came at most this long before: a hang takes up to 540 s."""
DRILLS_MAX = 32
FAULT_BEFORE_S = 60.0
"""Evidence older than this before the known start of the fault does not move its start: it may be of something else."""
SEEN_MAX = 4096
TOLD_EACH = 4
"""Nodes of one incident of which each further one is told."""
NODES_MIN = 3
"""Fewer losses are a coincidence, or one job's doing."""
SHARE = 0.1
"""And at least so much of the domain: three of a row's 500 nodes say nothing about the row."""
SHARED = frozenset({Trouble.NODE_LOST, Trouble.NETWORK, Trouble.PLATFORM})
"""Troubles that a rack or switch gives to all of its nodes; for others the rule must be the same, too."""
LOST = "node.lost"
AWAY_S = 8 * 3600.0
"""A night without power is waited for. After it each node is a case of its own; the brake slows what is many."""


def is_new(turn: Turn, finding: Finding) -> bool:
    """False when this very finding has been handled before, by whichever way it came."""
    seen = turn.state.seen
    if finding.id in seen:
        return False
    seen[finding.id] = None
    if len(seen) > SEEN_MAX:
        del seen[next(iter(seen))]
    return True


def remember(turn: Turn, about: str, finding: Finding) -> None:
    """Keep evidence that is no reason to act by itself: what comes later may make it the root."""
    kept = turn.state.context.setdefault(about, [])
    kept.append(finding)
    if len(kept) > CONTEXT_MAX:
        del kept[0]


def recall(turn: Turn, about: str) -> list[Finding]:
    """Remembered evidence that is recent enough."""
    kept = turn.state.context.get(about)
    return [finding for finding in kept if turn.now - finding.at <= CONTEXT_S] if kept else []


def add(turn: Turn, incident: IncidentRecord, finding: Finding) -> None:
    """Add evidence and tell of it, unless it is known or there is too much of it."""
    if not incident_record.keep(turn, incident, finding) or finding.role not in {Role.ROOT, Role.CASCADE}:
        return
    if not incident.drill:
        _date(turn, incident, finding)
    if len(incident.findings) <= 12:
        turn.tell(incident, f"Seen: {story.of_finding(finding)}.")


def _date(turn: Turn, incident: IncidentRecord, finding: Finding) -> None:
    """The fault is as old as the oldest of what tells of it, and a wait that is reported at its end began before."""
    said = first_said(incident, turn.now)
    if finding.at >= said - FAULT_BEFORE_S:
        said = min(said, finding.at)
        began = min(said, max(finding.at - waits.waited_s(finding), _began(turn, finding)))
        incident_record.dated(incident, said, began)


def _began(turn: Turn, finding: Finding) -> float:
    """When the attempt began that it is of: nothing of it can have waited before."""
    job = turn.job(finding.job) if finding.job is not None else None
    attempt = job.attempt if job is not None else None
    return attempt.started_at if attempt is not None and attempt.number == finding.attempt else 0.0


def first_said(incident: IncidentRecord, otherwise: float) -> float:
    """When its evidence was first reported: what a judgement of order goes by."""
    return incident.said_at or incident.marks.get(Mark.FAULT, otherwise)


def open_new(turn: Turn, finding: Finding) -> IncidentRecord:
    """A new trouble, with its first evidence."""
    incident = incident_record.create(turn, finding)
    add(turn, incident, finding)
    return incident


def attach_job(turn: Turn, incident: IncidentRecord, job: JobRecord) -> None:
    """The trouble concerns this job: its evidence joins, and the incident waits for it."""
    if job.key in incident.jobs_open:
        return
    incident_record.waits_for_job(turn, incident, job)
    attempt = job.attempt
    for finding in recall(turn, job.about):
        # What an earlier attempt left behind was explained then; this one has its own trouble.
        if finding.attempt is None or attempt is None or finding.attempt >= attempt.number:
            add(turn, incident, finding)
    _match_drill(turn, incident, job.about, job.view.nodes)


def attach_node(turn: Turn, incident: IncidentRecord, node: NodeRecord) -> None:
    """The trouble concerns this node: the incident waits until it is well or out of service."""
    if not incident_record.waits_for_node(turn, incident, node):
        return
    for finding in recall(turn, node.about):
        add(turn, incident, finding)
    _match_drill(turn, incident, "", (node.name,))


def open_of_job(turn: Turn, job: JobRecord) -> list[IncidentRecord]:
    """Open incidents that wait for this job, oldest first."""
    ids = turn.index.incidents_of.get(job.about)
    if not ids:
        return []
    found = [turn.state.incidents[i] for i in ids]
    return sorted((i for i in found if job.key in i.jobs_open), key=lambda i: (i.opened_at, i.id))


def job_settled(turn: Turn, incident: IncidentRecord, job: JobRecord, outcome: str, why: str) -> None:
    """This job's side of the incident is through. A job that is left alone goes on to wait for its other trouble."""
    if job.key not in incident.jobs_open:
        return
    incident_record.job_settled(turn, incident, job, outcome, why)
    others = open_of_job(turn, job) if job.state is JobState.WATCHING and not job.incident else []
    if others:
        job_record.governed(turn, job, others[-1].id)
        turn.timers.start(job.timer, turn.policy_of(job).waits.propose_s, job.incident)


def judge(turn: Turn, incident: IncidentRecord, job: JobRecord | None) -> Diagnosis:
    """Choose the cause from the evidence so far, write it down, and tell people when it is new to them."""
    before = incident.diagnosis
    if before is not None and before.cause == ladder.DOMAIN_LOST:
        return before
    attempt = _attempt_of(incident, job)
    made = _diagnose(incident, job, attempt)
    is_asked_for = before is not None and has(before.cause, Trait.COMMAND) and is_asked(incident, _since(attempt))
    if before is not None and (is_asked_for or _weaker(made, before)):
        return before
    incident_record.diagnosed(turn, incident, made)
    turn.stamp(incident, Mark.DIAGNOSED)
    if before is None or _is_news(before, made):
        word = "Diagnosis" if before is None else "On further evidence"
        turn.tell(incident, f"{word}: {story.of_diagnosis(made)}")
        name = job.name if job is not None else ", ".join(incident.nodes[:3])
        turn.notify(
            incident.id,
            Severity.WARNING,
            f"{name}: {made.clause}",
            made.story or story.of_diagnosis(made),
            job=job.key if job is not None else None,
            node=made.nodes[0] if made.nodes else "",
        )
    return made


def is_asked(incident: IncidentRecord, since: float) -> bool:
    """Is it about a person's command that came since then?"""
    return any(has(finding.rule, Trait.COMMAND) and finding.at >= since for finding in incident.findings)


def _since(attempt: AttemptRecord | None) -> float:
    """When the attempt began: a command of before has ended an earlier one, and explains nothing of this."""
    return attempt.started_at if attempt is not None else 0.0


def _is_news(before: Diagnosis, made: Diagnosis) -> bool:
    """Is it another diagnosis to people? The same cause on yet more nodes is, when their number has doubled."""
    if before.cause != made.cause or before.ranks != made.ranks or not set(before.nodes) <= set(made.nodes):
        return True
    few = len(made.nodes) <= TOLD_EACH and before.nodes != made.nodes
    return few or len(before.nodes).bit_length() != len(made.nodes).bit_length()


def at_first_look(incident: IncidentRecord, job: JobRecord) -> Diagnosis:
    """What `judge` would say now. Nothing is written down and nobody is told: the evidence has not settled."""
    return _diagnose(incident, job, _attempt_of(incident, job))


def _weaker(made: Diagnosis, before: Diagnosis) -> bool:
    return made.cause == "unknown" and before.cause != "unknown"


def _diagnose(incident: IncidentRecord, job: JobRecord | None, attempt: AttemptRecord | None) -> Diagnosis:
    progress_at = max(attempt.durable_at, attempt.first_step_at) if attempt is not None else 0.0
    context = DiagnosisContext(
        job=job.key if job is not None else None,
        attempt=attempt.number if attempt is not None else None,
        nodes=attempt.nodes if attempt is not None else (),
        ranks=ranks_by_node(attempt) if attempt is not None else {},
        progress_at=progress_at if progress_at < first_said(incident, 0.0) else 0.0,
        ended_at=attempt.ended_at if attempt is not None else 0.0,
        no_job=job is None,
    )
    told = [f for f in incident.findings if f.at >= _since(attempt) or not has(f.rule, Trait.COMMAND)]
    made = diagnose(_last_seen(told), context)
    if made.cause != "unknown":
        return made
    # Trends, warnings and people's words are no candidates of a root cause, yet they are why this incident is open.
    first = incident.findings[0]
    if not (first.predicts or first.role is Role.ROOT or first.rule.startswith("straggler.")):
        return made
    return Diagnosis(
        cause=first.rule,
        domain=first.domain,
        summary=first.summary or first.rule,
        confidence=first.confidence,
        nodes=(first.place.node,) if first.place.node else (),
        ranks=(first.place.rank,) if first.place.rank is not None else (),
        remedy=first.remedy,
        fingerprint=first.recurs_as,
    )


def _last_seen(findings: list[Finding]) -> list[Finding]:
    """A trouble that came back is judged by its last time: evidence that came late explains that one, not the first."""
    last: dict[tuple[str, JobKey | None], int] = {}
    for finding in findings:
        print_of = (finding.recurs_as, finding.job)
        last[print_of] = max(last.get(print_of, 0), finding.attempt or 0)
    return [f for f in findings if f.attempt is None or f.attempt == last[f.recurs_as, f.job]]


def ranks_by_node(attempt: AttemptRecord) -> dict[str, tuple[int, ...]]:
    """Which ranks run where: equal blocks in the order of the nodes, as torchrun and the launcher place them."""
    if not attempt.nodes or attempt.ranks % len(attempt.nodes):
        return {}
    return _blocks(attempt.nodes, attempt.ranks // len(attempt.nodes))


@functools.lru_cache(maxsize=4)
def _blocks(nodes: tuple[str, ...], each: int) -> dict[str, tuple[int, ...]]:
    """Computed once per attempt, however often its incident is judged: it is as long as the job is large."""
    return dict(zip(nodes, _ranks(len(nodes), each), strict=True))


@functools.lru_cache(maxsize=4)
def _ranks(count: int, each: int) -> tuple[tuple[int, ...], ...]:
    """The ranks of a job's first node, its second and so on. Its attempts share them, wherever they run."""
    return tuple(tuple(range(i * each, (i + 1) * each)) for i in range(count))


def node_of_rank(attempt: AttemptRecord | None, rank: int) -> str:
    """The node of a rank; empty when it cannot be told."""
    if attempt is None or not attempt.nodes or not attempt.ranks or attempt.ranks % len(attempt.nodes):
        return ""
    place = rank // (attempt.ranks // len(attempt.nodes))
    return attempt.nodes[place] if 0 <= place < len(attempt.nodes) else ""


def _attempt_of(incident: IncidentRecord, job: JobRecord | None) -> AttemptRecord | None:
    """The newest attempt that this incident ended, else the newest."""
    if job is None:
        return None
    return next((a for a in reversed(job.attempts) if a.incident == incident.id), job.attempt)


def drill_fired(turn: Turn, drill: Drill) -> None:
    """Keep the true time of a fault; an incident that is open already and fits takes it at once."""
    drills = turn.state.drills
    drills.append(drill)
    if len(drills) > DRILLS_MAX:
        del drills[0]
    # A node's trouble is the node's first and the job's a moment later: either may be known already.
    known = turn.index.incidents_of
    for incident_id in sorted({*known.get(drill.job, ()), *known.get(f"node:{drill.node}", ())}):
        incident = turn.state.incidents[incident_id]
        if not incident.drill and -1.0 <= incident.opened_at - drill.at <= DRILL_S:
            incident_record.is_drill(turn, incident, drill)
            return


def _match_drill(turn: Turn, incident: IncidentRecord, job: str, nodes: tuple[str, ...]) -> None:
    if incident.drill:
        return
    for drill in reversed(turn.state.drills):
        fits = (job and drill.job == job) or (drill.node and drill.node in nodes)
        if fits and -1.0 <= incident.opened_at - drill.at <= DRILL_S:
            incident_record.is_drill(turn, incident, drill)
            return


def domain_keys(node: NodeRecord, finding: Finding) -> list[str]:
    """The failure domains by which this fault is merged with others: the node's switch, for losses its parent too."""
    path = node.view.topology
    if not path:
        return []
    trouble = ladder.trouble_of(finding)
    if trouble not in SHARED:
        return [f"{path}|{finding.rule}"]
    parent = path.rpartition("/")[0]
    return [f"{path}|{trouble}", *([f"{parent}|{trouble}"] if parent else [])]


def path_of(incident: IncidentRecord | None) -> str:
    """The domain that the incident is about; empty when it is about nodes or jobs."""
    diagnosis = incident.diagnosis if incident is not None else None
    if diagnosis is None or diagnosis.cause != ladder.DOMAIN_LOST:
        return ""
    return diagnosis.fingerprint.partition("|")[2]


def _is_below(node: NodeRecord, path: str) -> bool:
    return node.view.topology == path or node.view.topology.startswith(f"{path}/")


def is_lost(node: NodeRecord) -> bool:
    """Is its loss all that is held against it?"""
    return bool(node.findings) and all(rule.startswith(LOST) for rule in node.findings)


def _members(turn: Turn, incident: IncidentRecord, path: str) -> list[NodeRecord]:
    known = (turn.state.nodes.get(name) for name in incident.nodes)
    return [node for node in known if node is not None and _is_below(node, path)]


def _away(incident: IncidentRecord, members: list[NodeRecord]) -> list[NodeRecord]:
    return [node for node in members if node.incident == incident.id and is_lost(node)]


def judge_domain(turn: Turn, incident: IncidentRecord, node: NodeRecord, finding: Finding) -> bool:
    """Does this loss make the incident one of a whole domain? True when it has just become that.

    The narrowest domain that holds the losses is named; the incident's diagnosis is that from then on.
    """
    place = node.view.topology
    if not place or not finding.rule.startswith(LOST) or path_of(incident):
        return False
    for path in (place, place.rpartition("/")[0]):
        lost = [known for known in _members(turn, incident, path) if known is node or is_lost(known)] if path else []
        if node not in lost and path:
            lost.append(node)
        if len(lost) < NODES_MIN:
            continue
        all_nodes = sum(1 for known in turn.state.nodes.values() if _is_below(known, path))
        if len(lost) >= SHARE * all_nodes:
            _declare(turn, incident, path, lost, all_nodes)
            return True
    return False


def _declare(turn: Turn, incident: IncidentRecord, path: str, lost: list[NodeRecord], all_nodes: int) -> None:
    summary = f"{path} has failed: {len(lost)} of its {all_nodes} nodes were lost together"
    diagnosis = Diagnosis(
        cause=ladder.DOMAIN_LOST,
        domain=Domain.NETWORK,
        summary=summary,
        confidence=0.9,
        nodes=tuple(node.name for node in lost),
        restart_helps=True,
        fingerprint=f"{ladder.DOMAIN_LOST}|{path}",
        story=f"{summary}. What they share is at fault, not they: they are not fenced one by one, and count as well "
        "again when they are back. Look at the switch, the rack or its power.",
    )
    incident_record.diagnosed(turn, incident, diagnosis)
    turn.stamp(incident, Mark.DIAGNOSED)
    turn.tell(incident, f"Diagnosis: {summary}.")
    turn.notify(incident.id, Severity.ERROR, f"{path} has failed", diagnosis.story)


def waits_for_domain(turn: Turn, node: NodeRecord, incident: IncidentRecord | None) -> bool:
    """Is the node away because of its domain, which is not back yet?"""
    path = path_of(incident)
    if incident is None or not path or not _is_below(node, path) or not is_lost(node):
        return False
    if turn.now - incident.opened_at > AWAY_S:
        return False
    members = _members(turn, incident, path)
    away = {known.name for known in _away(incident, members)} | {node.name}
    return 2 * len(away) > len(members)  # with half of them back it is the rest that has a trouble of its own
