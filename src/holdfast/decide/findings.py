"""Where evidence goes: into an open incident, a new one, or into memory until something happens that it explains.

`engine.py` hands `FindingSeen` and `NodeGone` in; `jobs.py` brings what it concludes from ends of attempts. A finding
acts at most once: late ones join the incident of their own attempt, repeated ones are dropped, old ones about a node
that has since been returned are stale. Only its own time and the event's count here.
"""

from __future__ import annotations

from holdfast.decide import incidents, ladder, nodes, recovery, restart
from holdfast.decide.records import job as job_record
from holdfast.decide.records import node as node_record
from holdfast.decide.records.incident import OBSERVED
from holdfast.decide.records.turn import Turn
from holdfast.detect.meaning import Trait, has
from holdfast.model import events as e
from holdfast.model import story
from holdfast.model.evidence import Domain, Evidence, EvidenceKind, Finding, Place, Remedy, Role, Severity
from holdfast.model.records import Authority, IncidentRecord, JobRecord, JobState, NodeRecord, NodeState

CORRELATION_S = 120.0
"""Faults of one failure domain that come within this time are one trouble."""
_IGNORED = frozenset({Role.BENIGN, Role.PROGRESS, Role.CHECKPOINT})
_ACTS_FROM_LOGS = ("hang.", "straggler.", "loss.", "node.", "exit.", "hyperpod.", "checkpoint.no_space")
"""Rules that are judgements of a detector, whatever their evidence is made of, or our own checkpoint library's word."""
_NOT_BACK = frozenset({JobState.STOPPING, JobState.DIAGNOSING, JobState.HELD})
LATE_SLACK_S = 1.0
"""Clocks differ: evidence counts as older than something only when it is older by more than this."""


def seen(turn: Turn, event: e.FindingSeen) -> None:
    """A detector, agent or launcher reports something."""
    finding = event.finding
    if finding.role in _IGNORED or not incidents.is_new(turn, finding):
        return
    job = _job_of(turn, finding)
    if _is_straggler(finding) and job is not None:
        _job_fault(turn, job, finding)
    elif finding.role is Role.ROOT and ladder.wants_node(finding) and not finding.is_rank_log:
        node_fault(turn, finding)
    elif job is None:
        if finding.place.node:
            incidents.remember(turn, f"node:{finding.place.node}", finding)
    elif (finding.role in {Role.ROOT, Role.CASCADE} and _acts(finding)) or _concerns_recovery(turn, job, finding):
        _job_fault(turn, job, finding)
    else:
        incidents.remember(turn, job.about, finding)


def _is_straggler(finding: Finding) -> bool:
    return finding.rule.startswith("straggler.")


def _job_of(turn: Turn, finding: Finding) -> JobRecord | None:
    """The job it speaks of; of a node's evidence the only job there."""
    if finding.job is not None:
        return turn.job(finding.job)
    names = turn.index.jobs_on.get(finding.place.node) if finding.place.node else None
    if names and len(names) == 1:
        return turn.state.jobs[next(iter(names))]
    return None


def _acts(finding: Finding) -> bool:
    """May it start a recovery by itself? Lines of logs wait until something happens that they explain."""
    if finding.rule.startswith(_ACTS_FROM_LOGS) or not finding.evidence or finding.predicts:
        return True
    return any(piece.kind is not EvidenceKind.LOG for piece in finding.evidence)


def _concerns_recovery(turn: Turn, job: JobRecord, finding: Finding) -> bool:
    """Is it evidence about an attempt that an open incident has ended or is ending?"""
    attempt = job.numbered(finding.attempt) or job.attempt
    return attempt is not None and attempt.incident in turn.state.incidents


def _job_fault(turn: Turn, job: JobRecord, finding: Finding) -> None:
    """Evidence about one of the job's attempts: the current one is acted on, an older one is only explained."""
    current = job.attempt
    number = finding.attempt
    if number is None and current is not None and _older_by_time(job, finding) and len(job.attempts) > 1:
        number = job.attempts[-2].number
    attempt = current if number is None else job.numbered(number)
    if attempt is None and number is not None:
        if current is None or number > current.number:
            incidents.remember(turn, job.about, finding)  # it overtook its attempt's start: see `overtook`
        return
    known = turn.state.incidents.get(attempt.incident) if attempt is not None else None
    if attempt is not None and attempt is not current:
        if known is not None:
            _refine(turn, known, job, finding)
        return
    if attempt is not None and attempt.incident and known is None:
        if attempt.ended_at:
            return  # the incident that ended this attempt is closed: nothing is left to be done about it
        job_record.ends_by(job, "")  # what was told of before is over, and the attempt lives: this is something new
    if known is not None and _already_handled(turn, known, job, finding):
        return
    if not _may_begin(finding):
        if known is not None:
            _refine(turn, known, job, finding)
        return
    job_fault(turn, job, finding, known)


