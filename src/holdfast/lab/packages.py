"""Which programs a Slurm lab needs, which of them are here, and what to say when one is missing.

Called by `slurm_lab` before it starts anything, by `holdfast doctor`, and by the tests to say what they leave out.
No time passes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence

PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "scontrol": "slurm-client",
    "munged": "munge",
    "munge": "munge",
}
"""Program -> the Debian package that holds it."""
DBD_PROGRAMS = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server", "mariadb-install-db": "mariadb-server"}
REST_PROGRAMS = {"slurmrestd": "slurmrestd"}
NETNS_PROGRAMS = {"ip": "iproute2"}
INSTALL = "apt-get install -y --no-install-recommends"


def search_path(path: str, prefix: str = "") -> str:
    """PATH with the folders that daemons live in, which users' own often leaves out; `prefix`, a Slurm's, is first."""
    parts = [*((f"{prefix}/bin", f"{prefix}/sbin") if prefix else ()), *path.split(os.pathsep)]
    return os.pathsep.join([*parts, *(folder for folder in ("/usr/sbin", "/sbin") if folder not in parts)])


def missing(programs: Iterable[str], path: str) -> list[str]:
    """Which of these programs are not on `path`."""
    return [program for program in programs if shutil.which(program, path=search_path(path)) is None]


def missing_packages(
    path: str, *, dbd: bool = False, rest: bool = False, netns: bool = False
) -> tuple[list[str], list[str]]:
    """Programs that are not on `path` and the Debian packages that would bring them."""
    wanted = dict(PROGRAMS)
    wanted |= DBD_PROGRAMS if dbd else {}
    wanted |= REST_PROGRAMS if rest else {}
    wanted |= NETNS_PROGRAMS if netns else {}
    programs = missing(wanted, path)
    return programs, list(dict.fromkeys(wanted[program] for program in programs))


def advice(packages: Sequence[str]) -> str:
    """The command that would bring them."""
    return f"as root on Debian or Ubuntu: {INSTALL} {' '.join(packages)}"
