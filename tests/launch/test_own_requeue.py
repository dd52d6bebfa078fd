"""What a launcher does around the requeue of its own job, although the scheduler's SIGTERM comes in the middle of it."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

LAUNCHER = """
    import os, signal, sys
    from pathlib import Path
    from types import SimpleNamespace as Plain
    from holdfast.errors import LinkError
    from holdfast.launch.leaving import LastWords
    from holdfast.launch.own_slurm_job import requeue_own_job
    from holdfast.model.policy import Policy

    class OwnJob:
        async def requeue(self, exclude, *, gone, size):
            os.kill(os.getpid(), signal.SIGTERM)  # the scheduler is quicker than our next line
            if sys.argv[2] == "scontrol too":
                raise LinkError("scontrol ended with signal 15")
            return f"requeued without {','.join(exclude)}, {size} nodes"

    leader = Plain(
        place=Plain(job_dir=Path(sys.argv[1])), policy=Policy(), job_view=lambda: Plain(recovery=None),
        nodes=Plain(gone={"node02"}), leaving=Plain(uplink=None, last_words=LastWords(("node02",), 7)),
    )
    requeue_own_job(leader, OwnJob(), environ=os.environ, voice=Plain(say=lambda text: print(text, flush=True)))
"""


@pytest.mark.parametrize("ended", ["launcher", "scontrol too"])
def test_sruns_of_the_old_run_are_ended_although_the_schedulers_sigterm_comes_first(tmp_path: Path, ended: str) -> None:
    """An srun that outlives its run gives its step up by number, which is then a step of the next run."""
    program = tmp_path / "srun"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    environ = {**os.environ, "SLURM_JOB_ID": f"{os.getpid()}", "SLURM_JOB_NUM_NODES": "2"}
    old = subprocess.Popen([str(program), "300"], env=environ)
    other = subprocess.Popen([str(program), "300"], env={**environ, "SLURM_RESTART_COUNT": "1"})
    try:
        ran = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(LAUNCHER), str(tmp_path), ended],
            env=environ,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert (ran.returncode, ran.stderr) == (-signal.SIGTERM, "")
        assert ran.stdout == ("requeued without node02, 2 nodes\n" if ended == "launcher" else "")
        assert (tmp_path / "requeues.json").read_text() == '{"count": 1, "progressed": 7}'
        assert old.wait(60) == -signal.SIGKILL
        assert other.poll() is None, "an srun of the next run was ended"
    finally:
        for process in (old, other):
            process.kill()
            process.wait()
