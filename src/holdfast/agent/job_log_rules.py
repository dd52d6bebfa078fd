"""HyperPod's log rules on the job output that an agent watches (`log_rules` of `[[logs]]` in agent.toml).

For jobs that no launcher of Holdfast starts: what the rules find is about the job that runs on the node. A file that is
new, or begins anew, begins an attempt. That a line does not come counts only while some process has the file open:
otherwise the job is over, and its output is not watched any more. Looked at once a second.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Sequence

import structlog

from holdfast.adapters.log_rule_files import read_log_rules
from holdfast.detect.catalogue import Catalogue
from holdfast.detect.hyperpod_rules import LogRule, RuleHit
from holdfast.detect.log_rule_watch import LogRuleWatch
from holdfast.detect.meaning import Trait, has
from holdfast.errors import ConfigError
from holdfast.model.evidence import Finding

_log = structlog.get_logger("holdfast.agent")


class JobLogRules:
    """The rules of all files that have some.

    Args:
        node: this one.
        catalogue: gives findings their role and remedy.
        on_finding: called with each finding.
    """

    def __init__(
        self,
        node: str,
        catalogue: Catalogue,
        on_finding: Callable[[Finding], None],
    ) -> None:
        self._node = node
        self._catalogue = catalogue
        self._on_finding = on_finding
        self._rules: dict[str, tuple[LogRule, ...]] = {}
        self._files: dict[str, str] = {}
        self._watches: dict[str, LogRuleWatch] = {}

    def follow(self, path: str, rules_file: str, at: float) -> None:
        """Judge this file by these rules from now on. Bad rules are told once and judge nothing."""
        if rules_file not in self._rules:
            try:
                self._rules[rules_file] = read_log_rules(rules_file)
            except ConfigError as error:
                self._rules[rules_file] = ()
                _log.warning("log rules are not used", why=str(error))
        if self._rules[rules_file]:
            self._files[path] = rules_file
            self.begin(path, at)

    def begin(self, path: str, at: float) -> None:
        """The file begins, or begins anew: so does an attempt."""
        if path not in self._files:
            return
        self._watches[path] = LogRuleWatch(
            self._rules[self._files[path]],
            at,
            job=None,
            node=self._node,
            attempt=None,
            rank=None,
            id_prefix=f"{self._node}:{path}:{at:.3f}",
            catalogue=lambda: self._catalogue,
        )

    def forget(self, path: str) -> None:
        """The file is not watched any more."""
        self._files.pop(path, None)
        self._watches.pop(path, None)

    def of(self, path: str) -> tuple[LogRule, ...]:
        """The rules of this file, whose patterns the parser looks for."""
        return self._rules[self._files[path]] if path in self._files else ()

    def attempt(self, path: str) -> LogRuleWatch | None:
        """The attempt that the file tells of now, for `take`; None: it has no rules."""
        return self._watches.get(path)

    def take(self, path: str, watch: LogRuleWatch | None, hits: Sequence[RuleHit], at: float) -> None:
        """What the parser has found in lines of an attempt, unless the file has begun anew since."""
        if watch is None or watch is not self._watches.get(path) or not hits:
            return
        for finding in watch.hits(hits, at):
            self._on_finding(finding)
        self._say(path, watch)

    def tick(self, at: float, behind: Collection[str] = ()) -> None:
        """Time has passed. Of files with lines that are not judged yet nothing is said to be missing."""
        for path, watch in [(path, watch) for path, watch in self._watches.items() if path not in behind]:
            for finding in watch.tick(at):
                if has(finding.rule, Trait.WAIT) and not held_open(path):
                    self.forget(path)
                    break
                self._on_finding(finding)
            self._say(path, watch)

    @staticmethod
    def _say(path: str, watch: LogRuleWatch) -> None:
        for said in watch.said():
            _log.info(said, file=path)


def held_open(path: str) -> bool:
    """Whether a process that we may look at, other than this one, has the file open."""
    try:
        wanted = os.stat(path)  # noqa: PTH116 - compared by device and inode
    except OSError:
        return False
    own = str(os.getpid())
    for process in os.scandir("/proc"):
        if not process.name.isdigit() or process.name == own:
            continue
        with contextlib.suppress(OSError):
            for descriptor in os.scandir(f"/proc/{process.name}/fd"):
                with contextlib.suppress(OSError):
                    seen = os.stat(descriptor.path)  # noqa: PTH116 - as above
                    if (seen.st_dev, seen.st_ino) == (wanted.st_dev, wanted.st_ino):
                        return True
    return False
