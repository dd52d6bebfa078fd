"""What is asked of Slurm -> argument lists. Pure. Names from outside are checked against Slurm's own grammar here.

Nothing is ever put through a shell; a reason or comment is one argument, in one line, of bounded length. The order in
which a recovery uses these commands is `job_orders.py`'s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from holdfast.adapters.slurm.output import folded
from holdfast.errors import PermanentOrderError

Argv = tuple[str, ...]

_JOB = re.compile(r"[0-9]+(?:_[0-9]+)?(?:\+[0-9]+)?")
_STEP = re.compile(r"[0-9]+(?:_[0-9]+)?(?:\+[0-9]+)?\.[0-9]+")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
REASON_MAX = 200
"""Characters of a drain reason. Slurm takes more; tools that list reasons do not show more."""


def job_ref(ref: str) -> str:
    """A job id as commands take it.

    Raises:
        PermanentOrderError: it is none of Slurm's.
    """
    if _JOB.fullmatch(ref) is None:
        raise PermanentOrderError(f"{ref!r} is no Slurm job id")
    return ref


def node_ref(names: Sequence[str]) -> str:
    """Node names, folded into one list.

    Raises:
        PermanentOrderError: one is not a name.
    """
    for name in names:
        if _NODE.fullmatch(name) is None:
            raise PermanentOrderError(f"{name!r} is no node name")
    return folded(list(names))


def one_line(words: str) -> str:
    """Words for people as one bounded line."""
    return _CONTROL.sub(" ", words).strip()[:REASON_MAX]


# --- looking ----------------------------------------------------------------------------------------------------------

JOBS: Argv = ("squeue", "--all", "--states=all", "--json")
"""All jobs of all users. Before 25.11 it prints all states whatever is asked; there, ended ones must be asked for."""
JOBS_TEXT: Argv = ("scontrol", "show", "job", "-o", "--all")
NODES: Argv = ("scontrol", "show", "nodes", "-o", "--all")
NODES_JSON: Argv = ("scontrol", "show", "nodes", "--json")
CONFIG: Argv = ("scontrol", "show", "config")
PARTITIONS: Argv = ("scontrol", "show", "partitions", "-o", "--all")
PULSE_JOBS: Argv = ("squeue", "--all", "--states=all", "-h", "-o", "%A|%F|%K|%T|%r|%Q|%N|%V|%x")
"""A cheap look by which to tell that something changed: no field of it is a user's free text."""
PULSE_NODES: Argv = ("sinfo", "--all", "-h", "-N", "-o", "%N|%T|%E|%H")


def ends(job_ids: Sequence[str]) -> Argv:
    """How jobs ended that slurmctld has forgotten. Needs accounting."""
    listed = ",".join(job_ref(job_id) for job_id in job_ids)
    return ("sacct", "-n", "-P", "-X", "-j", listed, "--format=JobIDRaw,State,ExitCode,End")


def steps(ref: str) -> Argv:
    """The steps of a running job, one per line."""
    return ("squeue", "-h", "-s", "-j", job_ref(ref), "-o", "%i")


def steps_of(printed: str) -> tuple[str, ...]:
    """Numbered steps in what `steps` printed; `.batch` and `.extern` cannot be signalled by name."""
    return tuple(step for step in printed.split() if _STEP.fullmatch(step))


# --- jobs -------------------------------------------------------------------------------------------------------------


def kill_steps(listed: Sequence[str], *, beside_loss: bool = False) -> Argv:
    """End the steps' tasks at once. Without a step's number `scancel` would cancel the job.

    With `beside_loss` by way of slurmctld: by itself `scancel` waits 3 s for the node that does not answer.
    """
    for step in listed:
        if _STEP.fullmatch(step) is None:
            raise PermanentOrderError(f"{step!r} is no step of a Slurm job")
    return ("scancel", *(["--ctld"] if beside_loss else []), "--signal=KILL", *listed)


def kill_batch(ref: str) -> Argv:
    """End the batch script at once; the job is then FAILED until it is requeued."""
    return ("scancel", "--signal=KILL", "--batch", job_ref(ref))


def control(verb: Literal["requeuehold", "requeue", "hold", "release"], ref: str) -> Argv:
    """Stop it if it runs, queue it and hold it; queue it again; keep it from starting; let it start."""
    return ("scontrol", verb, job_ref(ref))


def _explained(why: str) -> Argv:
    """An administrator's comment of the job, which slurmctld.log shows too."""
    return (f"AdminComment={one_line(why)}",) if why else ()


def start_in(ref: str, seconds: int, why: str = "") -> Argv:
    """Pull in the begin time that a requeue sets (AuthInfo's cred_expire, 120 s by default, and 1).

    0 is `now`, which in the second of the kill makes slurmd refuse the start ("Job credential revoked").
    """
    when = f"now+{seconds}" if seconds else "now"
    return ("scontrol", "update", f"JobId={job_ref(ref)}", *_explained(why), f"StartTime={when}")


def exclude(ref: str, nodes: Sequence[str], why: str = "") -> Argv:
    """Keep it off exactly these nodes."""
    listed = node_ref(nodes) if nodes else ""
    return ("scontrol", "update", f"JobId={job_ref(ref)}", *_explained(why), f"ExcNodeList={listed}")


def nudge(ref: str, *, requeue: bool) -> Argv:
    """Change nothing of the job (`requeue` is what it has): any update has the scheduler look soon."""
    return ("scontrol", "update", f"JobId={job_ref(ref)}", f"Requeue={int(requeue)}")


def set_output(ref: str, path: str) -> Argv:
    """Where the next run's output goes."""
    return ("scontrol", "update", f"JobId={job_ref(ref)}", f"StdOut={_CONTROL.sub('', path)}")


def cancel(ref: str) -> Argv:
    """End it for good."""
    return ("scancel", job_ref(ref))


# --- nodes ------------------------------------------------------------------------------------------------------------


def set_nodes(nodes: Sequence[str], state: str = "", reason: str = "", comment: str | None = None) -> Argv:
    """Give nodes a state, a reason, a comment. Drain, fail and down need a reason; an empty comment clears it."""
    words = [f"NodeName={node_ref(nodes)}"]
    if state:
        words.append(f"State={state}")
    if reason:
        words.append(f"Reason={one_line(reason)}")
    if comment is not None:
        words.append(f"Comment={_CONTROL.sub(' ', comment)}")  # may be another's, given back whole
    return ("scontrol", "update", *words)


def set_partition(partition: str, nodes: Sequence[str]) -> Argv:
    """Give a partition exactly these nodes."""
    if _NODE.fullmatch(partition) is None:
        raise PermanentOrderError(f"{partition!r} is no partition's name")
    return ("scontrol", "update", f"PartitionName={partition}", f"Nodes={node_ref(nodes)}")


def reboot(nodes: Sequence[str], reason: str, *, drained: bool) -> Argv:
    """Reboot by RebootProgram as soon as nothing runs there.

    ASAP drains the node itself and puts it back into service afterwards; without it a drained node stays drained.
    """
    how = () if drained else ("ASAP", "nextstate=RESUME")
    return ("scontrol", "reboot", *how, f"reason={one_line(reason)}", node_ref(nodes))
