"""W5.3: the resiliency test of two nodes: faults on a running training, each phase measured, one timeline of all logs.

Slurm, the agents, the controller and the training (`examples/gpt/train.py`, gloo on processors) are real. The GPUs are
emulated, and so is the line that the driver writes when a GPU is reset under load. The tests stand in the order of the
guide: each one breaks the job that the one before has brought back.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.walks.login_node import holdfast, process_of

from holdfast.adapters.emulated.faults import FAULTS, Hit
from holdfast.adapters.emulated.layout import Devices
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab
from slurm_fixture import need_slurm, short_folder
from slurm_keeper import Kept

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TRAIN = Path(__file__).parents[2] / "examples" / "gpt" / "train.py"
LIMIT_S = 100.0
BOOT_S = 4.0
"""Long enough for slurmctld to see another boot, for which it sets the node down."""
POLICY = """\
always_replace = true
[node]
ladder = ["replace", "retire"]
[brake]
max_nodes = 2
max_percent = 100.0
"""
AGENT = """\
validate = ["gpu-*", "nvidia-smi", "dcgm-diag-2"]
[limits]
trend_span_s = 14.0
"""
"""Ten minutes of a rising temperature are shortened to the first seven of fourteen seconds."""
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=resiliency_test
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120

srun holdfast run --standbys 0 --tee all --nproc-per-node 1 {train} {folder}/text.txt \\
    --steps 100000 --checkpoint-every 20 --checkpoint-dir {folder}/checkpoints
"""
PHASES = ["detect", "isolate", "drain", "replace", "validate"]


