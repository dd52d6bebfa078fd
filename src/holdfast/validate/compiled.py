"""Steps `openmp` and `mpi`: a small program is compiled on this node, run, and its result compared with the known one.

The sources are `compiled/*.c`. Without a compiler, without mpicc and mpiexec, or where temporary files may not be run,
the step is not applicable. MPI runs two ranks on this node alone, started without the scheduler's variables, so that it
does not become a step of the job. Time: that of the compiler and of the program, each with its limit.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.os.programs import Ran
from holdfast.validate import tool_runs
from holdfast.validate.registry import Options
from holdfast.validate.results import Item, absent, failed, warned

SOURCES = Path(__file__).with_name("compiled")
COMPILE_S = 60.0
RUN_S = 40.0
RANKS = 2
SCHEDULER = re.compile(r"^(SLURM|SLURMD|PMI|PMIX|PALS|OMPI_COMM_WORLD|HYDRA|MPI_LOCAL)_|^PMI")
"""Variables by which an MPI would take itself for a part of a running job."""
AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
"""Open MPI starts neither as root nor more ranks than cores unless it is told so; others do not read these."""
OPENMP_LINE = re.compile(r"^openmp (\d+) threads (\d+) wanted (\d+) sum (-?\d+) known (\d+)$", re.MULTILINE)
RANK_LINE = re.compile(r"^rank (\d+) of (\d+) wrong (\d+) library (.*)$", re.MULTILINE)


def openmp(options: Options) -> list[Item]:
    """A parallel sum with all threads that OpenMP gives here."""
    del options
    compiler = next(filter(None, map(tool_runs.where, (os.environ.get("CC", ""), "cc", "gcc", "clang"))), "")
    if not compiler:
        return [absent("openmp.run", "there is no C compiler (CC, cc, gcc, clang)")]
    return _built("openmp", (compiler, "-fopenmp"), lambda program: (program,), judged_openmp)


def mpi(options: Options) -> list[Item]:
    """An all-reduce and a ring of two ranks on this node."""
    del options
    compiler, launcher = tool_runs.where("mpicc"), tool_runs.where("mpiexec") or tool_runs.where("mpirun")
    if not compiler or not launcher:
        missing = " and no ".join([*(["mpicc"] if not compiler else []), *(["mpiexec"] if not launcher else [])])
        return [absent("mpi.run", f"there is no {missing} on the PATH")]
    without = [word for name in sorted(os.environ) if SCHEDULER.match(name) for word in ("-u", name)]
    env = ("env", *without, *(f"{name}={value}" for name, value in AS_ROOT.items()))
    return _built("mpi", (compiler,), lambda program: (*env, launcher, "-n", str(RANKS), program), judged_mpi)


def _built(
    name: str,
    compiler: Sequence[str],
    command: Callable[[str], Sequence[str]],
    judge: Callable[[Ran], list[Item]],
) -> list[Item]:
    """Compile, run, judge."""
    with tempfile.TemporaryDirectory(prefix=f"holdfast-{name}-") as folder:
        if os.statvfs(folder).f_flag & os.ST_NOEXEC:
            return [absent(f"{name}.run", f"{Path(folder).parent} is mounted noexec: set TMPDIR to another folder")]
        program = str(Path(folder) / name)
        source = str(SOURCES / f"{name}.c")
        done = tool_runs.run((*compiler, "-O1", source, "-o", program), COMPILE_S)
        if done.code != 0:
            return [failed(f"{name}.build", f"{shlex.join(compiler)}: {_first_error(done)}")]
        return judge(tool_runs.run(command(program), RUN_S))


def _first_error(done: Ran) -> str:
    """The line that names the cause: a compiler's last line only says that there was one."""
    lines = [line.strip() for line in f"{done.err}\n{done.out}".splitlines() if line.strip()]
    return next((line for line in lines if re.search(r"error:|cannot|not found", line)), done.said)[:300]


def judged_openmp(done: Ran) -> list[Item]:
    """What the program's line says. Pure."""
    found = OPENMP_LINE.search(done.out)
    if found is None or done.code != 0:
        return [_broken("openmp.run", done)]
    version, threads, wanted, total, known = map(int, found.groups())
    if total != known:
        return [failed("openmp.run", f"{threads} threads summed {total} instead of {known}")]
    text = f"{threads} threads, OpenMP {version}"
    if threads < wanted:
        why = f"{threads} of {wanted} threads took part"
        return [warned("openmp.run", why, text=text)]
    return [Item(name="openmp.run", text=text)]


def judged_mpi(done: Ran) -> list[Item]:
    """What the ranks' lines say. Pure."""
    said = [(int(rank), int(size), int(wrong), library) for rank, size, wrong, library in RANK_LINE.findall(done.out)]
    if any(size != RANKS for _, size, _, _ in said):
        return [failed("mpi.run", f"{RANKS} ranks were started and each says that it is one of {said[0][1]}")]
    bad = [f"rank {rank} has {wrong} wrong elements" for rank, _, wrong, _ in sorted(said) if wrong]
    if bad:
        return [failed("mpi.run", "; ".join(bad))]
    if done.code != 0 or len(said) != RANKS:
        return [_broken("mpi.run", done)]
    return [
        Item(name="mpi.run", text=f"{RANKS} ranks agree"),
        Item(name="mpi.library", text=said[0][3].strip(), same=True),
    ]


def _broken(name: str, done: Ran) -> Item:
    if done.hung:
        return failed(name, f"it did not end within {RUN_S:g} s and was killed")
    lines = [line.strip() for line in f"{done.err}\n{done.out}".splitlines() if line.strip(" =|")]
    why = next((line for line in lines if re.search(r"cannot open shared object|error|[Ss]ignal", line)), done.said)
    return failed(name, f"it ended with {done.code}: {why[:300]}")
