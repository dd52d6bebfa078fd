"""W5.1: PyTorch, EFA, NCCL or gloo, OpenMP and MPI are validated before the run, with advice for each failure.

Real here: PyTorch and gloo, gcc's OpenMP, MPICH (the wheel of PyPI), Slurm. Every failure is caused for real: a library
taken away, a rank killed, a result changed on its way by a preloaded library. EFA is emulated by two programs that
print what libfabric's print.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from holdfast.lab.slurm_lab import SlurmLab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

BIN = str(Path(sys.executable).parent)
PATH = f"{BIN}{os.pathsep}{os.environ['PATH']}"
SUITES = "pytorch,efa,nccl,openmp,mpi"
LIMIT_S = 120.0

FIRST_CHUNK_ONLY = "int omp_get_thread_num(void) { return 0; }"
RANK_1_DIES = """
#include <mpi.h>
#include <signal.h>
#include <unistd.h>
int MPI_Allreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm all) {
  int rank;
  MPI_Comm_rank(all, &rank);
  if (rank == 1) kill(getpid(), SIGKILL);
  return PMPI_Allreduce(from, to, count, type, op, all);
}
"""
RANK_1_HEARS_WRONG = """
#include <mpi.h>
int MPI_Allreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm all) {
  int rank, done = PMPI_Allreduce(from, to, count, type, op, all);
  MPI_Comm_rank(all, &rank);
  if (rank == 1) ((int *)to)[3]++;
  return done;
}
"""
WIRE_FLIPS_A_BIT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
static void flip(int fd, char *data, ssize_t got) {
  struct stat about;
  if (got > 16384 && fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode)) data[1026] ^= 1;
}
ssize_t read(int fd, void *to, size_t size) {
  ssize_t got = ((ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read"))(fd, to, size);
  flip(fd, to, got);
  return got;
}
ssize_t recv(int fd, void *to, size_t size, int flags) {
  ssize_t got = ((ssize_t(*)(int, void *, size_t, int))dlsym(RTLD_NEXT, "recv"))(fd, to, size, flags);
  flip(fd, to, got);
  return got;
}
"""


def compiled(folder: Path, source: str, *, compiler: str = "cc") -> str:
    """A shared library to preload; left out where nothing compiles."""
    if shutil.which(compiler, path=PATH) is None:
        pytest.skip(f"left out: there is no {compiler}")
    (folder / "part.c").write_text(source)
    library = folder / "part.so"
    argv = [compiler, "-shared", "-fPIC", "part.c", "-o", str(library), "-ldl"]
    subprocess.run(argv, cwd=folder, env={**os.environ, "PATH": PATH}, check=True, timeout=60)
    return str(library)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "holdfast.cli.main", "validate", "--journal", "none", *words]


