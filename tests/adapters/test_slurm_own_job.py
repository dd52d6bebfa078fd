"""Facts of our own job from recorded output, and the recall job's script. What runs is in tests/launch."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from holdfast.adapters.slurm import own_job
from holdfast.adapters.slurm.daemons import NodeAddress
from holdfast.adapters.slurm.own_job import OwnJob, job_name, read_addresses, read_job, recall_script
from holdfast.errors import PermanentOrderError

# `scontrol --oneliner show job` and `show node` of 22.05.8 on the lab, shortened.
JOB = (
    "JobId=8 JobName=app.sh UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901758 Nice=0 Account=(null) "
    "QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 "
    "Partition=main AllocNode:Sid=localhost:4986 ReqNodeList=(null) ExcNodeList=node[07-08] NodeList=node[01-02,04] "
    "BatchHost=node01 NumNodes=3 Command=/x/a b.sh WorkDir=/x StdErr=/x/app.out StdIn=/dev/null StdOut=/x/app.out"
)
NODE = "NodeName=node03 Arch=x86_64 CoresPerSocket=1 NodeAddr=10.1.0.3 NodeHostName=vm Port=29003 Version=22.05.8"


def test_facts_of_the_job_are_read() -> None:
    """Nodes, exclusions, whether it can be requeued and where it belongs."""
    facts = read_job(JOB)
    assert facts.nodes == ("node01", "node02", "node04")
    assert facts.excluded == ("node07", "node08")
    assert facts.is_batch
    assert facts.may_requeue
    assert facts.restarts == 0
    assert read_job(JOB.replace("Restarts=0", "Restarts=12")).restarts == 12
    assert (facts.partition, facts.account, facts.output) == ("main", "", "/x/app.out")


def test_addresses_of_daemons_are_read() -> None:
    """An own port is told; 0 and none mean the cluster's, and a node is left out where that is not known."""
    assert read_addresses(NODE, 17018) == {"node03": NodeAddress("10.1.0.3", 29003)}
    assert read_addresses(NODE.replace("29003", "0"), 17018)["node03"].port == 17018
    assert read_addresses(NODE.replace("Port=29003 ", ""), 17018)["node03"].port == 17018
    assert read_addresses(NODE.replace("Port=29003 ", ""), 0) == {}


def test_an_array_task_is_named_so_that_no_other_is_meant() -> None:
    """The first task's bare job id is that of the whole array."""
    assert job_name({"SLURM_JOB_ID": "7"}) == "7"
    assert job_name({"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0"}) == "7_0"


def test_the_recall_script_waits_then_excludes_and_pulls_the_start_in() -> None:
    """Never to `now`: the lab lost jobs that were launched in the second of their kill."""
    script = recall_script("7_0", ["node01"], 3)
    assert script.index("PENDING") < script.index("ExcNodeList=node01") < script.index("StartTime=now+1")
    # It cancels itself when that second has come: its end is what wakes the scheduler.
    assert script.index("StartTime=now+1") < script.index('while [ "$(date +%s)" -le') < script.index("scancel")
    assert "NumNodes=3" in script
    assert "NumNodes" not in recall_script("7", [], 0)


def test_only_names_of_slurm_reach_the_recall_script() -> None:
    """It is a shell script: nothing else may stand in it."""
    with pytest.raises(PermanentOrderError):
        recall_script("7", ["node01; rm -rf /"], 0)
    with pytest.raises(PermanentOrderError):
        recall_script("7 8", [], 0)


# Answers as slurmctld does while it starts, the first time for each verb; then as it does of a requeued job.
SCONTROL = """#!/bin/sh
case "$*" in *show*) verb=show;; *requeue*) verb=requeue;; *) verb=update;; esac
echo "$verb" >> calls
if [ ! -e "$verb" ]; then touch "$verb"
  echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1; fi
case $verb in show) echo '{job}';; update) exit 0;;
  requeue) echo "Job is pending execution for job 8" >&2; exit 1;; esac
"""


def test_a_requeue_outlasts_a_slurmctld_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question and order is asked again; one that had its effect although its answer was lost counts as done."""
    monkeypatch.setattr(own_job, "AGAIN_S", (0.0, 0.0))
    for name, script in (("scontrol", SCONTROL.replace("{job}", JOB)), ("sbatch", "#!/bin/sh\necho 9\n")):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    monkeypatch.setenv("PATH", environ["PATH"])
    said = asyncio.run(OwnJob("8", tmp_path, environ).requeue(["node02"], gone={"node02"}, size=3))
    assert said == "requeued; job 9 calls it back at once without node02,node07,node08"
    assert (tmp_path / "calls").read_text().split() == ["show", "show", "update", "update", "requeue", "requeue"]
