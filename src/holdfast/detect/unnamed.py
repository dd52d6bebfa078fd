"""What ended a log whose cause no rule names: errors known by their severity alone, or the best that is left.

`LogReading` collects them while it reads and asks here at the end, only when no rule names a cause. A log that went on
after such a line, or came to an orderly end, is healthy however the line is worded. Pure; the place of a line in bytes
and the order of matches stand in for time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.detect.findings import to_finding
from holdfast.detect.matcher import Match
from holdfast.detect.meaning import Trait, has, meaning
from holdfast.model.evidence import Domain, Finding, Place, Role, Severity

SHOWN_TEXT = 200
"""Characters of an unnamed line that a sentence shows."""
_OF_DAEMONS = re.compile(
    r"^\[\d{4}-\d\d-\d\dT[\d:.]{8,15}\] |^slurm(?:ctld|d|dbd): "
    r"|^(?:\S.{0,60}? )?[EW]\d{4} \d\d:\d\d:\d\d\.\d{1,6} +\d+ \w+\.go:\d+\] |\btime=\"[^\"]{10,40}\" level=\w+ msg="
)
"""Daemons of Slurm, of Kubernetes (klog) and container runtimes (logrus) log many errors that end nothing; what ends
them they call fatal."""
_MILD = re.compile(
    r"^(?:\S.{0,60}? )?[IW]\d{4} \d\d:\d\d:\d\d\.\d{1,6} +\d+ \S{1,80}:\d+\] |\blevel=(?:info|debug|warn(?:ing)?)\b"
    r"|\"level\": ?\"(?:info|debug|warn(?:ing)?)\"",
    re.IGNORECASE,
)
"""A logger's own word that a line is no error (klog, logrus, JSON); a complaint on it is none."""
_TRACE_LINE = ' File "'
KEPT_LAST = 48
KEPT_FIRST = 8
NEXT_BYTES = 256
"""An error this close behind another one follows from it: programs tell the cause first, then what it prevented."""
CHAIN_BYTES = 3000
"""Lines of one trouble lie this close to each other: a usage text or a trace may stand between them."""
DAEMON_TAIL_BYTES = 40
"""A daemon that logs anything more has gone on."""
_NOT_OUTPUT = re.compile(
    r"^\s*(?:<\d+>)?\[\s*\d+\.\d{3,6}\]|\bkernel: "
    r"|^(?:\S{1,40} )?[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d \S+ \S+?(?:\[\d+\])?: "
)
"""Kernel and system logs speak of failures that concern no job."""
_WORDS: tuple[tuple[Domain, str], ...] = (
    (
        Domain.HARDWARE,
        r"ECC|Xid|NVLink|HBM|fell off the bus|fallen off|GPU (?:is lost|error|fault|hang)|hardware (?:error|fail\w*)",
    ),
    (
        Domain.STORAGE,
        (
            r"disk|file ?system|mount\w*|inode|quota|I/O|input/output|lustre|nfs|gpfs|s3|gcs|bucket|blob|checksum"
            r"|corrupt\w*|truncated"
        ),
    ),
    (
        Domain.NETWORK,
        (
            r"connect\w*|unreachable|socket|network|peer|host ?name|dns|resolve|tcp|rdma|infiniband|ibv?_\w+|rendezvous"
            r"|port \d+|timed out|timeout|broken pipe"
        ),
    ),
    (
        Domain.PLATFORM,
        (
            r"slurm\w*|srun|sbatch|squeue|sinfo|sacct\w*|scontrol|scancel|kubelet|container\w*|docker|enroot|pyxis|cgroup|driver|daemon|scheduler|munge|pmix?"
            r"|licen[cs]e|node (?:is )?(?:down|drain\w*|lost)"
        ),
    ),
)

_OF_A_CONTAINER = re.compile(
    r"\bcontainers? (?=\S{1,80} (?:exited|terminated|failed|exit ?[Cc]ode)|(?:exited|terminated) )"
)
"""A container that ended says no more than a program that did."""


