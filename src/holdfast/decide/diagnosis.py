"""The root cause, chosen from findings of all ranks and nodes.

Called by the engine (controller and launcher) whenever an incident gains findings, and by `holdfast explain` at the
end of a log. Pure: times are those of the findings, corrected by the clock offsets of the context.

How it chooses. Every root-role finding is a candidate of one of the kinds of `Weight`. The heaviest kind wins when it
lies near the first failure; within a kind the earliest wins. A time-out is dated one time-out back, since that is when
the trouble began. What a job survived (progress came later) is no candidate, except for hardware. What remains
(errors of peers, exits, time-outs) is explained by the root, or is said to contradict it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from holdfast.decide import diagnosis_story
from holdfast.decide.lost_peers import named_peer, silent_rank
from holdfast.decide.weights import weight_of
from holdfast.detect.meaning import Trait, Weight, has, meaning
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Diagnosis, Domain, Finding, JudgedFinding, Remedy, Role, Severity

NEAR_S = 60.0
"""A kernel line may reach us this much after the failure that it explains."""
BELOW_S = 120.0
"""So close to a program's error in its storage, what the kernel says of that storage is its cause."""
HARDWARE_BEFORE_S = 1800.0
"""How long before a failure hardware evidence may lie and still explain it."""
FLUSH_S = 30.0
"""Ranks flush their output late by up to this much: within it, kind goes before time."""
TIE_S = 1.0
"""Closer than this, two clocks cannot be told apart."""
OOM_LATE_S = 900.0
"""slurmstepd counts kills for want of memory when the step ends, which can be minutes later."""
LOST_LATE_S = 45.0
"""A node is known to be lost only after its lease has ended."""
DETAIL_S = 0.04
"""The lines of one message lie this close; without times a line counts for a millisecond."""
TIMEOUT_SLACK_S = 45.0
BLAMED_NODES_MAX = 3
PEER_LOSS_S = 120.0
"""A transport gives up on a lost link within about this time (InfiniBand's retries, TCP's resets)."""
RANKS_SHOWN_MAX = 16
_MENDS = frozenset({Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE})
"""Remedies of a finding that says, whatever its domain, that a part of its machine is broken."""


class DiagnosisContext(Struct, frozen=True, omit_defaults=True):
    """What is known of the job beside its findings. Everything may be left out."""

    job: JobKey | None = None
    attempt: int | None = None
    nodes: tuple[str, ...] = ()
    """Nodes of the attempt; empty: not known, every node counts as one of the job."""
    ranks: Mapping[str, tuple[int, ...]] = {}
    """Node -> global ranks there."""
    offsets: Mapping[str, float] = {}
    """Node -> seconds by which its clock is ahead."""
    collective_timeout_s: float = 600.0
    progress_at: float = 0.0
    """When the job last made progress; 0.0: not known."""
    ended_at: float = 0.0
    """When the attempt ended; 0.0: it has not, or nobody knows."""
    no_job: bool = False
    """Only a machine's own log was read: whatever it says is broken counts, also days after a program's fault."""


class Candidate(Struct):
    """A root-role finding with what attribution adds."""

    finding: Finding
    weight: Weight
    at: float
    """Corrected by clock offset; a time-out's is the time when the wait began."""
    seen_at: float
    node: str
    rank: int | None


def diagnose(findings: Sequence[Finding], context: DiagnosisContext) -> Diagnosis:
    """Choose the root cause.

    Args:
        findings: all that is known of one incident, in any order; duplicates by id count once.
        context: what is known of the job.

    Returns:
        `cause` is the root's rule id, or `unknown` when no finding explains the trouble.
    """
    return attribute(findings, context)[0]


