"""On a real Slurm a launcher, an agent and the command line log in by munge: no token lies anywhere.

The controller is the real one, with `[slurm] munge` and the lab's own munged.
"""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.lab.slurm_lab import SlurmLab
from holdfast.os.programs import Command, run_blocking
from slurm_keeper import Kept, keeping
from slurm_world import small_lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NOBODY = 65534
SCRIPT = """#!/bin/bash
#SBATCH --nodes=1 --exclusive --output={folder}/said
#SBATCH --comment='{{"holdfast": {{"max_requeues": 3}}}}'
export HOLDFAST_CONTROLLER={url} HOLDFAST_MUNGE={socket} HOLDFAST_PLAIN_HTTP=1
srun {python} -m holdfast run --job-dir {folder}/job -- {python} -c 'import time; time.sleep(1000)'
"""


def asked(lab: SlurmLab, url: str, *words: str, uid: int | None = None) -> tuple[int | None, str]:
    """The command line, as this user, with munge alone."""
    environ = {**lab.env(), "HOLDFAST_CONTROLLER": url, "HOLDFAST_MUNGE": f"{lab.folder}/munge/socket", "HOME": "/tmp"}
    owner = None if uid is None else {"user": uid, "group": uid, "extra_groups": []}
    argv = (sys.executable, "-m", "holdfast", *words)
    ran = run_blocking(Command(argv=argv, env=environ, owner=owner, cwd="/"), 60.0)
    return ran.code, ran.out + ran.err


def test_launcher_agent_and_user_need_no_token(tmp_path: Path) -> None:
    """The launcher of a job is heard by the controller; its user sees the job; root and others do not by munge."""
    with small_lab(2) as lab:
        socket = f"{lab.folder}/munge/socket"
        config = f'[slurm]\nmunge = true\nmunge_socket = "{socket}"\n'
        with keeping(lab, tmp_path / "kept", config=config) as kept:
            url = str(kept.client.base_url).rstrip("/") if kept.client is not None else ""
            job = start(lab, kept, tmp_path, url, socket)
            kept.until(lambda: kept.attempts(job) == [0] or None, "the launcher's attempt")
            assert "does not let" not in (tmp_path / "said").read_text()
            me = pwd.getpwuid(os.geteuid()).pw_name
            assert kept.job(job)["view"]["user"] == me
            code, said = asked(lab, url, "jobs")
            if os.geteuid() == 0:
                assert code != 0
                assert "no token as a person by munge" in said
                code, said = asked(lab, url, "jobs", "--json", uid=NOBODY)
                assert (code, msgspec.json.decode(said)) == (0, msgspec.json.decode(said)), said
                assert job not in said
            else:
                assert code == 0, said
                assert job in said


def start(lab: SlurmLab, kept: Kept, folder: Path, url: str, socket: str) -> str:
    folder.chmod(0o755)
    script = SCRIPT.format(folder=folder, url=url, socket=socket, python=sys.executable)
    return lab.sbatch([], script=script, cwd=folder)