class UnnamedErrors:
    """Those of one log: the first and the last ones, which is all that can matter. Bounded."""

    def __init__(self) -> None:
        self._first: list[Match] = []
        self._last: deque[Match] = deque(maxlen=KEPT_LAST)

    def take(self, match: Match) -> None:
        """A line that only its severity tells of; of kernel and system logs, a driver's words alone count."""
        if bool(_NOT_OUTPUT.search(match.text)) is not has(match.rule.id, Trait.OF_DRIVER):
            return
        if has(match.rule.id, Trait.COMPLAINT) and _MILD.search(match.text):
            return
        if len(self._first) < KEPT_FIRST:
            self._first.append(match)
        else:
            self._last.append(match)

    def ending(self, *, size: int, after: int, progressed: bool, beside_job: bool) -> tuple[Match, ...]:
        """The lines that the log ended with, the most telling one first; empty when it ended well.

        Args:
            size: bytes of the log.
            after: place of the last line that shows the job alive, or of trouble already accounted for.
            progressed: whether the log shows any step at all; mere complaints count only where none does.
            beside_job: whether any log that is read with it shows a job at work; a driver's words count only alone.
        """
        left = sorted((m for m in (*self._first, *self._last) if m.offset > after), key=lambda m: m.offset)
        mute = [*([Trait.COMPLAINT] if progressed else []), *([Trait.OF_DRIVER] if beside_job else [])]
        left = [match for match in left if not has(match.rule.id, *mute)]
        chain: list[Match] = []
        for match in reversed(left):
            if chain:
                belongs = chain[-1].offset - match.offset <= CHAIN_BYTES
            else:
                tail = DAEMON_TAIL_BYTES if _of_a_daemon(match) else meaning(match.rule.id).tail_bytes
                belongs = size - match.offset - len(match.text.encode()) <= tail
            if belongs:
                chain.append(match)
        strongest = max(map(_strength, chain), default=0)
        latest = next((i for i, match in enumerate(chain) if _strength(match) == strongest), 0)
        first = latest
        while first + 1 < len(chain) and _follows(chain[first], chain[first + 1]):
            first += 1
        # The lines of a traceback that a logger wrote end with what was raised.
        traced = any(_TRACE_LINE in match.text for match in chain[latest : first + 1])
        named = chain[latest if traced else first] if chain else None
        return tuple(sorted(chain, key=lambda match: (-_strength(match), match is not named)))


def _of_a_daemon(match: Match) -> bool:
    """Whether a daemon calls something an error and goes on."""
    return has(match.rule.id, Trait.DAEMONS_GO_ON) and _OF_DAEMONS.search(match.text) is not None


def _strength(match: Match) -> int:
    return meaning(match.rule.id).strength


def _is_complaint(match: Match) -> bool:
    """Whether the line says no more than that something did not work."""
    return has(match.rule.id, Trait.COMPLAINT, Trait.OF_DRIVER) or _of_a_daemon(match)


def _follows(later: Match, earlier: Match) -> bool:
    """Whether an error is of the same rule as the one on the lines before it."""
    gap = later.offset - earlier.offset - len(earlier.text.encode())
    return later.rule.id == earlier.rule.id and gap <= NEXT_BYTES


def findings_of(chain: Sequence[Match], *, file: str, prefix: str, at: float) -> list[Finding]:
    """What these lines stand for: the first is the root, unless it is a mere complaint; the others stand beside it."""
    found: list[Finding] = []
    for index, match in enumerate(chain):
        finding = to_finding(
            match, source_place=Place(), job=None, attempt=None, at=match.at or at, id_prefix=prefix, file=file
        )
        text = match.text.strip()
        found.append(
            replace(
                finding,
                role=Role.CASCADE if index or _is_complaint(match) else Role.ROOT,
                domain=domain_of(text) if match.rule.domain is Domain.UNKNOWN else match.rule.domain,
                summary=f"{match.rule.title}: {_shown(text)}",
            )
        )
    return found