class Run:
    """The job, and who watches it."""

    def __init__(self, lab: SlurmLab, kept: Kept) -> None:
        self.lab, self.kept, self.folder = lab, kept, lab.folder / "jobs" / "work"
        self.folder.mkdir()
        self.out = self.folder / "resiliency_test.out"
        (self.folder / "text.txt").write_text("to be, or not to be: that is the question. " * 50)
        head, body = SCRIPT.replace("{train}", str(TRAIN)).replace("{folder}", str(self.folder)).split("\n\n", 1)
        controller = kept.folder / "controller"
        site = [f"export PATH={Path(sys.executable).parent}:$PATH OMP_NUM_THREADS=1"]
        site += [f"export HOLDFAST_CONTROLLER_FILE={controller}/controller.json"]
        site += [f"export HOLDFAST_TOKEN_FILE={controller}/agent-token"]
        options = [f"--output={self.out}", f"--chdir={self.folder}"]
        self.id = lab.sbatch(options, script="\n".join([head, *site, body]), cwd=self.folder)

    def text(self) -> str:
        """What the job prints now; what it printed before its last requeue was moved aside."""
        return self.out.read_text(errors="replace") if self.out.exists() else ""

    def steps(self, text: str = "") -> list[int]:
        return [int(number) for number in re.findall(r"step (\d+)/100000 loss", text or self.text())]

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        return self.kept.until(lambda: holds() or None, f"{what}\n{self.text()[-3000:]}", limit_s=LIMIT_S)

    def trains(self, more: int = 30) -> int:
        """Wait until this attempt has taken more steps; returns the newest."""
        seen = self.steps()
        self.until(lambda: len(self.steps()) >= len(seen) + more, "it trains")
        return self.steps()[-1]

    def rank_on(self, node: str) -> int:
        """The training's own process on a node."""

        def is_it(_: psutil.Process, words: list[str], env: dict[str, str]) -> bool:
            return env.get("SLURMD_NODENAME") == node and "RANK" in env and f"{self.folder}/text.txt" in words[:5]

        return process_of(f"training on {node}", is_it).pid

    def closed(self, cause: str) -> dict[str, Any]:
        """The closed incident with this cause, as `holdfast incident ID --json` gives it."""

        def found() -> str:
            for one in self.kept.incidents():
                if one.get("diagnosis", {}).get("cause") == cause and one.get("closed_at"):
                    return str(one["id"])
            return ""

        told = json.loads(self.command("incident", self.until(found, f"an incident of {cause} is closed"), "--json"))
        return dict(told["incident"])

    def command(self, *words: str) -> str:
        """What an operator's command prints."""
        return holdfast(*words, kept=self.kept, columns=200)

    def timeline(self, incident: str) -> list[dict[str, Any]]:
        return list(json.loads(self.command("incident", incident, "--timeline", "--json"))["lines"])

    def agent_log(self, node: str) -> Path:
        """The agent's log, kept beside the job: a replaced machine takes its own along."""
        kept = self.folder / f"agent-{node}.log"
        os.link(self.lab.node_dir(node) / "agent.log", kept)
        return kept

    def state(self, node: str) -> str:
        """As scontrol shows it: base state and flags."""
        shown = self.lab.run(["scontrol", "show", "node", "-o", node])
        return re.findall(r" State=(\S+)", shown)[0]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Two nodes of one GPU each, with agents and a controller, and the training on both."""
    need_slurm(netns=True)
    with short_folder() as folder:
        place = folder.resolve()
        (place / "agent.toml").write_text(AGENT)
        settings = LabSettings(
            nodes=2, netns=True, gpus=1, agents=True, devices=True, agent_config=f"{place}/agent.toml", boot_s=BOOT_S
        )
        with SlurmLab.start(settings, place) as lab:
            kept = Kept(lab, place, POLICY, f'[slurm]\nreplace_program = ["{place}/bin/replace-node"]\n')
            kept.listen = f"{lab.facts.ctld_address}:0"
            try:
                kept.start()
                yield Run(lab, kept)
            finally:
                kept.end()


def adds_up(incident: dict[str, Any], key: str, begin: str, end: str) -> dict[str, float]:
    """The phases by name; their seconds are the time between the two marks."""
    found = {phase["name"]: phase["seconds"] for phase in incident[key]}
    whole = incident["marks"][end] - incident["marks"][begin]
    assert sum(found.values()) == pytest.approx(whole, abs=0.001), incident
    return found


@pytest.mark.walk("W5.3")
def test_kill_9_of_the_training_on_a_node_resumes_from_the_newest_checkpoint(run: Run) -> None:
    """`pkill -9 python` on the second node: restarted in the same allocation, every phase measured, no node blamed."""
    run.trains(60)
    os.kill(run.rank_on("node02"), signal.SIGKILL)
    incident = run.closed("exit.signal.9")
    run.trains()
    assert incident["outcome"] == "recovered"
    assert run.lab.job(run.id)["Restarts"] == "0"
    before, after = run.text().split("[holdfast] attempt 1 ", 1)
    assert "rank 1 on node02 ended with signal 9" in before
    resumed = run.steps(after)[0] - 1
    assert resumed % 20 == 0
    assert 0 < resumed <= run.steps(before)[-1]
    assert (incident["step_resumed"], incident["node_phases"]) == (resumed, [])
    phases = adds_up(incident, "phases", "fault", "proven")
    assert {"detect", "diagnose", "stop", "start", "first step", "prove"} <= set(phases), phases


@pytest.mark.walk("W5.3")
def test_nvidia_smi_reset_drains_replaces_validates_and_resumes(run: Run) -> None:
    """A reset under load costs the GPU: the node is drained, down and replaced, checked, and the job goes on from its save.

    slurmctld's log, the agent's log and the job's output each show it; one timeline says whose word each line is.
    """
    last = run.trains()
    agent, before = run.agent_log("node02"), json.loads((run.lab.node_dir("node02") / "node.json").read_text())
    smi = subprocess.run([run.lab.node_dir("node02") / "devices/bin/nvidia-smi", "-r"], capture_output=True, text=True)
    assert "successfully reset" in smi.stdout
    run.lab.kmsg("node02", "NVRM: Xid (PCI:0000:53:00): 79, pid=4242, name=python, GPU has fallen off the bus.")
    states: list[str] = []

    def is_back() -> bool:
        state = run.state("node02")
        states.extend([state] if state not in states[-1:] else [])
        return any("DRAIN" in one for one in states) and state in {"IDLE", "MIXED", "ALLOCATED"}

    run.until(is_back, "node02 is replaced")
    incident = run.closed("nvidia.xid.79")
    run.trains()
    assert (incident["outcome"], incident["remedies"]) == ("recovered", ["quarantine", "requeue", "replace"])
    machine = json.loads((run.lab.node_dir("node02") / "node.json").read_text())
    assert machine["instance_id"] != before["instance_id"]
    old = (run.folder / "resiliency_test.attempt-0.out").read_text()
    assert run.steps(old)[-1] >= last
    assert run.steps()[0] == incident["step_resumed"] + 1

    job = adds_up(incident, "phases", "fault", "proven")
    node = adds_up(incident, "node_phases", "fault", "node_returned")
    assert list(node) == PHASES
    assert {"detect", "stop", "wait for a node", "start", "first step", "prove"} <= set(job)
    assert node["replace"] >= BOOT_S
    assert job["wait for a node"] > BOOT_S - 1, "there is no third node; Slurm tells starts in whole seconds"

    ctld = run.lab.ctld_log.read_text()
    reason = r"\[holdfast\] Xid 79: GPU has fallen off the bus \(node02, GPU 0\)"
    assert any("DOWN" in state for state in states), states
    for line in (rf"node node02 reason set to: {reason}", "node node02 state set to DRAIN", "Requeuing JobId"):
        assert re.search(line, ctld), line
    assert re.search(r"found +rule=nvidia.xid.79 what='Xid 79.*' where='node02, GPU 0'", agent.read_text())
    assert re.search("CANCELLED|Killed", old)

    lines = run.timeline(incident["id"])
    said = {(line["origin"], line["kind"]): line["text"] for line in lines}
    assert "NVRM: Xid" in said["kernel", "finding_seen"]
    assert {"agent", "application", "controller", "kernel", "launcher", "scheduler"} >= {
        line["origin"] for line in lines
    }
    orders = [line["text"].split(":")[0] for line in lines if line["kind"] == "order" and line["place"] == "node02"]
    assert list(dict.fromkeys(orders)) == ["quarantine node", "replace node", "validate node", "return node"]
    assert any("DRAIN" in line["text"] for line in lines if line["origin"] == "scheduler")
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)


@pytest.mark.alone
@pytest.mark.walk("W5.3")
def test_a_rising_temperature_has_the_job_saved_and_the_node_replaced_before_it_fails(run: Run) -> None:
    """The GPU of the batch host grows hotter towards its slowdown: the job saves where it is and loses no step."""
    run.trains()
    agent, began, degrees = run.agent_log("node01"), time.monotonic(), [0]

    def is_asked() -> bool:
        degrees[0] = min(86, 72 + int((time.monotonic() - began) / 1.5))
        with Devices(run.lab.node_dir("node01") / "devices" / "state") as found:
            FAULTS["temperature"].apply(found, Hit(0, 0, degrees[0]))
        return any("evacuate" in one.get("remedies", ()) for one in run.kept.incidents())

    run.until(is_asked, "it is asked to leave")
    incident = run.closed("check.gpu_trend_thermal")
    run.trains()
    assert degrees[0] < 87, "it was replaced before its slowdown temperature"
    assert (incident["outcome"], incident["remedies"][:2]) == ("recovered", ["quarantine", "evacuate"])
    assert incident["remedies"][-1] == "replace"
    (old,) = (
        path for path in run.folder.glob("resiliency_test.attempt-*.out") if "asked all ranks" in path.read_text()
    )
    asked, saved = re.search(
        r"asked all ranks to save a checkpoint and stop: (.*)\n[\s\S]* step (\d+) is saved", old.read_text()
    ).groups()  # type: ignore[union-attr]
    assert "reaches 87 C" in asked
    assert run.steps(old.read_text())[-1] == int(saved) == run.steps()[0] - 1
    assert (incident["step_before"], incident["step_resumed"], incident["lost_steps"]) == (int(saved), int(saved), 0), (
        incident
    )
    assert list(adds_up(incident, "node_phases", "fault", "node_returned")) == PHASES
    adds_up(incident, "phases", "fault", "proven")
    assert re.search(r"found +rule=check.gpu_trend_thermal what='GPU 0 reaches 87 C", agent.read_text())
    assert re.search(r"node node01 reason set to: \[holdfast\] GPU 0 reaches 87 C", run.lab.ctld_log.read_text())
