"""What the checks have found lately, in a file that `deploy/slurm/prolog.sh` reads in place of making them.

Written by `HealthWatch` after each look. Time is the boot's: the reader takes only what is young and of its boot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
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
        self._unseen: set[str] = set()
        """Sources without a look: half of a node's checks say nothing about the node."""

    def expect(self, sources: Iterable[str]) -> None:
        """Nothing is written until each of these was looked at."""
        self._unseen = set(sources)

    def write(self, source: str, verdicts: Iterable[Verdict]) -> None:
        """This source was looked at; these are the newest verdicts of all checks."""
        self._unseen.discard(source)
        if self._unseen:
            return
        head = f"holdfast {FORM} {current_boot_id(None)} {int(uptime_s())}"
        lines = [line_of(verdict) for verdict in verdicts if is_bad(verdict)]
        with contextlib.suppress(OSError):  # the one before grows too old to be read
            write_whole(self._file, "\n".join([head, *lines, ""]).encode(errors="replace"), mode=0o600)