def _shown(text: str) -> str:
    """The line as a sentence shows it: cut between words when it is long."""
    return text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT].rpartition(' ')[0] or text[:SHOWN_TEXT]} [...]"


def domain_of(text: str) -> Domain:
    """The best guess from an error's words; most programs fail of themselves."""
    text = _OF_A_CONTAINER.sub(" ", text)
    for domain, words in _WORDS:
        if re.search(rf"\b(?:{words})\b", text, re.IGNORECASE):
            return domain
    return Domain.APPLICATION


def best_left(findings: list[Finding]) -> list[Finding]:
    """The findings; without any root among them, the first that says at least what failed becomes it."""
    if any(_is_cause(f) for f in findings):
        return findings
    telling = (f for f in findings if has(f.rule, Trait.TELLING, Trait.HELD_UP) or _left_behind(f))
    told = min(telling, key=_tells_least, default=None)
    if told is None or (has(told.rule, Trait.HOW_IT_ENDED) and _lost_a_peer(findings, told.at)):
        return findings
    place = Place() if has(told.rule, Trait.BY_SURVIVOR) else told.place
    domain = Domain.PLATFORM if has(told.rule, Trait.OF_PLATFORM) else told.domain
    risen = replace(told, role=Role.ROOT, severity=Severity.ERROR, confidence=0.6, place=place, domain=domain)
    return [risen if f is told else f for f in findings]


def _tells_least(finding: Finding) -> tuple[bool, bool, float]:
    """What says more comes before what only says how it ended, and the earlier before the later."""
    return not has(finding.rule, Trait.SAYS_WHY), has(finding.rule, Trait.HOW_IT_ENDED), finding.at


def _is_cause(finding: Finding) -> bool:
    """Whether it may be the root; a launcher that saw a rank abort says less than what aborted it."""
    if finding.role is not Role.ROOT or finding.severity in {Severity.INFO, Severity.WARNING}:
        return False
    return not _saw_an_abort(finding)


def _saw_an_abort(finding: Finding) -> bool:
    return has(finding.rule, Trait.FIRST_FAILED) and finding.captures.get("signal") == "6"


def _left_behind(finding: Finding) -> bool:
    """A node came to a rendezvous that had ended: its job is over. That the store cannot be reached says less."""
    return has(finding.rule, Trait.LEFT_BEHIND) and finding.captures.get("type") == "RendezvousClosedError"


def _lost_a_peer(findings: Sequence[Finding], before: float) -> bool:
    """Whether a process that ended had lost a peer before: then its end says nothing of the cause."""
    return any(
        f.role is Role.CASCADE and f.domain is Domain.NETWORK and f.at <= before and has(f.rule, Trait.PEER_CLOSED)
        for f in findings
    )


def ended_only(finding: Finding) -> bool:
    """Whether a rule says that a process ended with an error, and no more."""
    return finding.role is Role.ROOT and has(finding.rule, Trait.ENDED)


def without_aftermath(chain: tuple[Match, ...], ended: int | None) -> tuple[Match, ...]:
    """The lines without those that say no more than an end that a rule knows, and without a shell's work after it.

    Args:
        chain: what `UnnamedErrors.ending` gave.
        ended: where the first line lies that a rule knows as such an end; None: there is none.
    """
    if ended is None:
        return chain
    return tuple(
        match
        for match in chain
        if not has(match.rule.id, Trait.EXIT_LINE) and not (has(match.rule.id, Trait.SHELL) and match.offset > ended)
    )


def names_a_cause(finding: Finding) -> bool:
    """Whether a rule says why, and not only how it ended or what followed."""
    if finding.role is Role.CASCADE:
        return finding.domain is Domain.NETWORK
    return finding.role is Role.ROOT and not (has(finding.rule, Trait.ENDED) or _saw_an_abort(finding))
