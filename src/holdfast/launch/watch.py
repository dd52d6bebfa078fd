"""What the leader makes of its nodes' reports: events for the engine. No clock is read here; times come in.

One `AttemptWatch` per attempt. It folds slots and lines, turns ends of ranks and standstills into findings, and says
how the attempt as a whole has ended. Used by the leader alone.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.decide.waits import SLOW_STEP, STUCK, USUAL_STEP
from holdfast.detect.catalogue import Catalogue
from holdfast.detect.findings import exit_rule, synthetic_finding
from holdfast.detect.rhythm import HangVerdict, Rhythm, StepSample
from holdfast.detect.stack_groups import group_stacks, waits_in_collective
from holdfast.errors import EXIT_RESTART_ME
from holdfast.launch.environment import AttemptSpec
from holdfast.launch.fold import AttemptFold
from holdfast.launch.frames import STOPPED, LineSeen, RankEnded, RankStack, SlotBrief, SlotsSeen, Spotted
from holdfast.launch.launcher_events import EventMaker, Told
from holdfast.launch.process import Exit
from holdfast.launch.slowdown import Slowdown, SlowRank
from holdfast.model.cluster import JobKey
from holdfast.model.events import AnyEvent, AttemptEnded, FindingCleared, FindingSeen, StacksCaptured
from holdfast.model.evidence import Domain, EvidenceKind, Finding, Place, Role
from holdfast.telemetry.stacks import Frame

_UNHEARD_S = 2.5
"""A launcher beats every second or more often: after this long nothing that it last said of its ranks still holds."""
_EVIDENCE_LINES = 6
LEAVE_S = 5.0
"""A rank that falls over when it was asked to leave is a fault unless another says in this time that it has saved."""
OWN_SIGNAL_S = 1.0
"""A scheduler that ends a job sends SIGTERM to ranks and launchers in any order: a rank's end by SIGTERM is a fault
unless a launcher gets one in this time."""
_TERMINATED = 128 + signal.SIGTERM


class Ends:
    """How the ranks of an attempt, and its command, have ended by themselves."""

    def __init__(self) -> None:
        self.by_rank: dict[int | None, Exit] = {}
        """The command's under None."""
        self.leaving = False
        """Its ranks were asked to save and stop: a fall on the way out is no fault, where the state is saved."""
        self._may_be_ended = True
        """A launcher may get the SIGTERM yet by which a rank has ended."""
        self._fallen: list[tuple[RankEnded | Spotted, str]] = []
        self._fallen_since: float | None = None

    @property
    def is_saved(self) -> bool:
        """One rank says that the state is saved."""
        return any(how.code == EXIT_RESTART_ME for how in self.by_rank.values())

    @property
    def is_doubtful(self) -> bool:
        """A rank was ended by SIGTERM, and it is not known yet whether the whole job is."""
        return self._may_be_ended and bool(self._fallen) and not self.leaving and not self.is_saved

    def puts_off(self, report: RankEnded | Spotted, node: str) -> bool:
        """Keep a fall, and what follows it, until it is known whether somebody asked for it."""
        is_terminated = isinstance(report, RankEnded) and report.exit.shell_code == _TERMINATED
        is_fall = isinstance(report, RankEnded) and (self.leaving or (self._may_be_ended and is_terminated))
        if is_fall or self.is_doubtful:
            self._fallen.append((report, node))
        return is_fall or self.is_doubtful

    def due(self, at: float, *, is_over: bool = False) -> list[tuple[RankEnded | Spotted, str]]:
        """Take the falls that nobody asked for; each is reported again with its node, and taken for a fault then.

        Args:
            at: seconds since the epoch; the first call after a fall begins its `LEAVE_S` or `OWN_SIGNAL_S`.
            is_over: nothing of the attempt is left, so that nobody can say any more that the state is saved.
        """
        if not self._fallen or self.is_saved:
            return []
        if self._fallen_since is None:
            self._fallen_since = at
        if at - self._fallen_since < (LEAVE_S if self.leaving else OWN_SIGNAL_S) and not is_over:
            return []
        due, self._fallen = self._fallen, []
        self.leaving = self._may_be_ended = False
        return due

    @property
    def bad(self) -> list[Exit]:
        """Ends that were not well.

        The parent of a rank below a command may take leave of it before its end can be read here: then nobody but that
        parent knows how it ended, and a command that ended well has said so.
        """
        is_vouched_for = self.by_rank.get(None, Exit()).is_success
        return [
            ended for ended in self.by_rank.values() if not ended.is_success and (ended.is_known or not is_vouched_for)
        ]