def attribute(findings: Sequence[Finding], context: DiagnosisContext) -> tuple[Diagnosis, str]:
    """As `diagnose`, with the id of the root's finding; empty when no finding explains the trouble."""
    unique = list({finding.id: finding for finding in findings}.values())
    candidates, survived = _candidates(unique, context)
    root = _root(candidates, unique, context)
    if root is None:
        return _unknown(unique, context), ""
    same = _fan_out(root, candidates)
    again = {c.finding.id for c in same}
    judged = tuple(_judged(finding, root, again, survived, context) for finding in unique)
    ranks, nodes, gpus = _suspects(root, same, unique, context)
    rivals = _rivals(root, same, candidates)
    confidence = _confidence(root, ranks, judged, rivals)
    remedy = _remedy(root, nodes)
    helps = restart_helps(root.finding)
    story = diagnosis_story.tell(
        root.finding,
        unique,
        judged,
        ranks=ranks,
        nodes=nodes,
        rivals=rivals,
        helps=helps,
        charged=_charged(root, unique),
        survived=survived,
        strange=_strange(unique) if root.weight <= Weight.EXIT else (),
    )
    made = Diagnosis(
        cause=root.finding.rule,
        domain=root.finding.domain,
        summary=diagnosis_story.headline(root.finding, ranks, nodes),
        confidence=confidence,
        nodes=nodes,
        ranks=ranks,
        gpus=gpus,
        remedy=remedy,
        restart_helps=helps,
        fingerprint=root.finding.recurs_as,
        judged=judged,
        story=story,
    )
    return made, root.finding.id


# --- candidates -------------------------------------------------------------------------------------------------------


def _candidates(findings: Sequence[Finding], context: DiagnosisContext) -> tuple[list[Candidate], set[str]]:
    """Root-role findings in order of time, and the ids of those that the job survived."""
    candidates: list[Candidate] = []
    survived: set[str] = set()
    for finding in findings:
        if finding.role is not Role.ROOT or finding.predicts:
            continue
        node = node_of(finding, context)
        seen_at = finding.at - context.offsets.get(node, 0.0)
        weight = weight_of(finding)
        lasting = weight >= Weight.LOST
        if context.progress_at and seen_at < context.progress_at - FLUSH_S and not lasting:
            survived.add(finding.id)
            continue
        back = _waited(finding, context) if weight is Weight.SYMPTOM else 0.0
        candidates.append(Candidate(finding, weight, seen_at - back, seen_at, node, finding.place.rank))
    candidates.sort(key=lambda candidate: (candidate.at, candidate.finding.id))
    return candidates, survived


def node_of(finding: Finding, context: DiagnosisContext) -> str:
    """The node of a finding: its own word, else the node of its rank."""
    place = finding.place
    if place.node or place.rank is None:
        return place.node
    for node, ranks in context.ranks.items():
        if place.rank in ranks:
            return node
    return ""


def _waited(finding: Finding, context: DiagnosisContext) -> float:
    """Seconds for which a symptom had lasted when it was reported."""
    captures = finding.captures
    for name, unit in (("timeout_ms", 1e-3), ("elapsed_ms", 1e-3), ("elapsed_s", 1.0)):
        value = captures.get(name, "")
        try:
            return float(value) * unit
        except ValueError:
            continue
    return 0.0 if has(finding.rule, Trait.HANG) else context.collective_timeout_s


# --- the choice -------------------------------------------------------------------------------------------------------


def _root(candidates: list[Candidate], findings: Sequence[Finding], context: DiagnosisContext) -> Candidate | None:
    bereft = _bereft(findings, context)
    firm = [c for c in candidates if c.weight is not Weight.WARNING and not _explained_exit(c, bereft)]
    if not firm:
        return _warned_peers(candidates, bereft)
    failures = [c.at for c in firm if c.weight < Weight.LOST]
    failures += [f.at - context.offsets.get(f.place.node, 0.0) for f in findings if f.role is Role.CASCADE]
    first = min(failures, default=firm[0].at)
    if (broken := _hardware(firm, first, context)) is not None:
        return broken
    lost = [c for c in firm if c.weight is Weight.LOST]
    if lost and lost[0].at - LOST_LATE_S <= first:
        return lost[0]
    plain = [c for c in firm if c.weight < Weight.LOST] or firm
    earliest = min(plain, key=lambda c: (c.at, -c.weight))
    if (warned := _warned(earliest, candidates)) is not None:
        return warned
    late = _lateness(plain)
    near = [c for c in plain if c.at - late(c) <= earliest.at]
    heaviest = max(c.weight for c in near)
    first_of_kind = min(c.at for c in near if c.weight == heaviest)
    chosen = min((c for c in near if c.weight == heaviest), key=lambda c: _order(c, first_of_kind))
    chosen = _below(_detail(chosen, near), firm)
    # A death by signal that clearly came first is not explained by an exception of another rank that came after it.
    if chosen.weight is Weight.SPECIFIC:
        deaths = [c for c in near if _is_signal(c) and c.at < chosen.at - TIE_S and not _same_rank(c, chosen)]
        if deaths and not _is_memory(chosen):
            return min(deaths, key=lambda c: c.at)
    return chosen


