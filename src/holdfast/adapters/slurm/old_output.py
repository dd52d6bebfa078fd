"""A run's output outlives the next run: Slurm truncates the output file at a requeue, so it is moved aside first.

`slurm-4711.out` of attempt 0 becomes `slurm-4711.attempt-0.out` beside it, a rename whatever its size, done by a
process of the job's own user: the path is the user's word, and root following it would hand them any file. Where the
controller may not do that, or does not see the file system, Slurm is asked to write the next run's output elsewhere.
Called by `job_orders.py` once the old run is over. Pure but for `OldOutput`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import pwd
import re
from pathlib import Path, PurePosixPath
from typing import Any

import structlog

from holdfast.adapters.slurm import commands
from holdfast.adapters.slurm.output import SlurmJob
from holdfast.adapters.slurm.tool import Tool
from holdfast.errors import OrderError
from holdfast.os.programs import Command, run

LIMIT_S = 5.0
_MARK = re.compile(r"%(?:(\d+)?([AaJjNnstuxb%]))")
_DEVICES = ("/dev/", "/proc/")
_log = structlog.get_logger("holdfast.slurm")


def expanded(pattern: str, job: SlurmJob) -> str:
    """A file name pattern of sbatch(1) as Slurm fills it in for the batch step; relative ones from the job's folder."""

    def fill(found: re.Match[str]) -> str:
        width, mark = found.group(1), found.group(2)
        array = str(job.array_job or job.id)
        value = {
            "%": "%",
            "j": job.id,
            "J": job.id,
            "A": array,
            "a": "4294967294" if job.array_task is None else str(job.array_task),
            "b": "4294967294" if job.array_task is None else str(job.array_task % 10),
            "u": job.user,
            "x": job.name,
            "N": job.batch_host.partition(".")[0],
            "n": "0",
            "t": "0",
            "s": "batch",
        }[mark]
        return value.zfill(min(int(width), 10)) if width and value.isdecimal() else value

    path = _MARK.sub(fill, pattern) if "\\" not in pattern else pattern
    return posixpath.normpath(path if path.startswith("/") else f"{job.workdir}/{path}")


def output_files(job: SlurmJob) -> tuple[str, ...]:
    """Where the batch step writes: output, and errors when they go elsewhere."""
    if not job.batch or not job.workdir:
        return ()
    usual = "slurm-%A_%a.out" if job.array_task is not None else "slurm-%j.out"
    named = [expanded(job.stdout or usual, job)]
    if job.stderr:
        named.append(expanded(job.stderr, job))
    return tuple(dict.fromkeys(name for name in named if not name.startswith(_DEVICES)))


def aside(path: str, attempt: int) -> str:
    """`slurm-12.out` -> `slurm-12.attempt-0.out`."""
    place = PurePosixPath(path)
    return str(place.with_name(f"{place.stem}.attempt-{attempt}{place.suffix}"))


class OldOutput:
    """Keeps what a run has written."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool

    async def keep(self, job: SlurmJob, attempt: int) -> str:
        """Move the output of this attempt aside. Returns what was done, for the journal; empty: nothing was there."""
        files = output_files(job)
        if not files or attempt < 0:
            return ""
        owner = _as_owner(job)
        if owner is not None and await asyncio.to_thread(Path(job.workdir).is_dir):
            kept = [new for path in files if (new := await self._move(path, aside(path, attempt), owner))]
            return f"its output is kept as {', '.join(kept)}" if kept else ""
        place = aside(files[0], attempt + 1)
        try:
            await self._tool.run(commands.set_output(job.ref, place))
        except OrderError as error:
            _log.warning("the output of a run could not be kept", job=job.ref, why=str(error))
            return ""
        return f"the next output goes to {place}"

    async def _move(self, old: str, new: str, owner: dict[str, Any]) -> str:
        """Rename; a name that is taken is left alone. Returns the new name, empty when nothing was moved."""
        argv = ("mv", "--no-clobber", "--no-target-directory", "--verbose", "--", old, new)
        env = {"LC_ALL": "C", "PATH": self._tool.environ.get("PATH", "/usr/bin:/bin")}
        ran = await run(Command(argv=argv, env=env, cwd="/", owner=owner), LIMIT_S)
        if ran.hung:
            _log.warning("moving a run's output took too long", file=old)
        elif ran.code is None:
            _log.warning("output cannot be moved as the job's owner", file=old, why=ran.err)
        elif ran.code and "No such file" not in ran.err:
            _log.warning("a run's output could not be moved", file=old, why=ran.err.strip()[:200])
        return new if ran.code is not None and ran.stdout.strip() else ""


def _as_owner(job: SlurmJob) -> dict[str, Any] | None:
    """How a child process becomes the job's owner: nothing to do when we are; None when we may not."""
    if job.uid == os.geteuid():
        return {}
    if os.geteuid() != 0 or job.uid < 0 or job.gid < 0:
        return None
    groups = [job.gid]
    with contextlib.suppress(KeyError):
        groups = os.getgrouplist(pwd.getpwuid(job.uid).pw_name, job.gid)
    return {"user": job.uid, "group": job.gid, "extra_groups": groups}