class AttemptFindings:
    """Makes the leader's own findings about one attempt.

    Args:
        job: its key.
        attempt: its number.
        events: makes what is told.
        catalogue: gives a finding the domain and role of its rule.
    """

    def __init__(self, job: JobKey, attempt: int, *, events: EventMaker, catalogue: Callable[[], Catalogue]) -> None:
        self.events = events
        self._job = job
        self._attempt = attempt
        self._catalogue = catalogue

    def title(self, rule: str) -> str:
        """What the catalogue calls a rule."""
        return self._catalogue().get(rule).title

    def seen(
        self,
        rule: str,
        at: float,
        place: Place,
        kind: EvidenceKind,
        *,
        summary: str,
        text: str = "",
        captures: Mapping[str, str] | None = None,
        confidence: float = 1.0,
        which: str = "",
    ) -> FindingSeen:
        """A finding, told as an event; `which` tells it from others of this rule."""
        finding = synthetic_finding(
            self._catalogue(),
            rule,
            id=f"{self.events.new_id()}:{rule}{which and f':{which}'}",
            at=at,
            place=place,
            job=self._job,
            attempt=self._attempt,
            summary=summary,
            kind=kind,
            text=text,
            captures=captures,
            confidence=confidence,
        )
        return self.told(finding)

    def told(self, finding: Finding) -> FindingSeen:
        """The event that tells a finding."""
        return FindingSeen(id=f"{finding.id}:seen", at=finding.at, source=self.events.source, finding=finding)

    def event(self, kind: type[Told], at: float, **fields: Any) -> Told:
        """An event about the attempt."""
        return self.events.event(kind, at=at, job=self._job, attempt=self._attempt, **fields)


class StragglerWatch:
    """Who keeps the others waiting, told from stacks that are taken within slow steps.

    Args:
        slowdown: the attempt's detector.
        findings: makes what is told.
        node_of: where a rank runs.
    """

    def __init__(self, slowdown: Slowdown, findings: AttemptFindings, node_of: Callable[[int], str]) -> None:
        self._slowdown = slowdown
        self._findings = findings
        self._node_of = node_of

    def step_ended(self, slot: SlotBrief) -> None:
        """A rank has ended a step."""
        if slot.ended is not None and slot.step_s is not None:
            is_ordinary = slot.phase == "train" and slot.ended != slot.first
            self._slowdown.observe(slot.ended, slot.step_s, is_ordinary=is_ordinary)

    @property
    def wants_look(self) -> bool:
        """Steps have grown slow: stacks of all ranks would show who keeps the others waiting."""
        return self._slowdown.wants_look

    @property
    def look_pause_s(self) -> float:
        """Between two looks for a straggler: what is seen twice in one step counts hardly more than once."""
        return min(5.0, max(0.02, self._slowdown.step_s / 2))

    def looks_on(self, looks: list[list[RankStack]]) -> bool:
        """Whether another look is wanted before `judge` is asked."""
        return self._slowdown.looks_on([_waits(look) for look in looks])

    def judge(self, looks: list[list[RankStack]], at: float) -> list[FindingSeen]:
        """Findings about who keeps the others waiting; no looks: the slow steps are explained otherwise."""
        last = {stack.rank: stack for stack in looks[-1]} if looks else {}
        return [
            self._found(slow, last.get(slow.rank), at)
            for slow in self._slowdown.judge([_waits(look) for look in looks])
        ]

    def _found(self, slow: SlowRank, stack: RankStack | None, at: float) -> FindingSeen:
        where = [f"{function} ({file}:{line})" for function, file, line in stack.frames[:6]] if stack else []
        return self._findings.seen(
            "straggler.rank",
            at,
            Place(node=self._node_of(slow.rank), rank=slow.rank),
            EvidenceKind.STACK,
            summary=str(slow),
            text="\n".join(where),
            captures={SLOW_STEP: f"{slow.step_s:.3f}", USUAL_STEP: f"{slow.usual_s:.3f}"},
            confidence=slow.confidence,
            which=str(slow.rank),
        )

    def cleared(self, at: float) -> list[AnyEvent]:
        """Ranks that are no longer slow."""
        nodes = {self._node_of(rank) for rank in self._slowdown.cleared()}
        made = self._findings.events
        return [made.event(FindingCleared, at=at, rule="straggler.rank", node=node) for node in sorted(nodes)]