def _bereft(findings: Sequence[Finding], context: DiagnosisContext) -> dict[int, float]:
    """Rank -> when it first told of a lost peer or a wait in vain."""
    first: dict[int, float] = {}
    for f in findings:
        rank = f.place.rank
        if rank is None or not (f.role is Role.CASCADE or has(f.rule, Trait.WAIT)):
            continue
        if not has(f.rule, Trait.SECOND_HAND):
            at = f.at - context.offsets.get(f.place.node, 0.0)
            first[rank] = min(at, first.get(rank, at))
    return first


def _explained_exit(candidate: Candidate, bereft: Mapping[int, float]) -> bool:
    """Whether this is only how a rank ended that had lost a peer or waited in vain before."""
    if candidate.rank is None or not has(candidate.finding.rule, Trait.QUIET_EXIT):
        return False
    return candidate.rank in bereft and bereft[candidate.rank] <= candidate.seen_at + TIE_S


def _order(candidate: Candidate, first: float) -> tuple[float, int, float]:
    """Earliest first; inside one tie, a signal before an exit code."""
    tied = candidate.at - first <= TIE_S
    return (0.0 if tied else candidate.at - first, 0 if _is_signal(candidate) else 1, candidate.at)


def _detail(chosen: Candidate, near: Sequence[Candidate]) -> Candidate:
    """What a rule that knows more says of the same error: messages go on over several lines, exceptions are chained."""
    if not has(chosen.finding.rule, Trait.FRAME):
        return chosen
    # A bare "Exception:" only frames the traceback that it carries.
    bare = chosen.finding.captures.get("type") == "Exception" and not chosen.finding.captures.get("message")
    told = (
        c
        for c in near
        if c is not chosen
        and c.weight is chosen.weight
        and 0 <= c.at - chosen.at <= DETAIL_S
        and _same_rank(c, chosen)
        and (bare or not has(c.finding.rule, Trait.FRAME, Trait.LOOSE))
    )
    return min(told, key=lambda c: c.at, default=chosen)


def _below(chosen: Candidate, firm: Sequence[Candidate]) -> Candidate:
    """What the kernel says of the storage below an error that a program met in it."""
    if chosen.finding.domain is not Domain.STORAGE or has(chosen.finding.rule, Trait.BELOW):
        return chosen
    told = (
        c
        for c in firm
        if c.finding.domain is Domain.STORAGE
        and has(c.finding.rule, Trait.BELOW)
        and abs(c.at - chosen.at) <= BELOW_S
        and (not chosen.node or not c.node or chosen.node == c.node)
    )
    return min(told, key=lambda c: c.at, default=chosen)


def _is_signal(candidate: Candidate) -> bool:
    return candidate.weight is Weight.SIGNAL or has(candidate.finding.rule, Trait.SIGNAL)


def _is_memory(candidate: Candidate) -> bool:
    return has(candidate.finding.rule, Trait.MEMORY)


def _same_rank(one: Candidate, other: Candidate) -> bool:
    return one.rank is None or other.rank is None or one.rank == other.rank


def _lateness(plain: list[Candidate]) -> Callable[[Candidate], float]:
    """How much later than the first failure each candidate may be seen and still be its cause."""
    killed = any(_was_killed(c) for c in plain)
    # A time-out's own date is one time-out back, so that anything inside the wait is near it.
    waits = [c.seen_at - c.at for c in plain if c.weight is Weight.SYMPTOM]
    specific = max([FLUSH_S, *(wait + FLUSH_S / 6 for wait in waits)])

    def late(candidate: Candidate) -> float:
        if killed and _is_memory(candidate):
            return OOM_LATE_S
        if candidate.weight in {Weight.SPECIFIC, Weight.SIGNAL}:
            return specific
        return FLUSH_S if candidate.weight is Weight.EXIT else 0.0

    return late


