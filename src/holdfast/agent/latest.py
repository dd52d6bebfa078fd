"""What the checks have found lately, in a file that `deploy/slurm/prolog.sh` reads in place of making them.

Written by `HealthWatch` after each look. Time is the boot's: the reader takes only what is young and of its boot. As
of that time every source had been looked at as often as its interval says, so that one that hangs has all grow old.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.adapters.probes.rounds import Verdict, is_bad, line_of, uptime_s
from holdfast.agent.node_facts import current_boot_id
from holdfast.os.files import write_whole

FORM = 1


class LatestChecks:
    """The file `latest` of an agent's state: `holdfast FORM BOOT_ID UPTIME_S`, then a line for each problem.

    Args:
        state_dir: the agent's.
    """

    def __init__(self, state_dir: Path) -> None:
        self._file = state_dir / "latest"
        self._boot_id = current_boot_id(None)
        self._intervals_s: Mapping[str, float] = {}
        self._due_s: dict[str, float] = {}
        """When the next look at each source is due. Half of a node's checks say nothing about the node."""

    def expect(self, intervals_s: Mapping[str, float]) -> None:
        """These sources are looked at so often. Nothing is written until each of them was."""
        self._intervals_s, self._due_s = intervals_s, {}

    def write(self, source: str, verdicts: Iterable[Verdict]) -> None:
        """This source was looked at; these are the newest verdicts of all checks."""
        now = uptime_s()
        self._due_s[source] = now + self._intervals_s.get(source, 0.0)
        if self._intervals_s.keys() - self._due_s.keys():
            return
        head = f"holdfast {FORM} {self._boot_id} {int(min(now, *self._due_s.values()))}"
        lines = [line_of(verdict) for verdict in verdicts if is_bad(verdict)]
        with contextlib.suppress(OSError):  # the one before grows too old to be read
            write_whole(self._file, "\n".join([head, *lines, ""]).encode(errors="replace"), mode=0o600)
