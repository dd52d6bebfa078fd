"""HyperPod's log rules on the job output that an agent watches (`log_rules` of `[[logs]]` in agent.toml).

For jobs that no launcher of Holdfast starts: what the rules find is about the job that runs on the node. A file that is
new, or begins anew, begins an attempt. That a line does not come counts only while some process has the file open:
otherwise the job is over, and its output is not watched any more. Looked at once a second.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import structlog

from holdfast.adapters.log_rule_files import read_log_rules
from holdfast.detect.catalogue import Catalogue
from holdfast.detect.hyperpod_rules import LogRule
from holdfast.detect.log_rule_watch import LogRuleWatch
from holdfast.detect.meaning import Trait, has
from holdfast.errors import ConfigError
from holdfast.model.evidence import Finding

LINE_MAX = 1 << 16

_log = structlog.get_logger("holdfast.agent")


class JobLogRules:
    """The rules of all files that have some.

    Args:
        node: this one.
        catalogue: gives findings their role and remedy.
        on_finding: called with each finding.
        is_held: whether a process has the file open; for tests, else as the kernel says.
    """

    def __init__(
        self,
        node: str,
        catalogue: Catalogue,
        on_finding: Callable[[Finding], None],
        is_held: Callable[[str], bool] | None = None,
    ) -> None:
        self._node = node
        self._catalogue = catalogue
        self._on_finding = on_finding
        self._is_held = is_held or held_open
        self._rules: dict[str, tuple[LogRule, ...]] = {}
        self._files: dict[str, str] = {}
        self._watches: dict[str, LogRuleWatch] = {}
        self._carry: dict[str, bytes] = {}

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
        self._carry[path] = b""
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
        for kept in (self._files, self._watches, self._carry):
            kept.pop(path, None)

    def feed(self, path: str, data: bytes, at: float) -> None:
        """New bytes of the file."""
        watch = self._watches.get(path)
        if watch is None:
            return
        *lines, carry = (self._carry[path] + data).split(b"\n")
        self._carry[path] = carry[-LINE_MAX:]
        for finding in watch.lines(lines, at):
            self._on_finding(finding)
        self._say(path, watch)

    def tick(self, at: float) -> None:
        """Time has passed."""
        for path, watch in list(self._watches.items()):
            for finding in watch.tick(at):
                if has(finding.rule, Trait.WAIT) and not self._is_held(path):
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