def _may_begin(finding: Finding) -> bool:
    return _is_straggler(finding) or (finding.role in {Role.ROOT, Role.CASCADE} and _acts(finding))


def overtook(turn: Turn, job: JobRecord) -> None:
    """The newest attempt has just become known: what was said of it before that is acted on now."""
    attempt = job.attempt
    kept = turn.state.context.get(job.about)
    if attempt is None or not kept:
        return
    waiting = [finding for finding in kept if finding.attempt == attempt.number and _may_begin(finding)]
    for finding in waiting:
        kept.remove(finding)
    for finding in waiting:
        _job_fault(turn, job, finding)


def _older_by_time(job: JobRecord, finding: Finding) -> bool:
    attempt = job.attempt
    return attempt is not None and attempt.started_at > 0 and finding.at < attempt.started_at - LATE_SLACK_S


def _already_handled(turn: Turn, known: IncidentRecord, job: JobRecord, finding: Finding) -> bool:
    """The attempt's incident is being dealt with: evidence joins it. A node to be left is a reason to act again."""
    if job.state is JobState.WATCHING and known.id == job.incident and not _is_straggler(finding):
        told_only = all(remedy is Remedy.NOTIFY for remedy in known.remedies)
        if told_only and known.findings and _is_straggler(known.findings[0]):
            return False  # only a straggler was told of so far; this is something else
    if job.in_recovery and job.incident == known.id and job.state is JobState.DIAGNOSING and job.alive:
        return False
    if job.state is JobState.EVACUATING and not finding.predicts:
        return False
    _refine(turn, known, job, finding)
    return True


def _refine(turn: Turn, incident: IncidentRecord, job: JobRecord, finding: Finding) -> None:
    """Further evidence: it may change the diagnosis, never the deed that is done."""
    incidents.add(turn, incident, finding)
    if incident.diagnosis is not None and finding.role in {Role.ROOT, Role.CASCADE}:
        incidents.judge(turn, incident, job)


def job_fault(turn: Turn, job: JobRecord, finding: Finding, known: IncidentRecord | None = None) -> None:
    """Evidence that asks for action on the job's current attempt: same trouble as before, or one of its own."""
    if job.over or (turn.in_allocation and job.authority is not Authority.LAUNCHER):
        return  # over, or handed over
    keys = _storage_keys(finding)
    incident = known or _same_trouble(turn, job, finding) or _by_domain(turn, keys)
    if known is not None and job.state is JobState.WATCHING:
        incident = None  # what was told of before is another matter
        job_record.ends_by(job, "")
        incidents.job_settled(turn, known, job, OBSERVED, "something else came.")
    if incident is None:
        incident = incidents.open_new(turn, finding)
    else:
        incidents.add(turn, incident, finding)
    _remember_domain(turn, keys, incident)
    recovery.fault(turn, job, incident, finding)


def _same_trouble(turn: Turn, job: JobRecord, finding: Finding) -> IncidentRecord | None:
    """A recurrence before proof is the same incident; something unrelated opens its own.

    So does what followed from a bad node, such as a rank's death: that node has been left since.
    """
    print_of = finding.recurs_as
    for incident in reversed(incidents.open_of_job(turn, job)):
        made = incident.diagnosis
        left = made is not None and ladder.trouble_of(made) in ladder.NODE_TROUBLES
        roots = {one.finding for one in made.judged if one.role is Role.ROOT} if made is not None and left else set()
        if any(f.recurs_as == print_of and (not roots or f.id in roots) for f in incident.findings):
            return incident
    return None


def _storage_keys(finding: Finding) -> list[str]:
    """A file system that fails under many jobs is one trouble."""
    return [f"storage|{finding.rule}|{finding.place.path}"] if finding.domain is Domain.STORAGE else []


def _by_domain(turn: Turn, keys: list[str]) -> IncidentRecord | None:
    """The open incident of the same failure domain, if its newest fault is recent."""
    for key in keys:
        known = turn.state.domains.get(key)
        if known is not None and abs(turn.now - known[1]) <= CORRELATION_S and known[0] in turn.state.incidents:
            return turn.state.incidents[known[0]]
    return None


def _remember_domain(turn: Turn, keys: list[str], incident: IncidentRecord) -> None:
    domains = turn.state.domains
    for key in keys:
        domains.pop(key, None)
        domains[key] = (incident.id, turn.now)
    while domains and (len(domains) > 1024 or next(iter(domains.values()))[1] < turn.now - CORRELATION_S):
        del domains[next(iter(domains))]


def told_gone(turn: Turn, event: e.NodeGone) -> None:
    """A node's loss, however late it is told of: the scheduler's side says so at this time (`controller/claims.py`)."""
    node_gone(turn, event.node, event.evidence, event.domain)


