"""What srun and slurmstepd say of a step on stderr, and whether they say that a person has cancelled it. Pure.

`launch/step_runner` calls this with every such line. Wordings are those of 21.08 to 25.11. No time passes here but what
comes in.
"""

from __future__ import annotations

import re

from msgspec import Struct

from holdfast.adapters.slurm.tool import is_transient


class TaskEnd(Struct, frozen=True):
    """srun's line about tasks of one node that ended badly."""

    node: str
    tasks: tuple[int, ...]
    code: int | None = None
    signal: int | None = None


_TASK_LINE = re.compile(r"^srun: error: (?P<node>[A-Za-z0-9._-]+): tasks? (?P<tasks>[0-9,\-]+): (?P<how>[^\n]+)$")
_EXIT_CODE = re.compile(r"^Exited with exit code (\d+)")
_SIGNALS = {
    "Hangup": 1, "Interrupt": 2, "Quit": 3, "Illegal instruction": 4, "Trace/breakpoint trap": 5, "Aborted": 6,
    "Bus error": 7, "Floating point exception": 8, "Killed": 9, "User defined signal 1": 10,
    "Segmentation fault": 11, "User defined signal 2": 12, "Broken pipe": 13, "Alarm clock": 14, "Terminated": 15,
    "Out Of Memory": 9,
}  # fmt: skip
_NODE_FAILURE = re.compile(r"^srun: error: Node failure on (?P<node>[A-Za-z0-9._-]+)")
_UNSTARTED = re.compile(r"^srun: error: Unable to (?:confirm allocation|create step) for job \d+: (?P<why>[^\n]*)")
_LAUNCH_WAITS = re.compile(r"^srun: Job(?: \d+)? step creation (?:temporarily disabled|still disabled), retrying")


def task_end(line: str) -> TaskEnd | None:
    """Read one line of srun's stderr; None when it does not say that a task ended badly."""
    found = _TASK_LINE.match(line)
    if found is None:
        return None
    how = found["how"].replace("(core dumped)", "").strip()
    code = _EXIT_CODE.match(how)
    if code is None and how not in _SIGNALS and not how.startswith("Unknown signal "):
        return None
    number = None if code else _SIGNALS.get(how) or int(how.rsplit(" ", 1)[-1])
    return TaskEnd(found["node"], _task_list(found["tasks"]), int(code[1]) if code else None, number)


def _task_list(text: str) -> tuple[int, ...]:
    """`0-2,5` -> (0, 1, 2, 5); at most 4096 of them."""
    tasks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            tasks += range(int(first), min(int(last) if last.isdecimal() else int(first), int(first) + 4096) + 1)
    return tuple(tasks[:4096])


def lost_node(line: str) -> str | None:
    """The node that the scheduler has given up, None when the line says no such thing."""
    found = _NODE_FAILURE.match(line)
    return found["node"] if found else None


def is_waiting_for_nodes(line: str) -> bool:
    """It cannot start: an earlier step still holds what it needs."""
    return _LAUNCH_WAITS.match(line) is not None


SETTLES_S = 60.0
"""A slurmctld that was away believes so long that steps from before hold the job's memory, and refuses new ones."""


class StepRefusals:
    """Folds srun's words about a step that was not made into one question: is it worth starting srun again?

    Such an srun ends at once, and nothing of the step has run. Worth it is a slurmctld that is busy or away, and for
    `SETTLES_S` after that any refusal.
    """

    def __init__(self) -> None:
        self.is_refused = False
        self._settles_until = float("-inf")

    def is_one(self, line: str, now: float) -> bool:
        """Read one line of srun's stderr; `now` is any clock in seconds."""
        found = _UNSTARTED.match(line)
        if found is None:
            return False
        if is_transient(found["why"]):
            self._settles_until = now + SETTLES_S
        is_one = now < self._settles_until
        self.is_refused = self.is_refused or is_one
        return is_one


# --- who ended it -----------------------------------------------------------------------------------------------------

_CANCELLED = re.compile(
    r"^(?:\d+: *)?slurmstepd[^:]*: error: \*{3} STEP (?P<job>[0-9]+)\.[0-9]+ ON \S+ CANCELLED AT \S+(?P<due> DUE .*)?"
)
"""With srun's `-l` the line bears the number of the first task. 23.11 and later add the signal behind DUE."""
_NO_REASON = re.compile(r" DUE to SIGNAL ", re.IGNORECASE)
_OWN_REASON = re.compile(
    r"^(?:\d+: *)?(?:srun: (?:"
    r".*_step_signal: Terminating |Terminating (?:job step|StepId)|First task exited |forcing job termination"
    r"|error: Node failure on |error: Task launch for |error: Application launch failed|error: Timed out waiting "
    r"|.*aborting, io error with slurmstepd"
    r")|slurmstepd[^:]*: error: .*exceeded .*memory limit)"
)
"""srun (a bad exit with -K1, `--wait`, a launch or a connection that failed, two interrupts) or slurmstepd (memory, by
OverMemoryKill) has the step ended: slurmstepd then says CANCELLED as if a person had."""
_ABORTED = re.compile(r"^srun: Job step aborted: Waiting up to ")
CANCEL_HOLDS_S = 60.0
"""A cancel explains the ends that follow within this time. `scancel --signal=TERM` lets a program save its state first,
and one that goes on after it has not been cancelled."""


class StepFate:
    """Folds what is said of a step into one question: did a person cancel it?

    `scancel JOB.STEP` shows as slurmstepd's CANCELLED without a reason. That line, srun's words about the step and its
    words about tasks come over three connections, in any order: who wants to know must have read all that srun
    printed, or at least wait when the step is known to be over (`is_aborted`). Slurmstepd's line is sometimes lost: its
    connection ends with the tasks. An abort for which no reason has come by then is a cancel as well: slurmctld ends a
    step that nobody asked it to end only with its node or at a time limit, and says so.

    Args:
        job: SLURM_JOB_ID: what tasks print of other steps does not count.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._cancelled_at = float("-inf")
        self._is_explained = False
        self.is_aborted = False
        """slurmctld has told srun that the step is over, and nobody has said why yet."""

    def explain(self) -> None:
        """We have srun end the step: what is said of it from now on tells of nobody else."""
        self._is_explained = True

    def take(self, line: str, now: float) -> None:
        """Read one line; `now` is any clock in seconds."""
        found = _CANCELLED.match(line)
        if found is not None:
            due = found["due"] or ""
            is_plain = not due or _NO_REASON.match(due) is not None
            if found["job"] == self._job and not is_plain:
                self._is_explained, self.is_aborted = True, False
            elif found["job"] == self._job and not self._is_explained:
                self._cancelled_at = now
        elif _OWN_REASON.match(line):
            self._is_explained, self.is_aborted = True, False
        elif _ABORTED.match(line) and not self._is_explained:
            self.is_aborted = True

    def is_cancelled(self, now: float, *, is_all_said: bool = False) -> bool:
        """A person has cancelled it lately.

        Args:
            now: the same clock as that of `take`.
            is_all_said: no reason can come any more, so that an abort without one counts.
        """
        return now - self._cancelled_at < CANCEL_HOLDS_S or (is_all_said and self.is_aborted)