def _was_killed(candidate: Candidate) -> bool:
    return has(candidate.finding.rule, Trait.KILLED) or candidate.finding.captures.get("code") in {"-9", "137"}


def _hardware(firm: list[Candidate], first: float, context: DiagnosisContext) -> Candidate | None:
    """Hardware evidence on a node of the job, near the first failure: the gravest, then the earliest."""
    found = [
        c
        for c in firm
        if c.weight is Weight.HARDWARE
        and (not context.nodes or not c.node or c.node in context.nodes)
        and (
            context.no_job
            or first - HARDWARE_BEFORE_S <= c.at <= first + NEAR_S
            or 0 <= context.ended_at - c.at <= NEAR_S  # the attempt ended by it, whatever is found later
            or (c.at >= first and _is_of_the_job(c.finding, context))  # a look at what the attempt died of
        )
        and not any(o.finding.rule in meaning(c.finding.rule).follows and 0 <= c.at - o.at <= FLUSH_S for o in firm)
    ]
    if not found:
        return None
    if context.no_job:  # no program failed of it: a disk or a network card is as broken as a GPU
        found += [c for c in firm if c.weight is not Weight.HARDWARE and c.finding.remedy in _MENDS]
    # A driver's demand (Xid 154) or a consequence (94, 95 after 48) is weaker than what it follows.
    return min(found, key=lambda c: (c.finding.severity is not Severity.FATAL, has(c.finding.rule, Trait.DEMAND), c.at))


def _is_of_the_job(finding: Finding, context: DiagnosisContext) -> bool:
    """Does the finding itself name the job and one of its attempts?"""
    return finding.attempt is not None and finding.job is not None and finding.job == context.job


def _warned(earliest: Candidate, candidates: list[Candidate]) -> Candidate | None:
    """A warning that lies where a time-out's wait, or a transport's vain tries, began."""
    if has(earliest.finding.rule, Trait.GAVE_UP):
        return _warned_peers(candidates, {0: earliest.at})
    if earliest.weight is not Weight.SYMPTOM:
        return None
    near = [c for c in candidates if c.weight is Weight.WARNING and abs(c.at - earliest.at) <= TIMEOUT_SLACK_S]
    return min(near, key=lambda c: abs(c.at - earliest.at), default=None)


def _warned_peers(candidates: list[Candidate], bereft: Mapping[int, float]) -> Candidate | None:
    """A network's warning shortly before ranks lost their peers, where nothing else says why they did."""
    first = min(bereft.values(), default=None)
    if first is None:
        return None
    near = [
        c
        for c in candidates
        if c.weight is Weight.WARNING and c.finding.domain is Domain.NETWORK and -NEAR_S <= first - c.at <= PEER_LOSS_S
    ]
    return min(near, key=lambda c: abs(c.at - first), default=None)


def _fan_out(root: Candidate, candidates: list[Candidate]) -> list[Candidate]:
    """The same trouble on several ranks is one."""
    key = root.finding.recurs_as
    return [c for c in candidates if c.finding.recurs_as == key]


def _rivals(root: Candidate, same: list[Candidate], candidates: list[Candidate]) -> tuple[Finding, ...]:
    """Candidates that the root does not explain: as heavy, elsewhere, at about the same time."""
    found: dict[str, Finding] = {}
    for c in candidates:
        if c in same or c.weight < Weight.SIGNAL or abs(c.at - root.at) > FLUSH_S:
            continue
        if root.weight is Weight.HARDWARE is c.weight and not (root.node and c.node):
            continue
        if root.weight >= Weight.LOST and (c.node == root.node or c.weight < root.weight):
            continue
        unplaced = c.rank is None and not c.node and c.at >= root.at  # The same program, as far as anyone can tell.
        one_rank = c.rank == root.rank and (unplaced or c.rank is not None)
        if one_rank or (unplaced and c.finding.rule == root.finding.rule):
            continue
        if root.weight is Weight.SPECIFIC and c.weight is Weight.SIGNAL:
            continue
        found.setdefault(c.finding.rule, c.finding)
    return tuple(found.values())[:3]


