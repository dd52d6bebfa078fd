"""Further logs that an agent watches: job output and scheduler logs of `[[logs]]` in agent.toml.

A job may print anything, so that what stands in its output is context: it explains a fault, it never moves a node. The
launcher reads its own ranks' output at once; these files are looked at once a second, which keeps a hundred chatty logs
cheap. What a file holds when it is first seen is history. A pattern may lead into folders where users write, and the
agent may read more than they: a link, a pipe or a second name that a user has placed there is not read.
"""

from __future__ import annotations

import functools
import glob
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from holdfast.adapters.probes.check import LogFile
from holdfast.adapters.tail import Tailer
from holdfast.agent.job_log_rules import JobLogRules
from holdfast.agent.kernel_log import IGNORED
from holdfast.agent.node_facts import NodeIdentity
from holdfast.agent.parser import Outcome, ParsedStream, ParserProcess
from holdfast.agent.parsing import Origin
from holdfast.detect.catalogue import StreamKind
from holdfast.detect.findings import RuleRates, counted, to_finding
from holdfast.detect.log_rule_watch import LogRuleWatch
from holdfast.detect.matcher import StreamSource
from holdfast.model.evidence import Finding, Place, Role
from holdfast.os.clock import EvenClock
from holdfast.os.files import open_regular
from holdfast.ports import Clock

LOOK_S = 1.0
FILES_EVERY_S = 10.0
FILES_MAX = 256
"""Beyond these, the files that were found first are kept."""


def open_log(path: Path) -> int:
    """A descriptor to read the log with. Raises OSError for what a user has planted."""
    return open_regular(path.absolute(), below=Path("/"))


class LogWatch:
    """Follows the files.

    Args:
        logs: which.
        identity: the node.
        parser: judges the lines.
        clock: the time.
        on_finding: called with each finding.
    """

    def __init__(
        self,
        logs: Sequence[LogFile],
        *,
        identity: NodeIdentity,
        parser: ParserProcess,
        clock: Clock,
        on_finding: Callable[[Finding], None],
    ) -> None:
        self.logs = tuple(logs)
        self._identity = identity
        self._parser = parser
        self._clock = clock
        self._on_finding = on_finding
        self._rates = RuleRates()
        self._streams: dict[str, ParsedStream] = {}
        self._tailer = Tailer(
            self._on_data,
            self._on_reset,
            poll_s=LOOK_S,
            force_poll=True,
            open_file=lambda path: open_log(Path(path)),
            is_full=lambda path: self._streams[path].is_full,
        )
        self._first = True
        self.rules = JobLogRules(identity.name, parser.catalogue, self._found_by_rule)
        self._even = EvenClock(clock.now, clock.monotonic)
        """Goes on evenly: a clock that is set forward is not a log that has fallen silent."""

    async def run(self) -> None:
        """Follow what is there, and look for new files, until cancelled."""
        self._tailer.start()
        try:
            found_at = float("-inf")
            while True:
                if (now := self._clock.monotonic()) - found_at >= FILES_EVERY_S:
                    self.find()
                    found_at = now
                behind = {path for path, stream in self._streams.items() if stream.is_behind}
                self.rules.tick(self._even.now(), behind)
                await self._clock.sleep(LOOK_S)
        finally:
            self._tailer.close()

    def _found_by_rule(self, finding: Finding) -> None:
        """Tell of it by the clock that this agent's beats tell of, by which the controller sets times right."""
        self._on_finding(msgspec.structs.replace(finding, at=finding.at + self._even.set_s()))

    def find(self) -> None:
        """Take up files that are new, let go of those that no pattern names any more."""
        wanted: dict[str, LogFile] = {}
        for log in self.logs:
            for path in sorted(glob.glob(log.path)):  # noqa: PTH207 - the pattern is absolute, which Path.glob refuses
                wanted.setdefault(path, log)
        for path in set(self._streams) - set(wanted):
            self._tailer.remove(path)
            self._streams.pop(path).close()
            self.rules.forget(path)
        for path, log in wanted.items():
            if path not in self._streams and len(self._streams) < FILES_MAX:
                if log.log_rules:
                    self.rules.follow(path, log.log_rules, self._even.now())
                self._streams[path] = self._stream(path, StreamKind(log.kind))
                self._tailer.add(path, from_end=self._first)
        self._first = False

    def _stream(self, path: str, kind: StreamKind) -> ParsedStream:
        origin = Origin(StreamSource(kind=kind, node=self._identity.name), self.rules.of(path))
        judged = functools.partial(self._judged, path, kind, self.rules.attempt(path))
        return self._parser.stream(origin, path, judged)

    def _on_reset(self, path: str, why: str) -> None:  # noqa: ARG002 - the tailer's form
        old = self._streams[path]
        self.rules.begin(path, self._even.now())
        self._streams[path] = self._stream(path, old.origin.source.kind)
        old.close()

    def _on_data(self, path: str, data: bytes) -> None:
        self._streams[path].feed(data, self._clock.now())

    def _judged(self, path: str, kind: StreamKind, attempt: LogRuleWatch | None, came: Outcome) -> None:
        at = came.at
        self.rules.take(path, attempt, came.hits, self._even.now())
        for match in came.matches:
            if match.rule.role in IGNORED or not (count := self._rates.admit(match.rule, match.rank, at)):
                continue
            finding = to_finding(
                match,
                source_place=Place(node=self._identity.name, path=path),
                job=None,
                attempt=None,
                at=at,
                id_prefix=f"{self._identity.name}:{path}:{at:.3f}",
                file=Path(path).name,
            )
            if kind is StreamKind.OUTPUT and finding.role is not Role.CONTEXT:
                finding = msgspec.structs.replace(finding, role=Role.CONTEXT)
            self._on_finding(counted(finding, count))
