"""On a real Slurm a launcher, an agent and the command line log in by munge: no token lies anywhere.

The controller is the real one, with `[slurm] munge` and the lab's own munged.
"""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

import httpx
import pytest

from attack_fixture import only_root
from holdfast.client import Client
from holdfast.lab.slurm_conf import CLUSTER
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.os.programs import Background, Command, run_blocking
from munge_fixture import Munged, munged
from slurm_keeper import Kept, keeping
from slurm_world import small_lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NOBODY = 65534
ADDRESS, ELSEWHERE = "127.0.0.1", "127.0.0.9"
"""The lab's nodes are on this machine; the second is an address that none of them has."""
SCRIPT = """#!/bin/bash
#SBATCH --nodes=1 --exclusive --output={folder}/said
#SBATCH --comment='{{"holdfast": {{"max_requeues": 3}}}}'
export HOLDFAST_CONTROLLER={url} HOLDFAST_MUNGE={socket} HOLDFAST_PLAIN_HTTP=1
srun {python} -m holdfast run --job-dir {folder}/job -- {python} -c 'import time; time.sleep(1000)'
"""


def test_launcher_agent_and_user_need_no_token(tmp_path: Path) -> None:
    """The launcher of a job is heard, and the agent of the node whose address it has. Root reads nothing by munge, and a
    user sees no job of others."""
    with small_lab(2) as lab:
        socket = f"{lab.folder}/munge/socket"
        config = f'[slurm]\nmunge = true\nmunge_socket = "{socket}"\n'
        with keeping(lab, tmp_path / "kept", config=config) as kept:
            url = str(kept.client.base_url).rstrip("/") if kept.client is not None else ""
            job = start(lab, tmp_path, url, socket)
            kept.until(lambda: kept.attempts(job) == [0], "the launcher's attempt")
            kept.until(
                (tmp_path / "said").exists, "the job's output, which slurmd opens after the job counts as running"
            )
            assert "does not let" not in (tmp_path / "said").read_text()
            assert kept.job(job)["view"]["user"] == pwd.getpwuid(os.geteuid()).pw_name
            only_root("agents are root's, and other users only root can become")
            code, said = asked(lab, url, socket, "jobs")
            assert code != 0
            assert "no token as a person" in said
            credential = Munged(Path(socket)).make(uid=NOBODY, cluster=CLUSTER)
            answer = httpx.post(
                f"{url}/v1/token", json={"credential": credential}, trust_env=False, timeout=30.0
            ).json()
            assert answer["role"] == "owner"
            with Client(url, answer["token"]) as user:
                assert user.jobs() == []
            assert httpx.post(f"{url}/v1/token", json={"credential": credential}, trust_env=False).status_code == 401
            agents(lab, kept, url, tmp_path)


def agents(lab: SlurmLab, kept: Kept, url: str, folder: Path) -> None:
    """An agent at another address is refused, and one at the node's own is heard."""
    key = (lab.folder / "munge" / "key").read_bytes()
    node = next(iter(lab.node_states()))
    with munged(key, ELSEWHERE) as far, munged(key, ADDRESS) as near:
        for number, (one, heard) in enumerate(((far, False), (near, True))):
            log = folder / f"agent-{number}.log"
            argv = (sys.executable, "-m", "holdfast", "agent", "--node", node, "--controller", url, "--beat-s", "0.2")
            argv += (
                "--state-dir",
                str(folder / f"agent-{number}"),
                "--kernel-log",
                str(folder / "kmsg"),
                "--no-checks",
            )
            (folder / "kmsg").touch()
            agent = Background(Command(argv=argv, env={**lab.env(), "HOLDFAST_MUNGE": one.socket}, log=log))
            try:
                if heard:
                    kept.until(lambda: kept.node(node).get("agent_boot_id"), f"the agent\n{log}")
                else:
                    kept.until(lambda log=log: "--origin" in log.read_text(), f"the refusal\n{log.read_text()}")
                    assert not kept.node(node).get("agent_boot_id")
            finally:
                agent.kill()
                agent.finish(10.0)


def asked(lab: SlurmLab, url: str, socket: str, *words: str) -> tuple[int | None, str]:
    """What the command line says to root, with munge alone."""
    environ = {**lab.env(), "HOLDFAST_CONTROLLER": url, "HOLDFAST_MUNGE": socket, "HOME": "/nowhere"}
    ran = run_blocking(Command(argv=(sys.executable, "-m", "holdfast", *words), env=environ, cwd="/"), 60.0)
    return ran.code, ran.out + ran.err


def start(lab: SlurmLab, folder: Path, url: str, socket: str) -> str:
    folder.chmod(0o755)
    script = SCRIPT.format(folder=folder, url=url, socket=socket, python=sys.executable)
    return lab.sbatch([], script=script, cwd=folder)
