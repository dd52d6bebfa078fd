"""W4: ParallelCluster's GPU health check before the job, on a real Slurm of nine nodes.

Emulated are the GPUs (`nvidia-smi`, `dcgmi` and NVML answer for them) and EC2 (moto, a real service on this machine).
The check is the shipped `deploy/slurm/prolog.sh`; slurmctld and slurmd drain and requeue as they do on AWS.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
from moto.server import ThreadedMotoServer

from holdfast.adapters.emulated import devices
from holdfast.adapters.emulated.faults import FAULTS, Hit
from holdfast.adapters.emulated.layout import Devices
from holdfast.adapters.slurm.output import node_names
from holdfast.agent.node_facts import embedded_gpus, read_embedded
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until
from slurm_fixture import need_slurm, short_folder
from slurm_keeper import keeping

pytestmark = pytest.mark.cluster

PROLOG = Path(__file__).parents[2] / "deploy" / "slurm" / "prolog.sh"
REGION = "us-east-1"
NODES = 9
HANGS_S = 2.0
LIMIT_S = 90.0
IN_SERVICE = {"idle", "mixed", "allocated"}
CONF = """\
Prolog={place}/prolog
SchedulerParameters=nohold_on_prolog_fail,sched_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_interval=1
BatchStartTimeout=180
PrologEpilogTimeout=300
UnkillableStepTimeout=90
"""
"""Prolog, nohold_on_prolog_fail and BatchStartTimeout are ParallelCluster's own; the rest suits a lab's quick times."""
SITE_PROLOG = """\
#!/bin/sh
# Where this lab has Holdfast, and the emulated GPUs of the node.
HOLDFAST={place}/holdfast HOLDFAST_NODE_DIR={place}/nodes/$SLURMD_NODENAME HOLDFAST_PROLOG_LIMIT_S=$(/bin/cat {place}/limit)
export HOLDFAST HOLDFAST_NODE_DIR HOLDFAST_PROLOG_LIMIT_S HOLDFAST_PROLOG_AGE_S=0
exec {prolog}
"""
HOLDFAST = '#!/bin/sh\nexec {python} -m holdfast.cli.main "$@"\n'
BOOTSTRAP = """\
#!{python}
# The instance that EC2 has sent boots under the node's name. In this lab: another machine, with other GPUs.
import subprocess, sys
from pathlib import Path
from tests.walks.test_parallelcluster import equip
node = sys.argv[1]
subprocess.run(["{place}/bin/replace-node", node], check=True)
equip(Path("{place}/nodes", node))
"""
SCRIPT = """\
#!/bin/bash
#SBATCH --requeue
#SBATCH -N 8
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1) MASTER_PORT=$((20000 + SLURM_JOB_ID))
srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS exec {python} -m holdfast.workload.counter \\
    --steps 400 --step-time 0.05 --checkpoint-every 5 --checkpoint-dir {folder}/ckpt'
"""


def equip(node_dir: Path, limit_s: float = 30.0) -> None:
    """Give the machine that boots in this folder its emulated GPUs."""
    wait_until((node_dir / "node.json").exists, f"{node_dir.name} boots", limit_s=limit_s)
    identity, _ = read_embedded(node_dir)
    gpus = embedded_gpus(node_dir)
    devices.prepare(node_dir / "devices", gpus, machine=identity.instance_id, booted=identity.boot_id)


class Cloud:
    """EC2, as its own clients see it: one instance for each node, named by its tag."""

    def __init__(self, url: str, names: list[str]) -> None:
        self.url = url
        self.ec2 = boto3.client("ec2", region_name=REGION, endpoint_url=url)
        data = {"ImageId": "ami-0abcdef1234567890", "InstanceType": "p4d.24xlarge"}
        self.ec2.create_launch_template(LaunchTemplateName="gpu-queue", LaunchTemplateData=data)
        for name in names:
            tags = [{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": name}]}]
            self.ec2.run_instances(
                LaunchTemplate={"LaunchTemplateName": "gpu-queue"}, MinCount=1, MaxCount=1, TagSpecifications=tags
            )

    def instances(self, name: str) -> dict[str, str]:
        """Instance -> state, of all that had or have this node's name."""
        return {one["InstanceId"]: one["State"]["Name"] for one in self._described(name)}

    def launched_at(self, name: str) -> float:
        """When the newest instance of this name was launched, whole Unix seconds."""
        return max(one["LaunchTime"].timestamp() for one in self._described(name)) // 1

    def _described(self, name: str) -> list[dict[str, Any]]:
        pages = self.ec2.describe_instances(Filters=[{"Name": "tag:Name", "Values": [name]}])["Reservations"]
        return [one for page in pages for one in page["Instances"]]

    def config(self, place: Path) -> str:
        """holdfast.toml: who terminates and launches, and what the new instance does when it boots."""
        ec2 = {"region": REGION, "find": "tag:Name", "replace": "launch", "launch_template": "gpu-queue", "poll_s": 0.2}
        lines = ["[repair]", f"after_replace = {json.dumps([[f'{place}/bootstrap', '{node}']])}", "[repair.ec2]"]
        return "\n".join([*lines, *(f"{key} = {json.dumps(value)}" for key, value in ec2.items())]) + (
            f'\nendpoint = "{self.url}"\n'
        )


