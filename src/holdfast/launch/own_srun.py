"""The srun that started this launcher: it waits for every node of its step, also for one that was let go.

Such a node never reports the end of its launcher, and a kill of the step does not reach it, so srun would hold the
allocation until the job's time limit. Called as the leader's last act, when all other launchers have left. Time: a
moment, in which the others' exit codes reach srun.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping

import psutil

FOLLOWERS_S = 1.0
"""Followers that were told to leave have left by then."""


def leave_own_srun(environ: Mapping[str, str], code: int) -> None:
    """Tell srun to wait no longer, and end this process with `code` at once: srun has the step killed, too.

    srun runs on our own node, as the batch host's, and is known by the port where its tasks report. Returns where there
    is none.
    """
    port = environ.get("SLURM_SRUN_COMM_PORT", "")
    found = _listening(int(port)) if port.isdecimal() else []
    if not found:
        return
    time.sleep(FOLLOWERS_S)
    sys.stdout.flush()
    sys.stderr.flush()
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGQUIT)
    os._exit(code)


def _listening(port: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["name", "uids"]):
        uids = process.info["uids"]
        if process.info["name"] != "srun" or uids is None or uids.real != os.getuid():
            continue
        with contextlib.suppress(psutil.Error):
            if any(getattr(one.laddr, "port", 0) == port for one in process.net_connections(kind="tcp")):
                found.append(process)
    return found
