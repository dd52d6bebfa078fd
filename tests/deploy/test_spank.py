"""The SPANK plugin of deploy/slurm/spank, built against this machine's headers and loaded by a real Slurm.

`srun --auto-resume=1` becomes `holdfast srun` with the same words; what asks for nothing is not touched.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import LinkError
from holdfast.lab.packages import INSTALL
from holdfast.lab.slurm_lab import SlurmLab

pytestmark = pytest.mark.cluster

REPOSITORY = Path(__file__).parents[2]
PLUGIN = REPOSITORY / "deploy" / "slurm" / "spank"
# plugstack.conf names this program: no user's PATH or environment has to lead to it.
PROGRAM = f'#!/bin/sh\nPYTHONPATH={REPOSITORY}/src exec {sys.executable} -m holdfast "$@"\n'
SLURM = Path(shutil.which("srun") or "/usr/bin/srun").parents[1]
LIMIT_S = 90.0
# Task 1 of the first attempt kills itself once the job's file shows what both have printed: srun drops what a dying step
# has not sent yet.
TASK = """#!/bin/bash
echo "task $SLURM_PROCID attempt ${HOLDFAST_ATTEMPT-none}"
if [ "$SLURM_PROCID$HOLDFAST_ATTEMPT" = 10 ]; then
    until [ "$(grep -c "^task [01] attempt 0" "${0%/*}/out")" = 2 ] || [ "$SECONDS" -gt 60 ]; do sleep 0.05; done
    kill -9 $$
fi
exit 0
"""


@pytest.fixture
def spank_lab(slurm_lab: SlurmLab):
    """The lab, whose Slurm loads the plugin."""
    if not (SLURM / "include" / "slurm" / "spank.h").exists():
        pytest.skip(f"the SPANK plugin cannot be built here; as root on Debian or Ubuntu: {INSTALL} libslurm-dev gcc")
    plugin, conf = slurm_lab.folder / "holdfast.so", slurm_lab.folder / "etc" / "plugstack.conf"
    subprocess.run(["make", "-s", "-C", PLUGIN, f"OUT={plugin}", f"SLURM={SLURM}"], check=True)
    program = slurm_lab.folder / "bin" / "holdfast"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    conf.write_text(f"required {plugin} {program}\n")
    yield slurm_lab
    conf.write_text("")


def run_job(lab: SlurmLab, folder: Path, commands: str, *sbatch: str) -> str:
    """Run a batch job of three nodes to its end; returns what it printed."""
    task = folder / "task"
    task.write_text(TASK)
    task.chmod(0o755)
    args = ["--nodes=3", "--ntasks-per-node=1", f"--output={folder}/out", *sbatch]
    job = lab.sbatch(args, script=f"#!/bin/bash\n{commands}\n", cwd=folder)
    lab.until_job(job, "COMPLETED", "FAILED", limit_s=LIMIT_S)
    return (folder / "out").read_text()


def test_a_script_of_hyperpod_comes_back_as_it_is_written(spank_lab, tmp_path):
    """`srun --auto-resume=1 --spares 1`: a killed rank, and the step runs again under `holdfast srun` on two of three nodes."""
    said = run_job(spank_lab, tmp_path, "srun --auto-resume=1 --spares 1 ./task && echo the step is well")
    assert [f"task {rank} attempt {attempt}" in said for attempt in (0, 1) for rank in (0, 1, 2)] == [
        True,
        True,
        False,
    ] * 2
    assert "restarts in place" in said
    assert "the step is well" in said


def test_sbatch_asks_for_every_srun_of_its_script(spank_lab, tmp_path):
    """`#SBATCH --holdfast=spares=1`, also with --export=NONE; `srun --auto-resume=0` leaves one step out, and tasks hear nothing of it."""
    told = f"#SBATCH --holdfast=spares=1\nexport PATH={SLURM}/bin:$PATH\nsrun ./task\nsrun --auto-resume=0 ./task\nsrun /usr/bin/printenv"
    said = run_job(spank_lab, tmp_path, told, "--export=NONE", "--ntasks=3")
    lines = said.splitlines()
    assert {f"task {rank} attempt {attempt}" for attempt in (0, 1) for rank in (0, 1)} <= set(lines)
    assert {f"task {rank} attempt none" for rank in (0, 1, 2)} <= set(lines)
    assert not [line for line in lines if line.startswith("SLURM_HOLDFAST")]
    with pytest.raises(LinkError, match=r"--holdfast=spare=1: write options of `holdfast srun`"):
        spank_lab.sbatch(["--holdfast=spare=1", "--wrap", "srun true"])


def test_a_srun_that_asks_for_nothing_is_not_touched(spank_lab):
    """No Holdfast anywhere: a plain srun works, and one that asks for it says what is missing in one sentence."""
    (spank_lab.folder / "etc" / "plugstack.conf").write_text(f"required {spank_lab.folder}/holdfast.so\n")
    path = {"PATH": f"{SLURM}/bin:/usr/bin:/bin"}
    assert spank_lab.run(["srun", "printenv", "SLURM_PROCID"], extra=path) == "0\n"
    assert spank_lab.run(["srun", "--auto-resume=0", "--spares", "1", "printenv", "SLURM_PROCID"], extra=path) == "0\n"
    with pytest.raises(LinkError) as ended:
        spank_lab.run(["srun", "--auto-resume=1", "true"], extra=path)
    assert str(ended.value).endswith("srun: error: --auto-resume=1 needs Holdfast, and `holdfast` is not on the PATH")


def test_what_holdfast_srun_does_not_take_comes_back_once(spank_lab):
    """getopt takes `--auto-r=1` for the option, `holdfast srun` hands it back to srun: one sentence, no endless loop."""
    with pytest.raises(LinkError, match="write --auto-resume=1 in full"):
        spank_lab.run(["srun", "--auto-r=1", "true"])
