"""The job that we run in, as its owner may see and change it: facts, requeue elsewhere, a lost node let go.

`holdfast srun` and `holdfast run` use this inside an allocation, with nothing but the owner's rights. Every command has
a time limit. Time passes in the asyncio loop.

A requeued job gets a begin time in the future (121 s with the default credential time). Only a job that is PENDING
takes another begin time or other excluded nodes, and by then nothing of the requeued job runs any more that could say
so. Therefore a small job of the same owner, the recall job, is submitted first: it waits until the requeued job is
pending, sets both, and cancels itself when the begin time has come: a cancelled job's end has the main scheduler run at
once, which nothing else does then (an update or an ordinary end within batch_sched_delay, 3 s; without either the
backfill's turn, 30 s, would have to come). Where the site refuses that job, the requeue still happens, at the
scheduler's own pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from holdfast.adapters.slurm import commands
from holdfast.adapters.slurm.daemons import NodeAddress, address_of
from holdfast.adapters.slurm.node_output import nodes_of_text
from holdfast.adapters.slurm.output import NO_REQUEUE, ClusterFacts, facts_of_config, node_names, text
from holdfast.adapters.slurm.tool import is_queued, is_transient
from holdfast.errors import LinkError, OrderError, PermanentOrderError, TemporaryOrderError
from holdfast.os.programs import Command, run

_LIMIT_S = 10.0
_NODE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
_JOB = re.compile(r"^\d+(_\d+)?$")
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z/:]*)=(\S*)")
RECALL_LIMIT_MIN = 5
AGAIN_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 30.0, 30.0)
"""Pauses between tries of a requeue while slurmctld is busy or away: its restart must not cost the job its return."""


class JobFacts(Struct, frozen=True):
    """What `scontrol show job` says of our own job."""

    nodes: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    is_batch: bool = False
    may_requeue: bool = False
    restarts: int = 0
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    output: str = ""


def job_name(environ: Mapping[str, str]) -> str:
    """The job's name for scontrol. A task of an array has its own: the bare number could mean the whole array."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID", "")


def read_job(told: str) -> JobFacts:
    """Read `scontrol --oneliner show job`. Pure."""
    fields = {key: "" if value == "None" else text(value) for key, value in _FIELD.findall(told)}
    return JobFacts(
        nodes=node_names(fields.get("NodeList", "")),
        excluded=node_names(fields.get("ExcNodeList", "")),
        is_batch=fields.get("BatchFlag", "0") not in {"0", ""},
        may_requeue=fields.get("Requeue", "0") == "1",
        restarts=int(restarts) if (restarts := fields.get("Restarts", "")).isdecimal() else 0,
        partition=fields.get("Partition", ""),
        account=fields.get("Account", ""),
        qos=fields.get("QOS", ""),
        reservation=fields.get("Reservation", ""),
        output=fields.get("StdOut", ""),
    )


def read_addresses(told: str, port: int) -> dict[str, NodeAddress]:
    """Read `scontrol --oneliner show node`. Pure.

    Args:
        told: what it printed.
        port: the cluster's SlurmdPort, since a node's line has `Port=` only where it differs; 0: not known. A node
            without any port is left out: nobody may conclude from a wrong port that nobody answers.
    """
    return {node.name: where for node in nodes_of_text(told) if (where := address_of(node, port)) is not None}