def node_gone(turn: Turn, name: str, evidence: str, domain: Domain = Domain.HARDWARE) -> None:
    """Positive evidence that a node does not run. Said twice it is still one loss."""
    node = turn.state.nodes.get(name)
    if turn.in_allocation:
        _lost_in_allocation(turn, name, evidence, domain)
        return
    if node is None:
        node = nodes.record_of(turn, name)
    if node.gone or node.phase in {NodeState.REPAIRING, NodeState.VALIDATING, NodeState.RETIRED}:
        return
    node_record.lost(turn, node)
    node_fault(turn, _lost(turn, name, evidence, domain))


def _lost(turn: Turn, name: str, evidence: str, domain: Domain) -> Finding:
    what = "no longer runs" if domain is Domain.HARDWARE else "has left the job"
    said = Evidence(EvidenceKind.HEARTBEAT, evidence[:200])
    summary = f"{name} {what}: {evidence}"
    return _of_node(turn, name, "node.lost", Severity.FATAL, Remedy.REBOOT, summary, said, domain=domain)


def failed_check(turn: Turn, name: str, said: str) -> None:
    """The scheduler's own check of the node failed, so that it takes no work: evidence against the node."""
    summary = f"The scheduler took {name} out of service: {said}"
    evidence = Evidence(EvidenceKind.SCHEDULER, said)
    node_fault(turn, _of_node(turn, name, nodes.FAILED_CHECK, Severity.ERROR, Remedy.QUARANTINE, summary, evidence))


def _of_node(
    turn: Turn,
    name: str,
    rule: str,
    severity: Severity,
    remedy: Remedy,
    summary: str,
    evidence: Evidence,
    *,
    domain: Domain = Domain.HARDWARE,
) -> Finding:
    """A fault of a node that this event shows."""
    fields = {"domain": domain, "severity": severity, "remedy": remedy, "place": Place(node=name)}
    return turn.finding(rule, name, summary, evidence, **fields)


def _lost_in_allocation(turn: Turn, name: str, evidence: str, domain: Domain) -> None:
    for slug in sorted(turn.index.jobs_on.get(name, ())):
        job = turn.state.jobs[slug]
        if name not in job.excluded:
            _fault_in_allocation(turn, job, _lost(turn, name, evidence, domain))


def node_fault(turn: Turn, finding: Finding) -> None:
    """Evidence against a node: one incident for the node, its jobs, and what fails together with it."""
    name = finding.place.node
    if turn.in_allocation:
        for slug in sorted(turn.index.jobs_on.get(name, ())):
            _fault_in_allocation(turn, turn.state.jobs[slug], finding)
        return
    node = nodes.record_of(turn, name)
    jobs = _jobs_on(turn, finding)
    gone = _jobs_that_left(turn, name)
    keys = incidents.domain_keys(node, finding)
    incident = _incident_for(turn, node, [*jobs, *gone], [*keys, *_held_back_with(turn, node, finding)])
    is_known = incident is not None and name in incident.nodes
    if _is_stale(turn, node, finding) or (incident is None and leads_to_nothing(turn, node, finding, [*jobs, *gone])):
        return
    if incident is None:
        incident = incidents.open_new(turn, finding)
    else:
        incidents.add(turn, incident, finding)
    _remember_domain(turn, keys, incident)
    if incidents.judge_domain(turn, incident, node, finding):
        nodes.domain_lost(turn, incident)
    nodes.suspect(turn, node, incident, finding)
    jobs, gone = (nodes.moved_by(turn, node, finding, told) for told in (jobs, gone))
    if not is_known:  # a node that is held back repeats its fault: that brings no later node's into its incident
        _remember_domain(turn, _held_back_with(turn, node, finding), incident)
    if incident.diagnosis is None:
        # An incident without a job is diagnosed from what the node says.
        if not jobs:
            incidents.judge(turn, incident, None)
    elif finding.role is Role.ROOT:
        ended_by_it = next((job for key in incident.jobs if (job := turn.job(key)) is not None), None)
        incidents.judge(turn, incident, jobs[0] if jobs else ended_by_it)
    if ladder.disturbs_jobs(finding):
        _disturb(turn, incident, finding, jobs, gone)
    if incident.would and incident.diagnosis is None:
        incidents.judge(turn, incident, jobs[0] if jobs else None)


def _is_stale(turn: Turn, node: NodeRecord, finding: Finding) -> bool:
    """It is of before the node was repaired or returned."""
    if not finding.at or finding.at >= node.clean_at - LATE_SLACK_S or finding.rule.startswith("node.lost"):
        return False
    turn.tell(node, f"{story.of_finding(finding)}: older than its repair or its return to service, so it is stale.")
    return True


