"""The periodic health checks of a node: from verdicts to findings that are told once, and cleared once.

The agent runs one `HealthWatch`. Each source is looked at in its own rhythm, each node at another moment (its phase
comes from the node's name), so that ten thousand agents do not read and report at once. What is open is kept on disk:
an agent that starts again tells nothing twice and clears what has gone meanwhile. A check that hangs or talks nonsense
changes nothing about what is known; it is told once, as context.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from holdfast.adapters.probes.check import Check, Mode, NodeConfig, Problem, Source, Status, problem
from holdfast.adapters.probes.checks import CHECKS, SOURCES
from holdfast.adapters.probes.config import chosen
from holdfast.adapters.probes.rounds import Looker, Verdict
from holdfast.agent.latest import LatestChecks
from holdfast.agent.node_facts import NodeIdentity
from holdfast.agent.told import cleared, seen
from holdfast.detect.catalogue import Catalogue
from holdfast.detect.findings import RuleRates, counted, synthetic_finding
from holdfast.detect.lifting import lifted_by
from holdfast.model.events import AnyEvent
from holdfast.model.evidence import Evidence, EvidenceKind, Finding, Place, Remedy, Role, Severity
from holdfast.os.files import write_whole
from holdfast.ports import Clock

JITTER = 0.1
"""Every pause is up to this share shorter than the interval: looks are never further apart than it says."""
FIRST_WITHIN_S = 2.0
"""The first look of each source comes within this time, or the interval if that is shorter."""
SAVE_EVERY_S = 60.0

_log = structlog.get_logger("holdfast.agent.health")


class Open(Struct):
    """A problem that was told and has not been cleared."""

    rule: str
    check: str
    since: float


class _Kept(Struct):
    """What stands in the file."""

    open: dict[str, Open] = {}


class HealthWatch:
    """See the module. Not for use from two loops.

    Args:
        looker: looks at the node.
        identity: the node.
        source: who says so, such as `agent:node07`.
        catalogue: domain, role, severity and remedy of each rule.
        clock: the time.
        report: takes findings and clearings.
        state_dir: where it remembers.
    """

    def __init__(
        self,
        looker: Looker,
        *,
        identity: NodeIdentity,
        source: str,
        catalogue: Catalogue,
        clock: Clock,
        report: Callable[[AnyEvent], None],
        state_dir: Path,
    ) -> None:
        self.looker = looker
        self.verdicts: dict[str, Verdict] = {}
        """The newest of each check."""
        self.looks = 0
        self.open: dict[str, Open] = _read(state_dir / "open.json")
        self._identity = identity
        self._source = source
        self._catalogue = catalogue
        self._clock = clock
        self._report = report
        self._state_dir = state_dir
        self._rates = RuleRates()
        self._said: dict[str, str] = {}
        self._saved_at = float("-inf")
        self._changed = asyncio.Event()
        self._told = 0
        self._latest = LatestChecks(state_dir)

    # --- life ---

    async def run(self) -> None:
        """Look, for ever; a changed configuration takes effect at once."""
        while True:
            self._changed.clear()
            plan = self._plan()
            self._latest.expect({source.name: self._interval_s(source, checks) for source, checks in plan})
            tasks: list[asyncio.Task[Any]] = [
                asyncio.create_task(self._follow(source, checks)) for source, checks in plan
            ]
            tasks.append(asyncio.create_task(self._changed.wait()))
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self.save()

    def reload(self, config: NodeConfig) -> None:
        """Go on with another configuration. What a check that is now switched off had told is cleared."""
        self.looker.config = config
        for name, check in CHECKS.items():
            if not self.looker.enabled(check, Mode.PERIODIC):
                self.verdicts.pop(name, None)
                self._settle(name, {})
                self._settle(f"{name}!", {})
        self._changed.set()

    def _plan(self) -> list[tuple[Source, list[Check]]]:
        by_source: dict[str, list[Check]] = {}
        for check in CHECKS.values():
            if self.looker.enabled(check, Mode.PERIODIC):
                by_source.setdefault(check.source, []).append(check)
        return [(SOURCES[name], checks) for name, checks in by_source.items()]

    def _interval_s(self, source: Source, checks: Sequence[Check]) -> float:
        config = self.looker.config
        own = [every for check in checks if (every := config.of(check.name).every_s) is not None]
        if own:
            return min(own)
        # A shorter poll interval makes the slower sources quicker in proportion, too.
        return config.poll_s if source.every_s is None else source.every_s * min(1.0, config.poll_s / 15.0)

    async def _follow(self, source: Source, checks: list[Check]) -> None:
        interval_s = self._interval_s(source, checks)
        await self._clock.sleep(self._share(source.name, 0) * min(FIRST_WITHIN_S, interval_s))
        turn = 0
        while True:
            start = self._clock.monotonic()
            await self.look(source, checks)
            turn += 1
            pause_s = interval_s * (1.0 - JITTER * self._share(source.name, turn))
            await self._clock.sleep(max(0.0, pause_s - (self._clock.monotonic() - start)))

    def _share(self, name: str, turn: int) -> float:
        """From 0 to 1, different for every node, source and turn, and the same at every run."""
        word = f"{self._identity.name}|{name}|{turn}".encode()
        return int.from_bytes(hashlib.blake2b(word, digest_size=4).digest(), "big") / 2**32

    # --- one look ---

    async def look(self, source: Source, checks: Sequence[Check]) -> None:
        """Look at one source now, and tell what is new."""
        for verdict in await self.looker.look(source, checks, Mode.PERIODIC):
            # A check that was switched off while its source was read has been settled already.
            if self.looker.enabled(CHECKS.get(verdict.check, checks[0]), Mode.PERIODIC):
                self._take(verdict)
        self.looks += 1
        self._latest.write(source.name, self.verdicts.values())
        if self._clock.monotonic() - self._saved_at > SAVE_EVERY_S:
            self.save()

    def _take(self, verdict: Verdict) -> None:
        self.verdicts[verdict.check] = verdict
        self._say_absence(verdict)
        trouble = self._trouble(verdict)
        self._settle(f"{verdict.check}!", {trouble.key: trouble} if trouble is not None else {})
        if not verdict.conclusive:
            return
        lasting: dict[str, Problem] = {}
        for one in verdict.problems:
            if one.happened:
                self._tell(one)
            else:
                lasting[one.key] = one
        self._settle(verdict.check, lasting)

    def _say_absence(self, verdict: Verdict) -> None:
        """What does not apply here is said once, and again only when it changes."""
        said = verdict.detail if verdict.status is Status.ABSENT else ""
        if self._said.get(verdict.check, "") != said:
            self._said[verdict.check] = said
            if said:
                _log.info("check not applicable", check=verdict.check, why=said)

    @staticmethod
    def _trouble(verdict: Verdict) -> Problem | None:
        """A check that could not tell: context for a person, never a reason to fence the node."""
        if verdict.status is not Status.UNKNOWN:
            return None
        rule = "check.hung" if verdict.hung else "check.unreadable"
        summary = f"the check {verdict.check} could not tell: {verdict.detail}"
        return problem(rule, summary, Place(path=verdict.check), text=verdict.detail, warning=True)

    def _settle(self, check: str, now_seen: dict[str, Problem]) -> None:
        """What this check sees now, against what it had told."""
        before = {key: known for key, known in self.open.items() if known.check == check}
        for key, one in now_seen.items():
            if key not in before and key not in self.open:
                self.open[key] = Open(one.rule, check, self._clock.now())
                self._tell(one)
        gone = [key for key in before if key not in now_seen]
        rules = {self.open.pop(key).rule for key in gone}
        for rule in sorted(rules - {known.rule for known in self.open.values()}):
            self._report(cleared(rule, self._identity.name, self._source, self._clock.now()))
        if gone or len(now_seen) > len(before):
            self.save()

    def _tell(self, problem: Problem) -> None:
        now = self._clock.now()
        count = self._rates.admit(self._catalogue.get(problem.rule), None, now)
        if count:
            self._report(seen(counted(self.finding(problem, now), count), self._source))

    def finding(self, problem: Problem, at: float) -> Finding:
        """The finding that a problem stands for: the catalogue's word, the device's own before it."""
        self._told += 1
        found = synthetic_finding(
            self._catalogue,
            problem.rule,
            id=f"{self._source}:{self._identity.boot_id[:8]}:{problem.rule}:{at:.3f}:{self._told}",
            at=at,
            place=msgspec.structs.replace(problem.place, node=self._identity.name),
            summary=problem.summary,
            kind=EvidenceKind.COUNTER if problem.happened else EvidenceKind.CHECK,
            text=problem.text,
            captures=problem.captures,
        )
        more: dict[str, Any] = {}
        if found.role is Role.ROOT and not problem.warning:
            more["evidence"] = (*found.evidence, Evidence(EvidenceKind.CHECK, f"lifted by {lifted_by(problem.rule)}"))
        if problem.predicts:
            more["predicts"] = True
        elif problem.warning:
            more |= {"role": Role.CONTEXT, "severity": Severity.WARNING, "remedy": Remedy.NOTIFY}
        if problem.remedy is not None:
            more["remedy"] = problem.remedy
        return msgspec.structs.replace(found, **more)

    def report_blind(self, what: str, why: str) -> None:
        """Something that the agent should read and cannot: said once, as context."""
        found = problem("check.blind", f"{what} cannot be read: {why}", Place(path=what), text=why)
        self._settle(f"blind:{what}", {found.key: found} if why else {})

    # --- before a node returns ---

    async def validate(self) -> tuple[bool, str]:
        """Run the checks that the configuration names for a validation. Returns (passed, one sentence)."""
        checks = chosen(self.looker.config.validate)
        verdicts = await self.looker.once(checks, Mode.DEEP)
        bad = [verdict for verdict in verdicts if verdict.status is Status.CRITICAL]
        hung = [verdict for verdict in verdicts if verdict.status is Status.UNKNOWN]
        ran = sum(1 for verdict in verdicts if verdict.conclusive)
        if bad:
            return False, f"{bad[0].check}: {bad[0].detail}"
        if hung:
            return False, f"{hung[0].check} could not tell: {hung[0].detail}"
        told = f"{ran} health checks passed"
        if not self.looker.config.validate_suites:
            return True, told
        from holdfast.agent.suites import suites_passed  # noqa: PLC0415 - few agents measure, and none at its start

        passed, more = await suites_passed(self.looker.config, self._identity.name, self.looker.reach.env, self._clock)
        return passed, f"{told}; {more}" if passed else more

    # --- memory ---

    def save(self) -> None:
        """Write down what is open and what was learned. A disk that refuses costs a second telling after a restart."""
        self._saved_at = self._clock.monotonic()
        with contextlib.suppress(OSError):
            write_whole(self._state_dir / "open.json", msgspec.json.encode(_Kept(self.open)))
            self.looker.remember().save(memory_file(self._state_dir))


def memory_file(state_dir: Path) -> Path:
    """Where counters and what was learned of the node are kept; `holdfast check` reads it."""
    return state_dir / "learned.json"


def _read(path: Path) -> dict[str, Open]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Kept).open
    except (OSError, msgspec.MsgspecError):
        return {}