class AttemptWatch:
    """One attempt as the leader follows it.

    Args:
        job: its key.
        spec: the attempt.
        events: makes what is told.
        catalogue: gives exits and hangs their domain and role.
        rhythm: the job's hang detector.
        slowdown: the attempt's straggler detector.
        restored: tells the step that the attempt resumed from.
    """

    def __init__(
        self,
        job: JobKey,
        spec: AttemptSpec,
        *,
        events: EventMaker,
        catalogue: Callable[[], Catalogue],
        rhythm: Rhythm,
        slowdown: Slowdown,
        restored: Callable[[], int | None],
    ) -> None:
        self.spec = spec
        self.fold = AttemptFold(job, spec.attempt, events=events, restored=restored)
        self.is_over = False
        self.stop_asked = False
        """We are ending it: what its ranks do now is no fault of theirs."""
        self.first_bad: RankEnded | None = None
        self._findings = AttemptFindings(job, spec.attempt, events=events, catalogue=catalogue)
        self._rhythm = rhythm
        self.slow = StragglerWatch(slowdown, self._findings, self._node_of)
        self._bad_loss_told = False
        self.ends = Ends()
        self._nodes: dict[int, str] = {}
        """Where each rank's slot was read: of a command's ranks only that tells."""

    @property
    def cause(self) -> str:
        """What ended it, in a few words: who came to a bad end first, how, and its last line."""
        bad = self.first_bad
        if bad is None:
            return "the attempt failed"
        last = f": {bad.tail[-1]}" if bad.tail else ""
        return f"{bad.who} ended with {bad.exit.words}{last}"

    # --- reports to events ---

    def slots_seen(self, report: SlotsSeen, node: str, at: float, now_mono: float) -> list[AnyEvent]:
        """Newer slots of a node."""
        for slot in report.slots:
            self._nodes[slot.rank] = node
            if slot.rank not in self.ends.by_rank:
                self._rhythm.feed(slot.rank, self.fold.rhythm_sample(slot, now_mono))
                if self.spec.world_size > 1:
                    self.slow.step_ended(slot)
        events = self.fold.take_slots(report.slots, report.at) + self.slow.cleared(at)
        return events + self._bad_loss(node, at)

    def line_seen(self, report: LineSeen, node: str, at: float, now_mono: float) -> list[AnyEvent]:
        """A progress line."""
        if report.step is not None:
            sample = StepSample(at=now_mono, ended=report.step, step_s=report.step_s, attempt=self.spec.attempt)
            self._rhythm.feed(None, sample)
        return self.fold.take_line(report) + self._bad_loss(node, at)

    def rank_ended(self, report: RankEnded, node: str) -> list[AnyEvent]:
        """A rank or the command has ended by itself."""
        self.ends.by_rank[report.rank] = report.exit
        if report.rank is not None:
            self._rhythm.leave(report.rank)
        rule = exit_rule(exit_code=report.exit.code, signal=report.exit.signal)
        if not rule or self.stop_asked or report.exit.code == EXIT_RESTART_ME:
            return []
        if self.ends.puts_off(report, node):
            return []
        if self.first_bad is None:
            self.first_bad = report
        elif report.rank is None:
            return []  # the command ends because a rank below it has; that one is told already
        return [*self.fold.reached(report.at), self._exit(report, rule, node)]

    def _exit(self, report: RankEnded, rule: str, node: str) -> FindingSeen:
        summary = ""
        if report.rank is None:
            summary = f"The command ended with {report.exit.words}"
        elif report.error:
            summary = f"{self._findings.title(rule)}: {report.error.splitlines()[0][:160]}"
        lines = "\n".join(report.tail[-_EVIDENCE_LINES:])
        words = report.exit.words
        return self._findings.seen(
            rule,
            report.at,
            Place(node=node, rank=report.rank),
            EvidenceKind.EXIT,
            summary=summary,
            text=f"{words}; last lines of {report.log}:\n{lines}" if lines else words,
        )

    def _bad_loss(self, node: str, at: float) -> list[AnyEvent]:
        bad = self.fold.bad_loss
        if bad is None or self._bad_loss_told or self.stop_asked:
            return []
        self._bad_loss_told = True
        rank, loss = bad
        progress = self.fold.reached(at)
        place = Place(node=self._node_of(rank) or node, rank=rank)
        summary = f"The loss became {loss} at step {self.fold.step}"
        return [*progress, self._findings.seen("loss.nan", at, place, EvidenceKind.TELEMETRY, summary=summary)]

    def judge_hang(self, at: float, now_mono: float, quiet_s: Mapping[str, float]) -> list[AnyEvent]:
        """Asked every tenth of a second or so: does the job stand still?

        Args:
            at: seconds since the epoch.
            now_mono: monotonic seconds.
            quiet_s: seconds since each node's launcher was last heard. Nothing is known of ranks on silent nodes.
        """
        if self.stop_asked or self.is_over or self.first_bad is not None or self.ends.is_doubtful:
            return []
        silent = {node for node, seconds in quiet_s.items() if seconds > _UNHEARD_S}
        unseen = {rank for node in silent for rank in self.spec.ranks_of(node)}
        unseen |= {rank for rank, node in self._nodes.items() if node in silent}
        verdict = self._rhythm.judge(now_mono, unseen, unheard_s=max(quiet_s.values(), default=0.0))
        return [] if verdict is None else [*self.fold.reached(at), self._hang(verdict, at)]

    def _hang(self, verdict: HangVerdict, at: float) -> FindingSeen:
        rank = verdict.behind[0] if len(verdict.behind) == 1 else None
        return self._findings.seen(
            verdict.rule,
            at,
            Place(node=self._node_of(rank), rank=rank),
            EvidenceKind.TELEMETRY,
            summary=str(verdict),
            captures={STUCK: f"{verdict.stuck_s:.3f}", **({} if verdict.step is None else {"step": str(verdict.step)})},
        )

    def stragglers(self, looks: list[list[RankStack]], at: float) -> list[FindingSeen]:
        """Stacks taken at several moments of slow steps: findings about who keeps the others waiting."""
        if self.stop_asked or self.is_over or self.first_bad is not None:
            looks = []  # whatever stands there now is explained by that
        return self.slow.judge(looks, at)

    def lease_over(self, node: str, at: float, why: str) -> list[AnyEvent]:
        """A node's ranks were killed because its lease could not be renewed."""
        if self.stop_asked or self.is_over:
            return []
        found = self._findings.seen(
            "launch.lease", at, Place(node=node), EvidenceKind.HEARTBEAT, summary=why, which=node
        )
        return [*self.fold.reached(at), found]

    def stacks(self, stacks: list[RankStack], at: float) -> StacksCaptured:
        """Stacks grouped, with who stands apart and who gave none."""
        given = {stack.rank: _frames(stack) for stack in stacks if stack.frames}
        # A rank whose node did not answer is silent too.
        expected = set(range(self.spec.world_size)) if not self._is_command else {stack.rank for stack in stacks}
        silent = expected - set(given) - {rank for rank in self.ends.by_rank if rank is not None}
        groups, odd = group_stacks(given, silent)
        return self._findings.event(
            StacksCaptured,
            at,
            groups=groups,
            odd_ranks=odd,
            silent_ranks=tuple(sorted(silent)),
            stopped_ranks=tuple(sorted(stack.rank for stack in stacks if stack.why == STOPPED)),
        )

    def _node_of(self, rank: int | None) -> str:
        return "" if rank is None else self._nodes.get(rank) or self.spec.node_of(rank)

    @property
    def _is_command(self) -> bool:
        return None in self.ends.by_rank or not any(rank is not None for rank in self.ends.by_rank)

    def found(self, findings: tuple[Finding, ...]) -> list[AnyEvent]:
        """Findings that a node made of its output."""
        return [self._findings.told(self._judged_by_time(finding)) for finding in findings]

    def _judged_by_time(self, finding: Finding) -> Finding:
        """While ranks are being ended their programs complain: that explains nothing but the end itself."""
        if not self.stop_asked or finding.role is not Role.ROOT or finding.domain is not Domain.APPLICATION:
            return finding
        if self.first_bad is not None and finding.place.rank in {None, self.first_bad.rank}:
            return finding  # the last words of the rank that was first to go may come after the order to stop
        return msgspec.structs.replace(finding, role=Role.CASCADE)

    # --- its end ---

    def outcome(self) -> Exit:
        """How the attempt ended as a whole: the first fault, else the command's or the ranks' common code.

        When it was asked to leave, one rank that says that the state is saved speaks for all.
        """
        if self.ends.leaving and self.ends.is_saved:
            return Exit(code=EXIT_RESTART_ME)
        if None in self.ends.by_rank and not self.ends.by_rank[None].is_success:
            command = self.ends.by_rank[None]
            return command if self.first_bad is None or self.first_bad.rank is None else self.first_bad.exit
        if self.first_bad is not None:
            return self.first_bad.exit
        bad = self.ends.bad
        if bad:
            return bad[0]
        return Exit(code=0) if self.ends.by_rank else Exit()

    @property
    def ended_well(self) -> bool:
        """Everything has ended, all with 0."""
        return bool(self.ends.by_rank) and not self.ends.bad

    def ended(self, at: float, *, stopped: bool) -> AttemptEnded:
        """No process of it is left."""
        self.is_over = True
        how = self.outcome()
        return self._findings.event(
            AttemptEnded,
            at,
            exit_code=how.code,
            signal=how.signal,
            stopped=stopped,
            last_step=self.fold.step,
        )


def _waits(look: list[RankStack]) -> dict[int, bool]:
    return {stack.rank: waits_in_collective(_frames(stack)) for stack in look}


def _frames(stack: RankStack) -> list[Frame]:
    return [Frame(file=file, line=line, function=function) for function, file, line in stack.frames]