# --- what follows from the choice -------------------------------------------------------------------------------------


def _judged(
    finding: Finding, root: Candidate, again: set[str], survived: set[str], context: DiagnosisContext
) -> JudgedFinding:
    if finding.id == root.finding.id:
        return JudgedFinding(finding.id, finding.rule, Role.ROOT, "the first that nothing else explains")
    if finding.id in again:
        return JudgedFinding(finding.id, finding.rule, Role.ROOT, "the same trouble, seen again")
    if finding.id in survived:
        return JudgedFinding(finding.id, finding.rule, Role.CONTEXT, "the job made progress after it")
    if finding.role in {Role.CONTEXT, Role.BENIGN, Role.PROGRESS, Role.CHECKPOINT} or finding.predicts:
        return JudgedFinding(finding.id, finding.rule, finding.role, "")
    node = node_of(finding, context)
    if context.nodes and node and node not in context.nodes:
        return JudgedFinding(finding.id, finding.rule, Role.CONTEXT, f"{node} is not a node of the job")
    return JudgedFinding(finding.id, finding.rule, Role.CASCADE, _why_cascade(finding, root, node))


def _why_cascade(finding: Finding, root: Candidate, node: str) -> str:
    rank = finding.place.rank
    if rank is not None and rank == root.rank:
        return f"how rank {rank} ended, after the root"
    if node and node == root.node:
        return f"on {node}, which the root took down"
    if has(finding.rule, Trait.WAIT):
        return "the wait for what the root took away"
    if root.rank is not None:
        return f"a consequence of losing rank {root.rank}"
    if root.node:
        return f"a consequence of the trouble on {root.node}"
    return "it follows the root"


def _suspects(
    root: Candidate, same: list[Candidate], findings: Sequence[Finding], context: DiagnosisContext
) -> tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...]]:
    """Ranks, nodes and GPUs to suspect, most likely first."""
    ranks = list(dict.fromkeys(c.rank for c in [root, *same] if c.rank is not None))
    nodes = list(dict.fromkeys(c.node for c in [root, *same] if c.node))
    if root.weight is Weight.HARDWARE and not nodes:
        # A rank's own error does not say where it ran; the kernel log of one node that tells of the same does.
        told = {f.place.node for f in findings if f.place.node and _is_hardware(f) and abs(f.at - root.at) <= NEAR_S}
        nodes = list(told) if len(told) == 1 else []
    if root.weight is Weight.SYMPTOM and not has(root.finding.rule, Trait.ODD_RANK):
        odd = laggards(findings, context)
        if odd:
            ranks = list(odd)
            nodes = list(dict.fromkeys(n for r in odd for n, held in context.ranks.items() if n and r in held))
        elif not has(root.finding.rule, Trait.HANG):
            ranks, nodes = [], []
    if not ranks and root.weight in {Weight.EXIT, Weight.SIGNAL, Weight.SPECIFIC}:
        ranks, nodes = _named_by_launcher(findings, nodes)
    # Exit lines on many nodes blame nobody; hardware and lost nodes speak for themselves.
    if len(nodes) > BLAMED_NODES_MAX and root.weight < Weight.LOST:
        nodes = []
    gpus = [
        f"{c.node or '?'}/{c.finding.place.gpu if c.finding.place.gpu is not None else c.finding.place.gpu_id}"
        for c in [root, *same]
        if c.finding.place.gpu is not None or c.finding.place.gpu_id
    ]
    return tuple(ranks[:RANKS_SHOWN_MAX]), tuple(nodes), tuple(dict.fromkeys(gpus))


def _is_hardware(finding: Finding) -> bool:
    return finding.role is Role.ROOT and weight_of(finding) is Weight.HARDWARE


def _named_by_launcher(findings: Sequence[Finding], nodes: list[str]) -> tuple[list[int], list[str]]:
    """The rank that torchrun or mpirun calls the first to fail, when the root's own line does not say."""
    for finding in findings:
        named = finding.captures.get("table") == "torchrun" or has(finding.rule, Trait.FIRST_FAILED)
        if named and finding.place.rank is not None:
            return [finding.place.rank], nodes or ([finding.place.node] if finding.place.node else [])
    return [], nodes