def recall_script(job: str, excluded: Sequence[str], size: int) -> str:
    """The recall job's script. `+1`, never `now`: a launch in the second of the kill fails (credential revoked). Pure.

    Raises:
        PermanentOrderError: a name is not one of Slurm's.
    """
    if not _JOB.match(job) or not all(_NODE.match(node) for node in excluded):
        raise PermanentOrderError(f"cannot recall job {job!r} without {', '.join(excluded)!r}: not names of Slurm")
    lines = [
        "#!/bin/sh",
        f"# Written by Holdfast: brings the requeued job {job} back without waiting for its begin time.",
        "# Eight questions a second for the first moments; a job that takes long to end is asked about each second.",
        "n=0; s=$(date +%s)",
        f'while [ "$(squeue --noheader --jobs={job} --format=%T 2>/dev/null)" != PENDING ]; do',
        f'  n=$((n + 1)); [ "$(($(date +%s) - s))" -lt {60 * RECALL_LIMIT_MIN - 30} ] || exit 1',
        '  if [ "$n" -lt 60 ]; then sleep 0.1; else sleep 1; fi',
        "done",
    ]
    if excluded:
        lines.append(f"scontrol update JobId={job} ExcNodeList={','.join(excluded)}")
    if size:
        lines.append(f"scontrol update JobId={job} NumNodes={size}")
    lines += [
        f"scontrol update JobId={job} StartTime=now+1",
        "# The scheduler would sleep over that time. A cancelled job's end wakes it at once, an ordinary end in 3 s.",
        "s=$(date +%s); n=60",
        'while [ "$(date +%s)" -le "$s" ] && [ "$n" -gt 0 ]; do n=$((n - 1)); sleep 0.05; done',
        'scancel "$SLURM_JOB_ID"; sleep 1',
    ]
    return "\n".join([*lines, ""])


def _shrunk(job: str, keep: Sequence[str]) -> list[str]:
    return ["scontrol", "update", f"JobId={job}", f"NodeList={','.join(keep)}"]