def validated(folder: Path, *words: str, **env: str) -> tuple[int, str]:
    """Exit code and what the operator reads."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    ran = subprocess.run(
        command(*words), env={**kept, "PATH": PATH, "COLUMNS": "200", **env}, cwd=folder, capture_output=True,
        text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert "Traceback" not in ran.stderr
    return ran.returncode, ran.stdout


def mpi_prefix(folder: Path) -> Path:
    """A copy of the MPI, to take parts away from."""
    real = Path(shutil.which("mpicc", path=PATH) or "").resolve().parent.parent
    for name in ("mpicc", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy"):
        (folder / "bin").mkdir(exist_ok=True)
        shutil.copy2(real / "bin" / name, folder / "bin" / name)
    shutil.copytree(real / "include", folder / "include", ignore=shutil.ignore_patterns("site", "python*"))
    shutil.copytree(real / "lib" / "mpich", folder / "lib" / "mpich")
    for one in (real / "lib").glob("libmpi*"):
        shutil.copy2(one, folder / "lib" / one.name)
    return folder


@pytest.mark.walk("W5.1")
def test_the_report_says_what_works_here_and_what_is_not_here(tmp_path: Path) -> None:
    """One command, two reports: figures of what is there, and of EFA, NCCL and nccl-tests why they are not applicable."""
    code, said = validated(
        tmp_path, "--suite", SUITES, "--report", str(tmp_path / "run.md"), "--report", str(tmp_path / "run.html")
    )
    assert code == 0, said
    report, page = (tmp_path / "run.md").read_text(), (tmp_path / "run.html").read_text()
    version = re.escape(torch.__version__)
    assert re.search(rf"^\| pytorch.version \|  \| {version} \|$", report, re.MULTILINE)
    assert re.search(r"^\| pytorch.gloo \| ms for the first all-reduce \| [\d. ]+ \|$", report, re.MULTILINE)
    assert re.search(r"^\| nccl.sweep.all\\_reduce \| GB/s .*gloo, 2 ranks \| [\d.]+ \|$", report, re.MULTILINE)
    if shutil.which("cc"):
        threads = len(os.sched_getaffinity(0))
        assert f"| openmp.run |  | {threads} threads, OpenMP 201511 |" in report
        assert "| mpi.run |  | 2 ranks agree |" in report
        assert "| mpi.library |  | MPICH Version: " in report
    absent = {"nccl.all_reduce": "nccl-tests are not built here"}
    if not torch.cuda.is_available():
        absent["pytorch.nccl"] = "this build of PyTorch does not have it, or there is no GPU"
    if shutil.which("fi_info") is None:
        absent["efa.providers"] = "there is no fi_info"
    for name, why in absent.items():
        escaped = name.replace("_", "\\_")
        assert re.search(
            rf"\| {re.escape(escaped)} \|  \| not applicable: {why}", report.replace("\\_info", "_info")
        ), name
        assert f"not applicable: {why}" in page
        assert re.search(rf"^{re.escape(name)} +not applicable +{why[:30]}", said, re.MULTILINE), said


def _torch_without(folder: Path, library: str) -> str:
    """PyTorch as an install that was cut short leaves it: one of its libraries is missing."""
    real = Path(torch.__file__).parent
    (folder / "torch" / "lib").mkdir(parents=True)
    for one in [*real.iterdir(), *(real / "lib").iterdir()]:
        place = folder / "torch" / one.relative_to(real)
        if one.name not in {library, "lib"}:
            place.symlink_to(one)
    return str(folder)


CASES = {
    "pytorch: no library": (r"libc10\.so: cannot open shared object file", "`ldd FILE` names what is not found"),
    "nccl: wire": (r"wrong sums: \d+ elements of", "says which part computes or carries wrong data"),
    "openmp: threads": (r"2 threads summed 100000010000000 instead of 200000010000000", "second OpenMP runtime"),
    "openmp: limit": (r"1 of 2 threads took part", "see OMP_THREAD_LIMIT"),
    "openmp: no library": (r"libsite\.so: cannot open shared object file", "put its folder on LD_LIBRARY_PATH"),
    "mpi: dies": (r"it ended with \d+: .*\(signal 9\)", "look for an out-of-memory kill"),
    "mpi: wrong": (r"rank 1 has 1 wrong elements", "look for a library between the program and MPI"),
    "mpi: no library": (r"libucp\.so\.0, needed by .*, not found", "reinstall its package"),
    "mpi: no header": (r"fatal error: mpi\.h: No such file", "install the MPI's development package"),
    "mpi: launcher": (r"2 ranks were started and each says that it is one of 1", "`which mpiexec mpicc`"),
    "efa: refused": (r"fi_pingpong through efa: ", "security group"),
}


@pytest.mark.walk("W5.1")
@pytest.mark.parametrize("case", CASES)
def test_a_failure_is_named_with_what_to_do(tmp_path: Path, case: str) -> None:
    """What was broken for real is the one finding of the run, in one line with its advice; exit code 1, or 0 at a warning."""
    (why, advice), (suite, what) = CASES[case], case.split(": ")
    code, said = validated(tmp_path, "--suite", suite, "--quiet", **broken(tmp_path, suite, what))
    print(said)
    (line,) = [one for one in said.splitlines() if " FAIL " in one or " WARN " in one]
    assert re.search(why, line), said
    assert advice in line, said
    assert code == (0 if " WARN " in line else 1)


def broken(folder: Path, suite: str, case: str) -> dict[str, str]:
    """The environment in which it fails."""
    match suite, case:
        case "pytorch", _:
            return {"PYTHONPATH": f"{_torch_without(folder, 'libc10.so')}:{os.environ.get('PYTHONPATH', '')}"}
        case "nccl", _:
            return {"LD_PRELOAD": compiled(folder, WIRE_FLIPS_A_BIT)}
        case "openmp", "threads":
            return {"LD_PRELOAD": compiled(folder, FIRST_CHUNK_ONLY), "OMP_NUM_THREADS": "2"}
        case "openmp", "limit":
            return {"OMP_THREAD_LIMIT": "1", "OMP_NUM_THREADS": "2"}
        case "openmp", _:  # there when the program is built and not when it runs, as without `module load`
            library = compiled(folder, "int site;")
            Path(library).rename(folder / "libsite.so")
            return {"CC": script(folder / "sitecc", f'exec cc "$@" -L{folder} -Wl,--no-as-needed -lsite')}
        case "mpi", "dies" | "wrong":
            source = RANK_1_DIES if case == "dies" else RANK_1_HEARS_WRONG
            return {"LD_PRELOAD": compiled(folder, source, compiler="mpicc")}
        case "mpi", "launcher":  # each process finds itself alone: the launcher is another MPI's
            script(folder / "mpiexec", 'shift 2; "$@" & "$@"; wait')
            return {"PATH": f"{folder}:{PATH}"}
        case "mpi", _:
            compiled(folder, "int there;")
            prefix = mpi_prefix(folder)
            gone = [prefix / "include" / "mpi.h"] if case == "no header" else (prefix / "lib/mpich").glob("libucp*")
            for one in gone:
                one.unlink()
            return {"PATH": f"{prefix / 'bin'}:{PATH}"}
        case _:
            script(folder / "fi_info", "printf 'provider: efa\\n    fabric: efa\\n    domain: rdmap0s6-rdm\\n'")
            script(
                folder / "fi_pingpong", "echo 'fi_getinfo(): common/shared.c, ret=-61 (No data available)' >&2; exit 61"
            )
            return {"PATH": f"{folder}:{PATH}"}


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.walk("W5.1")
def test_a_rank_of_gloo_that_dies_is_told(tmp_path: Path) -> None:
    """kill -9 of one of the two processes of the sweep: the run ends with 1 and says so, and nothing of it is left."""
    run = subprocess.Popen(
        command("--suite", "nccl", "--quiet"), cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PATH": PATH},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + LIMIT_S
        while not (second := connected_rank(run.pid)):
            assert time.monotonic() < deadline
            assert run.poll() is None, "it ended before its ranks were connected"
        os.kill(second, signal.SIGKILL)
        said, _ = run.communicate(timeout=LIMIT_S)
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()
    (line,) = [one for one in said.splitlines() if " FAIL " in one]
    assert run.returncode == 1
    print(line)
    assert re.search(r"FAIL nccl\.group: .*it ended with -9", line), said
    assert "`dmesg` for an out-of-memory kill" in line
    assert not psutil.pid_exists(second)


def connected_rank(run: int) -> int:
    """Process of rank 1 once it talks to rank 0: a connection to the store, then those of gloo; 0: not yet."""
    for one in psutil.Process(run).children():
        with contextlib.suppress(psutil.Error):
            words = one.cmdline()
            if "sweep" in words and '"rank":1' in words[-1] and len(one.net_connections("tcp")) >= 3:
                return one.pid
    return 0


@pytest.mark.walk("W5.1")
def test_a_job_whose_node_is_not_fit_never_begins_to_train(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """The batch script validates first. With one node that miscalculates the job fails, names it, and has not trained."""
    tmp_path.chmod(0o755)
    library = compiled(tmp_path, FIRST_CHUNK_ONLY)
    Path(library).chmod(0o755)
    text = [
        "#!/bin/bash", "#SBATCH --nodes=2 --ntasks-per-node=1 --exclusive", f"export PATH={PATH}",
        f"export PYTHONPATH={os.environ.get('PYTHONPATH', '')} OMP_NUM_THREADS=2",
        "export BAD=$(scontrol show hostnames $SLURM_JOB_NODELIST | sed -n ${BAD_NODE}p)",
        f"srun bash -c '[ $SLURMD_NODENAME != \"$BAD\" ] || export LD_PRELOAD={library}",
        "exec holdfast validate --suite openmp,mpi,efa --journal none --quiet' || exit 1",
        "srun bash -c 'echo trained on $SLURMD_NODENAME'",
    ]  # fmt: skip
    jobs = {}
    for bad, state in {"9": "COMPLETED", "2": "FAILED"}.items():
        out = tmp_path / f"slurm-{bad}.out"
        words = [f"--output={out}", f"--chdir={tmp_path}", f"--export=ALL,BAD_NODE={bad}"]
        jobs[slurm_lab.sbatch(words, script="\n".join(text) + "\n", cwd=tmp_path)] = (state, out)
    said = {}
    for job, (state, out) in jobs.items():
        ended = slurm_lab.until_job(job, "COMPLETED", "FAILED", limit_s=LIMIT_S)
        said[state] = out.read_text()
        assert ended["JobState"] == state, said[state]
    assert said["COMPLETED"].count("trained on ") == 2, said
    assert "fit (2 nodes: openmp, mpi, efa" in said["COMPLETED"]
    assert "trained on" not in said["FAILED"]
    (bad,) = re.findall(r"^(\S+): FAIL openmp\.run: 2 threads summed", said["FAILED"], re.MULTILINE)
    assert f"not fit: {bad} (2 nodes" in said["FAILED"]
