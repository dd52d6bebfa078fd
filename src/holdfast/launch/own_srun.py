"""The srun that started this launcher: it waits for every node of its step, also for one that was let go.

Such a node never reports the end of its launcher, and a kill of the step does not reach it, so srun would hold the
allocation until the job's time limit. Called as the leader's last act, when all other launchers have left. Time: a
moment, in which the others' exit codes reach srun.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

import psutil

FOLLOWERS_S = 1.0
"""Followers that were told to leave have left by then."""


def end_own_srun(environ: Mapping[str, str]) -> bool:
    """Tell srun to wait no longer; its exit code stays that of the launchers. True when it was found.

    It runs on our own node, as the batch host's, and is known by the port where its tasks report.
    """
    port = environ.get("SLURM_SRUN_COMM_PORT", "")
    if not port.isdecimal():
        return False
    time.sleep(FOLLOWERS_S)
    found = False
    for process in psutil.process_iter(["name", "uids"]):
        uids = process.info["uids"]
        if process.info["name"] != "srun" or uids is None or uids.real != os.getuid():
            continue
        try:
            if any(getattr(one.laddr, "port", 0) == int(port) for one in process.net_connections(kind="tcp")):
                process.send_signal(signal.SIGQUIT)
                found = True
        except psutil.Error:
            continue
    return found