class Site(NamedTuple):
    """A cluster in service."""

    lab: SlurmLab
    cloud: Cloud
    place: Path

    def break_gpus(self, node: str, fault: str, gpu: int = 0) -> None:
        """One of `holdfast drill inject`'s faults."""
        with Devices(self.lab.node_dir(node) / "devices" / "state") as found:
            FAULTS[fault].apply(found, Hit(gpu))

    def sinfo(self) -> str:
        """One line for each node: name, state, reason."""
        return self.lab.run(["sinfo", "-h", "-N", "-o", "%N %T %E"])


class Training:
    """One run of the script in a folder of its own."""

    def __init__(self, site: Site) -> None:
        folder = Path(tempfile.mkdtemp(prefix="train-", dir=site.place))
        self.out = folder / "slurm.out"
        script = SCRIPT.replace("{python}", sys.executable).replace("{folder}", str(folder))
        self.id = site.lab.sbatch([f"--output={self.out}"], script=script)

    def _numbers(self, pattern: str) -> list[int]:
        text = self.out.read_text() if self.out.exists() else ""
        return [int(number) for number in re.findall(pattern, text, re.MULTILINE)]

    def step(self) -> int:
        """The newest completed step, 0 before the first."""
        return (self._numbers(r"^step (\d+)/") or [0])[-1]

    def begins(self) -> list[int]:
        """The step that each of its starts went on from."""
        return self._numbers(r"^starting at step (\d+) ")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Nine nodes with emulated GPUs and the check as their Prolog."""
    need_slurm()
    with short_folder() as folder, pytest.MonkeyPatch.context() as patch:
        place = folder.resolve()
        for name, value in (("AWS_ACCESS_KEY_ID", "testing"), ("AWS_SECRET_ACCESS_KEY", "testing")):
            patch.setenv(name, value)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
        patch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}:{Path(__file__).parents[1]}")
        words = {"place": str(place), "prolog": str(PROLOG), "python": sys.executable}
        for file, text in (("prolog", SITE_PROLOG), ("holdfast", HOLDFAST), ("bootstrap", BOOTSTRAP)):
            (place / file).write_text(text.format_map(words))
            (place / file).chmod(0o755)
        (place / "limit").write_text("240")
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        settings = LabSettings(nodes=NODES, netns=True, boot_s=0.3, gpus=8, extra_conf=CONF.format_map(words))
        try:
            with SlurmLab.start(settings, place) as lab:
                for name in lab.facts.names:
                    equip(lab.node_dir(name))
                host, port = server.get_host_and_port()
                yield Site(lab, Cloud(f"http://{host}:{port}", lab.facts.names), place)
        finally:
            server.stop()


@pytest.mark.walk("W4.1")
@pytest.mark.timeout(240)
def test_a_check_that_hangs_everywhere_drains_no_node(site: Site) -> None:
    """NVML, nvidia-smi and DCGM return on no node: the check ends at its limit, UNKNOWN, and the job starts."""
    (site.place / "limit").write_text(f"{HANGS_S}")
    for name in site.lab.facts.names:
        site.break_gpus(name, "nvml_hang")
    began = time.monotonic()
    job = site.lab.sbatch(["-N", "8", f"--output={site.place}/hung.out"], script="#!/bin/bash\nsrun hostname\n")
    site.lab.until_job(job, "COMPLETED", limit_s=LIMIT_S)
    assert time.monotonic() - began > HANGS_S
    assert len(set((site.place / "hung.out").read_text().split())) == 8
    assert {line.split()[1] for line in site.sinfo().splitlines()} == {"idle"}, site.sinfo()
    assert site.lab.job(job)["Restarts"] == "0"
    (site.place / "limit").write_text("240")
    for name in site.lab.facts.names:
        (site.lab.node_dir(name) / "devices" / "state").unlink()
        equip(site.lab.node_dir(name))


@pytest.mark.walk("W4.1")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("which", [0, pytest.param(4, marks=pytest.mark.soak)])
def test_a_node_that_fails_the_check_is_replaced_and_the_job_resumes_elsewhere(
    site: Site, tmp_path: Path, which: int
) -> None:
    """A GPU has memory errors when the job's next start comes: the check takes its node out, and nobody does anything.

    Slurm drains the node and requeues the job; eight healthy nodes take it on from its newest checkpoint. The node's
    instance is terminated, another one runs in its place, and the node is idle again, or has the job where Slurm starts
    it later than that. Where it is not the batch host, Slurm itself waits a minute for a step that never began there.
    """
    lab, job = site.lab, Training(site)
    config = site.cloud.config(site.place)
    with keeping(lab, tmp_path / "c", policy='preset = "parallelcluster"\n', config=config) as kept:
        wait_until(lambda: job.step() > 20, "twenty steps", limit_s=LIMIT_S, logs=(job.out,))
        bad = node_names(lab.job(job.id)["NodeList"])[which]
        (old,) = site.cloud.instances(bad)
        site.break_gpus(bad, "ecc", gpu=3)
        lab.run(["scontrol", "requeue", job.id])  # a preemption, a maintenance: any reason for another start
        states: list[str] = []

        def is_back() -> bool:
            line = next(line for line in site.sinfo().splitlines() if line.startswith(f"{bad} "))
            states.extend([line] if line not in states[-1:] else [])
            return len(states) > 1 and line.split()[1] in IN_SERVICE and "drained" in " ".join(states)

        kept.until(is_back, "the node is back", limit_s=LIMIT_S)
        kept.until(lambda: len(job.begins()) > 1 and job.step() > job.begins()[-1], "resumed", limit_s=LIMIT_S)
        again, incidents = lab.job(job.id), kept.incidents()
    lab.run(["scancel", job.id])

    nodes = node_names(again["NodeList"])
    assert (len(nodes), again["Restarts"]) == (8, "2")
    started = datetime.strptime(again["StartTime"], "%Y-%m-%dT%H:%M:%S").astimezone().timestamp()
    assert bad not in nodes or started >= site.cloud.launched_at(bad), "only the other machine may have the job"
    assert job.begins()[0] == 0
    assert job.begins()[-1] >= 20
    assert states[-1].split()[1] in IN_SERVICE, states
    cloud = site.cloud.instances(bad)
    assert cloud.pop(old) == "terminated"
    assert list(cloud.values()) == ["running"]
    ctld, slurmd = lab.ctld_log.read_text(), lab.slurmd_log(bad).read_text()
    assert f"Prolog or job env setup failure on node {bad}, draining the node" in ctld
    assert re.search(rf"node {bad} reason set to: \[holdfast\] .* out of service: its Prolog failed", ctld)
    assert re.search(r"prolog failed: rc:1 output:CRITICAL +gpu-ecc +1 uncorrectable memory error on GPU 3", slurmd), (
        slurmd[-3000:]
    )
    assert [(one["outcome"], one["nodes"], one["remedies"]) for one in incidents] == [
        ("recovered", [bad], ["quarantine", "replace"])
    ]