def laggards(findings: Sequence[Finding], context: DiagnosisContext) -> tuple[int, ...]:
    """Ranks that a collective time-out points at: they said nothing, or their sequence number is behind."""
    # A hang names the rank that is behind itself; a time-out is told by those that wait.
    told = [f for f in findings if has(f.rule, Trait.WAIT) and not has(f.rule, Trait.HANG)]
    waits = [f for f in told if f.place.rank is not None]
    reported = {f.place.rank for f in waits}
    everyone = {rank for ranks in context.ranks.values() for rank in ranks}
    silent = everyone - reported
    if reported and silent and len(silent) <= max(1, len(everyone) // 8):
        return tuple(sorted(silent))
    done: dict[int, int] = {}
    for f in waits:
        number = f.captures.get("last_completed") or f.captures.get("seq") or ""
        if number.isdigit() and f.place.rank is not None:
            done[f.place.rank] = min(int(number), done.get(f.place.rank, int(number)))
    if len(done) > 1 and len(set(done.values())) > 1:
        lowest = min(done.values())
        behind = [rank for rank, number in done.items() if number == lowest]
        if len(behind) <= max(1, len(done) // 4):
            return tuple(sorted(behind))
    return ()


def _charged(root: Candidate, findings: Sequence[Finding]) -> bool:
    """Whether a time-out was dated back onto the root."""
    return root.weight is not Weight.SYMPTOM and any(has(f.rule, Trait.WAIT) for f in findings)


def _confidence(
    root: Candidate, ranks: tuple[int, ...], judged: tuple[JudgedFinding, ...], rivals: tuple[Finding, ...]
) -> float:
    base = {
        Weight.WARNING: 0.55,
        Weight.SYMPTOM: 0.6 if ranks else 0.4,
        Weight.EXIT: 0.5,
        Weight.SIGNAL: 0.8,
        Weight.SPECIFIC: 0.8,
        Weight.LOST: 0.9,
        Weight.HARDWARE: 0.9,
    }[root.weight]
    if has(root.finding.rule, Trait.ODD_RANK):
        base = 0.75
    agree = sum(1 for j in judged if j.role is Role.CASCADE)
    base += 0.05 if agree else 0.0
    base -= 0.15 * len(rivals)
    return round(max(0.1, min(0.98, base * min(1.0, root.finding.confidence))), 2)


def _remedy(root: Candidate, nodes: tuple[str, ...]) -> Remedy:
    if root.finding.remedy is Remedy.NONE and root.weight is Weight.HARDWARE and nodes:
        return Remedy.QUARANTINE
    return root.finding.remedy


def restart_helps(finding: Finding) -> bool | None:
    """Whether starting the job again would get past this root; None when it cannot be told."""
    if finding.remedy is Remedy.STOP:
        return False
    if finding.domain in {Domain.APPLICATION, Domain.UNKNOWN}:
        return True if finding.remedy is Remedy.REQUEUE else None
    return None if finding.remedy in {Remedy.NONE, Remedy.NOTIFY} else True


def _unknown(findings: Sequence[Finding], context: DiagnosisContext) -> Diagnosis:
    judged = tuple(JudgedFinding(f.id, f.rule, Role.CONTEXT if f.role is Role.ROOT else f.role, "") for f in findings)
    shown = sorted((f for f in findings if f.role in {Role.ROOT, Role.CASCADE}), key=lambda f: f.at)
    odd = laggards(findings, context)
    if not odd and (silent := silent_rank(findings)) is not None:
        odd = (silent,)
    peer = named_peer(findings, context.nodes)
    return Diagnosis(
        cause="unknown",
        summary="No finding explains the failure." if findings else "Nothing was found.",
        confidence=0.2 if shown else 0.1,
        nodes=(peer,) if peer else (),
        ranks=odd,
        fingerprint=f"unknown:{shown[0].rule}" if shown else "unknown",
        judged=judged,
        story=diagnosis_story.tell_unknown(shown, _strange(findings), suspects=(peer, odd)),
    )


def _strange(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Lines that healthy attempts never printed: all that is left when no rule says why."""
    return tuple(f for f in findings if has(f.rule, Trait.NEW_LINE) and f.evidence)