def leads_to_nothing(turn: Turn, node: NodeRecord, finding: Finding, jobs: list[JobRecord]) -> bool:
    """Evidence against a retired node that no job uses is written down, and opens no incident."""
    return not jobs and nodes.is_out_already(turn, node, finding)


def _held_back_with(turn: Turn, node: NodeRecord, finding: Finding) -> list[str]:
    """The same fault on more nodes of a group than its brake lets be fenced is one cause, whatever it is."""
    brake = turn.state.brakes.get(node.view.group)
    return [f"brake:{brake.group}|{finding.rule}"] if brake is not None and brake.tripped_at else []


def _disturb(
    turn: Turn, incident: IncidentRecord, finding: Finding, jobs: list[JobRecord], gone: list[JobRecord]
) -> None:
    """Have its jobs leave the node; those that left it just now are kept off it."""
    name = finding.place.node
    for job in jobs:
        recovery.fault(turn, job, incident, finding, leave=name)
    for job in gone:
        restart.exclude(turn, job, [name])


def _jobs_that_left(turn: Turn, name: str) -> list[JobRecord]:
    """Jobs whose broken attempt was on this node, and that are not back yet: this may be why it broke."""
    found: dict[str, JobRecord] = {}
    for incident in turn.state.incidents.values():
        for key in incident.jobs_open:
            job = turn.job(key)
            attempt = job.attempt if job is not None else None
            if job is None or attempt is None or job.state not in _NOT_BACK or job.incident != incident.id:
                continue
            if name in attempt.nodes and turn.now - attempt.ended_at <= CORRELATION_S:
                found[job.about] = job
    for on in turn.index.jobs_on.get(name, ()):
        found.pop(on, None)
    return [found[slug] for slug in sorted(found)]


def _jobs_on(turn: Turn, finding: Finding) -> list[JobRecord]:
    names = set(turn.index.jobs_on.get(finding.place.node, ()))
    found = [turn.state.jobs[name] for name in sorted(names)]
    job = turn.job(finding.job) if finding.job is not None else None
    if job is not None and job not in found and finding.attempt in {None, job.attempt.number if job.attempt else None}:
        attempt = job.attempt
        if attempt is not None and finding.place.node in attempt.nodes and not attempt.ended_at:
            found.append(job)
    return [job for job in found if not job.over]


def _incident_for(turn: Turn, node: NodeRecord, jobs: list[JobRecord], keys: list[str]) -> IncidentRecord | None:
    """The node's own incident, the one its job is in because of it, or that of its failure domain."""
    own = turn.state.incidents.get(node.incident)
    if own is not None:
        return own
    for job in jobs:
        attempt = job.attempt
        known = turn.state.incidents.get(attempt.incident) if attempt is not None else None
        # A job in recovery for a reason that nobody has pinned on another node yet: this is the reason.
        if known is not None and job.in_recovery and not known.nodes and not _is_person(known):
            return known
    return _by_domain(turn, keys)


def _is_person(incident: IncidentRecord) -> bool:
    return incident.diagnosis is not None and has(incident.diagnosis.cause, Trait.COMMAND)


def _fault_in_allocation(turn: Turn, job: JobRecord, finding: Finding) -> None:
    """The launcher's engine: no node is ordered about, but the job must leave it."""
    if job.over or job.authority is not Authority.LAUNCHER:
        return
    attempt = job.attempt
    known = turn.state.incidents.get(attempt.incident) if attempt is not None else None
    incident = known or _same_trouble(turn, job, finding)
    if incident is None:
        incident = incidents.open_new(turn, finding)
    else:
        incidents.add(turn, incident, finding)
    if ladder.disturbs_jobs(finding):
        recovery.fault(turn, job, incident, finding, leave="" if finding.predicts else finding.place.node)


def silence_over(turn: Turn, name: str) -> None:
    """A node stayed silent for `unknown_s`: gone only when a launcher's lease there has ended, too."""
    node = turn.state.nodes.get(name)
    if node is None:
        return
    if node.view.alive is False and not turn.state.blind:
        node_gone(turn, name, "the scheduler goes on saying so")
        return
    if not node.silent:
        return
    if turn.state.blind:
        turn.timers.start(f"silent:{name}", turn.policy_for(node).waits.unknown_s)
        return
    jobs = [turn.state.jobs[slug] for slug in sorted(turn.index.jobs_on.get(name, ()))]
    lapsed = [job for job in jobs if job.authority is Authority.CONTROLLER and any(a.epoch for a in job.attempts)]
    if lapsed:
        node_gone(turn, name, f"silent, and the lease of {lapsed[0].name} has ended")
    elif jobs:
        names = story.listed([job.name for job in jobs])
        text = f"Neither its agent nor its launcher was heard, but nothing proves that it does not run. On it: {names}."
        turn.notify(f"node:{name}", Severity.WARNING, f"{name} is silent", text, node=name)
