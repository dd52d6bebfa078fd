"""What to do about failures that the log rules do not know: by what failed and by what it said.

Called by `examination`, for what neither its step nor a log rule has advice. Pure; no time passes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.validate.results import Item, Verdict

HUNG = "look for processes in state D, a mount or a driver that does not answer: `holdfast check`"
UNKNOWN = "run it by hand to see more"


class Trouble(NamedTuple):
    """A failure and what to do about it."""

    what: str
    """The beginning of its name; empty: any."""
    said: str
    """Regular expression for what it said; empty: anything."""
    advice: str


TROUBLES = (
    Trouble(
        "",
        r"No module named '(torch|numpy)'",
        "install PyTorch into the Python that runs holdfast, or run holdfast from the environment of the job",
    ),
    Trouble(
        "",
        r"cannot open shared object file|needed by .* not found",
        "a library is missing: `ldd FILE` names what is not found; reinstall its package, or put its folder on "
        "LD_LIBRARY_PATH",
    ),
    Trouble(
        "openmp.build",
        r"omp\.h|omp_|-fopenmp|gomp|-lomp",
        "install the compiler's OpenMP: gcc's libgomp (package gcc or libgomp), for clang libomp (package libomp-dev)",
    ),
    Trouble("openmp.build", "", "compile a program by hand with `cc -fopenmp` and read the compiler's first error"),
    Trouble(
        "mpi.build",
        r"mpi\.h|-lmpi|libmpi|undefined reference",
        "mpicc finds no MPI beside it: compare `which -a mpicc` and `mpicc -show`, install the MPI's development "
        "package",
    ),
    Trouble("mpi.build", "", "`mpicc -show` prints what mpicc calls: run that by hand"),
    Trouble(
        "openmp.run",
        r"threads took part",
        "something limits OpenMP: see OMP_THREAD_LIMIT, OMP_DYNAMIC, OMP_NUM_THREADS and the processors of the task "
        "(`srun --cpus-per-task`, `taskset -p $$`)",
    ),
    Trouble(
        "openmp.run",
        r"threads summed",
        "look for a second OpenMP runtime in the process (LD_PRELOAD, libgomp beside libiomp5: `ldd`); without one "
        "keep work away: silent corruption, `holdfast validate --suite cpu --deep`",
    ),
    Trouble(
        "openmp.run",
        r"did not end",
        "threads wait for each other: see OMP_WAIT_POLICY, OMP_PROC_BIND and a CPU quota (`holdfast validate "
        "--suite cpu`)",
    ),
    Trouble(
        "mpi.run",
        r"wrong elements",
        "look for a library between the program and MPI (LD_PRELOAD, a profiling tool) and try another transport "
        "(UCX_TLS=sm,tcp or FI_PROVIDER=tcp); if the sums stay wrong keep work away: `holdfast validate --suite "
        "cpu,network`",
    ),
    Trouble(
        "mpi.run",
        r"each says",
        "mpiexec belongs to another MPI than mpicc: compare `which mpiexec mpicc`, put one MPI's folder first on the "
        "PATH (`module load`), on Slurm use srun with the --mpi=TYPE of `srun --mpi=list` that this MPI was built for",
    ),
    Trouble(
        "mpi.run",
        r"[Ss]ignal \d+|SIGNAL|BAD TERMINATION",
        "a rank died: look for an out-of-memory kill (`dmesg`), a full /dev/shm and limits of the container; "
        "`ulimit -c unlimited` keeps a core file",
    ),
    Trouble(
        "mpi.run",
        r"did not end",
        "the ranks do not reach each other: host name in /etc/hosts, firewall on the loopback, interface "
        "(FI_TCP_IFACE, UCX_NET_DEVICES, OMPI_MCA_btl_tcp_if_include)",
    ),
    Trouble(
        "mpi.run",
        r"launch|ssh|proxy|hostname|getaddrinfo",
        "the launcher fails before the program starts: host name in /etc/hosts, ssh, and the scheduler's variables",
    ),
    Trouble(
        "nccl.group",
        r"wrong sums",
        "keep work away until `holdfast validate --suite cpu,gpu,network` says which part computes or carries wrong "
        "data",
    ),
    Trouble(
        "nccl.group",
        r"[Cc]onnect|[Tt]imed? ?out|reset by peer|closed by peer|ended with -?\d+",
        "a rank died or cannot be reached: read its last words, `dmesg` for an out-of-memory kill, and the interface "
        "(GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)",
    ),
    Trouble(
        "network.loopback",
        "",
        "no other node is part of this: look at the firewall of the loopback, /etc/hosts, and memory for sockets",
    ),
)
"""The first that fits counts."""


def advice_for(what: str, said: str = "", *, hung: bool = False) -> str:
    """Advice for a failure of `what` with the text `said`."""
    found = (one.advice for one in TROUBLES if what.startswith(one.what) and re.search(one.said, said))
    return next(found, HUNG if hung else UNKNOWN)


def advised(item: Item) -> Item:
    """The item; a failure or warning that says nothing about what to do gets that."""
    if item.advice or item.verdict not in {Verdict.WARN, Verdict.FAIL}:
        return item
    return replace(item, advice=advice_for(item.name, item.why))