class OwnJob:
    """Our own job.

    Args:
        name: as scontrol takes it (`1778`, `1770_3`).
        folder: where small files go and commands run (a shrink leaves two scripts there).
        environ: handed to the commands.
    """

    def __init__(self, name: str, folder: Path, environ: Mapping[str, str]) -> None:
        self.name = name
        self._folder = folder
        self._environ = dict(environ)
        self.cluster: ClusterFacts | None = None
        """How Slurm is configured, once `addresses` has asked."""

    async def _run(self, *argv: str, limit_s: float = _LIMIT_S, environ: Mapping[str, str] | None = None) -> str:
        env = self._environ if environ is None else environ
        ran = await run(Command(argv=argv, env=env, cwd=self._folder), limit_s)
        if ran.hung:
            raise TemporaryOrderError(f"{argv[0]} {argv[1]} did not answer within {limit_s:g} s")
        if ran.code is None:
            raise LinkError(f"cannot run {argv[0]}: {ran.err}")
        if ran.code:
            said = (ran.err or ran.out).strip().splitlines()
            why = f"{argv[0]} {argv[1]}: {said[-1] if said else f'exit code {ran.code}'}"
            raise TemporaryOrderError(why) if is_transient(why) else PermanentOrderError(why)
        return ran.out

    async def _patiently(self, *argv: str) -> str:
        """`_run`, again and again while slurmctld is busy or away. Only for what may be done twice."""
        for pause_s in AGAIN_S:
            with contextlib.suppress(TemporaryOrderError):
                return await self._run(*argv)
            await asyncio.sleep(pause_s)
        return await self._run(*argv)

    async def facts(self) -> JobFacts:
        """What the scheduler says of the job. Raises OrderError or LinkError."""
        return read_job(await self._run("scontrol", "--oneliner", "show", "job", self.name))

    async def addresses(self, nodes: Sequence[str]) -> dict[str, NodeAddress]:
        """Where the daemons of these nodes listen. Raises OrderError or LinkError."""
        told = await self._run("scontrol", "--oneliner", "show", "node", ",".join(nodes))
        if self.cluster is None:
            self.cluster = facts_of_config(await self._run(*commands.CONFIG))
        return read_addresses(told, self.cluster.slurmd_port)

    async def let_go(self, keep: Sequence[str]) -> None:
        """Shrink the job to these nodes, so that what becomes of the others does not end it.

        Tried for two minutes while slurmctld is busy or away. Raises OrderError or LinkError.
        """
        await self._patiently(*_shrunk(self.name, keep))

    async def requeue(self, exclude: Sequence[str], *, gone: Collection[str] = (), size: int = 0) -> str:
        """Requeue the job and have it come back at once without these nodes. Our own processes end by this.

        Args:
            exclude: nodes to stay away from.
            gone: of the job's nodes, those that do not run: they are let go first, or the scheduler would wait for
                them (SlurmdTimeout, 300 s by default) before it queues the job.
            size: how many nodes the job had when it began, 0 when that is not known.

        Returns what can be promised, as a sentence. Raises OrderError or LinkError when it is not requeued.
        """
        facts = read_job(await self._patiently("scontrol", "--oneliner", "show", "job", self.name))
        if not facts.is_batch:
            raise PermanentOrderError("it is no batch job, so it cannot be requeued")
        if not facts.may_requeue:
            raise PermanentOrderError(NO_REQUEUE)
        excluded = sorted({*exclude, *gone, *facts.excluded})
        keep = [node for node in facts.nodes if node not in gone]
        if keep and len(keep) < len(facts.nodes):
            with contextlib.suppress(PermanentOrderError):  # then the job comes back when Slurm has given the node up
                await self._patiently(*_shrunk(self.name, keep))
        try:
            recall = await self._submit_recall(facts, excluded, size if size > len(keep) else 0)
        except (TemporaryOrderError, PermanentOrderError) as error:
            promise = f"requeued; it starts {await self.own_pace()} ({error})"
        else:
            off = f" without {','.join(excluded)}" if excluded else ""
            promise = f"requeued; job {recall} calls it back at once{off}"
        try:
            await self._patiently("scontrol", "requeue", self.name)
        except PermanentOrderError as error:
            if not is_queued(str(error)):  # a try before had its effect, although its answer was lost
                raise
        return promise

    async def own_pace(self) -> str:
        """When Slurm itself lets a requeued job start, in words."""
        with contextlib.suppress(OrderError, LinkError):
            told = facts_of_config(await self._run(*commands.CONFIG))
            return f"at the scheduler's pace, after {told.requeue_delay_s + 1} s at the earliest"
        return "at the scheduler's pace, after two minutes by default"

    async def call_back(self, facts: JobFacts, exclude: Sequence[str]) -> str:
        """Have the job, which was requeued already (`facts` say so), come back at once without these nodes.

        Returns the recall job's id. Raises OrderError or LinkError.
        """
        return await self._submit_recall(facts, sorted({*exclude, *facts.excluded}), 0)

    async def _submit_recall(self, facts: JobFacts, excluded: Sequence[str], size: int) -> str:
        script = self._folder / "recall.sh"
        script.write_text(recall_script(self.name, excluded, size), encoding="utf-8")
        options = [
            "--parsable", "--no-requeue", "--ntasks=1", "--nodes=1", f"--time={RECALL_LIMIT_MIN}",
            f"--job-name=holdfast-recall-{self.name}", f"--output={self._folder / 'recall.log'}",
            f"--chdir={self._folder}",
        ]  # fmt: skip
        named = {"partition": facts.partition, "account": facts.account, "qos": facts.qos}
        options += [f"--{key}={value}" for key, value in named.items() if value]
        if facts.reservation:
            options.append(f"--reservation={facts.reservation}")
        if excluded:
            options.append(f"--exclude={','.join(excluded)}")
        # sbatch reads SBATCH_*, and a job inherits SLURM_*: the recall job is not to look like a part of this one.
        environ = {
            key: value
            for key, value in self._environ.items()
            if not key.startswith(("SBATCH_", "SLURM_", "SLURMD_", "HOLDFAST_")) or key == "SLURM_CONF"
        }
        told = await self._run("sbatch", *options, str(script), environ=environ)  # twice would be two jobs
        return told.strip().partition(";")[0]
