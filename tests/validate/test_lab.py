"""`srun holdfast validate` on a real Slurm of eight nodes with networks of their own: healthy, broken in four ways, with
a peer that dies in the middle. Faults come from outside: a CPU quota, nft's numgen, an old package, spoiled arithmetic.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from holdfast.adapters.local.processes import environment_of
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.validate.results import NodeResult, Run, Verdict

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

HOLDFAST = f"exec {sys.executable} -m holdfast validate"
CPU_GROUP = Path("/sys/fs/cgroup/cpu/holdfast-test-slow")
SLOW = """
mkdir -p {group} && echo 10000 > {group}/cpu.cfs_quota_us && echo $$ > {group}/cgroup.procs
"""
STOPPED = """
{python} - $$ <<'EOF' &
import sys, time, psutil
own = psutil.Process(int(sys.argv[1]))
while own.is_running() and own.status() != psutil.STATUS_ZOMBIE:
    try:
        steps = [p for p in own.children() if "holdfast.validate.step" in p.cmdline() and "cpu" in p.cmdline()]
        for act, pause in (("suspend", 0.15), ("resume", 0.05)):
            for step in steps: getattr(step, act)()
            time.sleep(pause)
    except psutil.Error:
        pass
EOF
"""
LOSSY = """
nft add table inet lossy
nft add chain inet lossy in '{ type filter hook input priority 0; }'
nft add rule inet lossy in iifname eth0 numgen random mod 100 '<' 10 drop
"""
SUMS = "import math\nright = math.fsum\nmath.fsum = lambda values: right(values) * (1 + 2**-50)\n"


def validate(lab: SlurmLab, tmp_path: Path, faults: dict[str, str], *words: str) -> tuple[Run, float, str]:
    """Run it on all nodes, each with its fault before; returns the run, seconds, and what was printed."""
    cases = "\n".join(f"{node})\n{script}\n;;" for node, script in faults.items())
    script = tmp_path / "validate.sh"
    script.write_text(
        f"#!/bin/bash\nexport OF_TEST={tmp_path}\ncase $SLURMD_NODENAME in\n{cases}\nesac\n"
        f'{HOLDFAST} --journal none --out {tmp_path}/run --report {tmp_path}/run.html "$@"\n'
    )
    script.chmod(0o755)
    start = time.monotonic()
    ran = subprocess.run(
        ["srun", "--nodes=8", "--ntasks-per-node=1", "--kill-on-bad-exit=0", str(script), *words],
        env=lab.env(), cwd=lab.folder / "jobs", capture_output=True, text=True, timeout=3000,
    )  # fmt: skip
    took = time.monotonic() - start
    path = tmp_path / "run" / "run.json"
    assert path.exists(), ran.stdout + ran.stderr
    run = msgspec.json.decode(path.read_bytes(), type=Run)
    assert (ran.returncode != 0) == bool(run.blamed), ran.stderr
    return run, took, ran.stdout + ran.stderr


def why(run: Run) -> list[tuple[str, str, str]]:
    return [
        (node.node, item.name, item.why)
        for node in run.nodes
        for item in node.items
        if item.verdict in {Verdict.FAIL, Verdict.WARN}
    ]


def node_of(run: Run, name: str) -> NodeResult:
    return next(node for node in run.nodes if node.node == name)


def left_over(mark: Path) -> list[int]:
    """Steps of this test's run that outlived it."""
    steps = [p.pid for p in psutil.process_iter(["cmdline"]) if "holdfast.validate.step" in (p.info["cmdline"] or [])]
    return [pid for pid in steps if environment_of(pid).get("OF_TEST") == str(mark)]


def test_eight_healthy_nodes_pass_the_quick_suite(netns_lab: SlurmLab, tmp_path: Path) -> None:
    """Every node has figures of every suite, nobody is blamed, and the page is written."""
    shared = tmp_path / "shared"
    run, _, said = validate(netns_lab, tmp_path, {}, "--shared", str(shared))
    assert run.blamed == (), (why(run), said)
    assert [node.node for node in run.nodes] == [f"node{number:02d}" for number in range(1, 9)]
    for node in run.nodes:
        assert {item.suite for item in node.items} >= {"software", "cpu", "storage", "network", "shared"}
    assert "<h1>Validation v" in (tmp_path / "run.html").read_text()
    assert not (tmp_path / "run" / "leader.json").exists()


def test_four_broken_nodes_are_each_named_for_their_own_fault_and_no_other_is(
    netns_lab: SlurmLab, tmp_path: Path
) -> None:
    """A slow node, a lossy link, a wrong version, wrong sums, all at once."""
    sums, old = tmp_path / "sums", tmp_path / "old"
    info = old / "torch-2.9.1.dist-info"
    for folder in (sums, info):
        folder.mkdir(parents=True)
    (sums / "sitecustomize.py").write_text(SUMS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1\n")
    quota = os.access(CPU_GROUP.parent, os.W_OK) and (CPU_GROUP.parent / "cpu.cfs_quota_us").exists()
    slow = SLOW.format(group=CPU_GROUP) if quota else STOPPED.format(python=sys.executable)
    faults = {
        "node02": f"export PYTHONPATH={sums}",
        "node03": LOSSY,
        "node05": slow,
        "node06": f"export PYTHONPATH={old}",
    }
    try:
        run, _, said = validate(netns_lab, tmp_path, faults)
    finally:
        netns_lab.run(["srun", "--nodelist=node03", "nft", "delete", "table", "inet", "lossy"])
        if CPU_GROUP.exists():
            CPU_GROUP.rmdir()
    assert run.blamed == ("node02", "node03", "node05", "node06"), (why(run), said)
    found = {node: {name: text for one, name, text in why(run) if one == node} for node in run.blamed}
    assert found["node02"]["cpu.correct"] == "it computes wrong sums"
    assert "lost" in found["node03"]["network.pairs"] or "sent again" in found["node03"]["network.pairs"]
    assert any(name in found["node05"] for name in ("cpu.allowed", "cpu.rate", "cpu.held_back")), found
    assert found["node06"]["software.package.torch"].startswith("2.9.1 here, ")
    assert "node05: FAIL" in said


def test_a_node_that_crashes_in_the_middle_is_reported_and_the_run_ends(netns_lab: SlurmLab, tmp_path: Path) -> None:
    """Power off while steps run: the seven others are judged, and nothing of the run is left on the machine."""
    powered_off = tmp_path / "off"
    steps = tmp_path / "run" / "steps.jsonl"
    # The task itself, as soon as the first step of any node has ended.
    script = f"(until [ -s {steps} ]; do sleep 0.1; done; touch {powered_off}; kill -9 $$) &"
    run, _, said = validate(netns_lab, tmp_path, {"node04": script}, "--suite", "cpu,storage,network")
    assert powered_off.exists(), said
    assert run.blamed == ("node04",), (why(run), said)
    assert "line ended in the middle" in node_of(run, "node04").lost
    deadline = time.monotonic() + 60
    while left_over(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_over(tmp_path) == []


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_twenty_healthy_runs_blame_nobody(netns_lab: SlurmLab, tmp_path: Path) -> None:
    """And each is done within a minute on a machine that does nothing else."""
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        run, took, said = validate(netns_lab, folder, {})
        assert run.blamed == (), (number, why(run), said)
        print(f"run {number}: {took:.1f} s")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_all_nodes_in_depth_name_the_one_bad_node(netns_lab: SlurmLab, tmp_path: Path) -> None:
    """`holdfast validate --nodes all --deep`, which calls srun itself: pairs name the lossy node alone."""
    netns_lab.run(["srun", "--nodelist=node03", "--nodes=1", "bash", "-c", LOSSY])
    argv = [sys.executable, "-m", "holdfast", "validate", "--nodes", "all", "--deep", "--suite", "network"]
    argv += ["--journal", "none", "--out", str(tmp_path / "run")]
    try:
        ran = subprocess.run(
            argv, env=netns_lab.env(), cwd=netns_lab.folder / "jobs", capture_output=True, text=True, timeout=3000
        )
    finally:
        netns_lab.run(["srun", "--nodelist=node03", "nft", "delete", "table", "inet", "lossy"])
    assert (tmp_path / "run" / "run.json").exists(), ran.stdout + ran.stderr
    run = msgspec.json.decode((tmp_path / "run" / "run.json").read_bytes(), type=Run)
    print("\n".join(run.rounds), f"{run.seconds:.0f} s")
    assert (len(run.nodes), run.blamed, ran.returncode) == (8, ("node03",), 1), (why(run), ran.stdout + ran.stderr)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("suites", ["network,nccl", "nccl"])
def test_collectives_in_depth_over_a_lossy_node_end_and_name_it(
    netns_lab: SlurmLab, tmp_path: Path, suites: str
) -> None:
    """After the paired tests it is left out of the sweeps; without them the hunt by halves finds it, within its limits."""
    try:
        run, took, said = validate(netns_lab, tmp_path, {"node03": LOSSY}, "--deep", "--suite", suites)
    finally:
        netns_lab.run(["srun", "--nodelist=node03", "nft", "delete", "table", "inet", "lossy"])
    print(f"{suites}: {took:.0f} s", *run.rounds, *run.notes, *why(run), sep="\n")
    assert run.blamed == ("node03",), (why(run), said)


@pytest.mark.soak
def test_a_cancelled_step_is_resumed_with_what_it_had(netns_lab: SlurmLab, tmp_path: Path) -> None:
    """srun is cancelled as soon as a step has ended: the second run keeps id and results, and all eight are judged."""
    steps = tmp_path / "run" / "steps.jsonl"
    cancel = f"(until [ -s {steps} ]; do sleep 0.1; done; scancel --signal=KILL $SLURM_JOB_ID) &"
    script = tmp_path / "broken.sh"
    words = f"--suite cpu,storage,network --journal none --out {tmp_path}/run"
    script.write_text(f'#!/bin/bash\n[ "$SLURM_PROCID" = 0 ] && {cancel}\n{HOLDFAST} {words}\n')
    script.chmod(0o755)
    argv = ["srun", "--nodes=8", "--ntasks-per-node=1", str(script)]
    broken = subprocess.run(
        argv, env=netns_lab.env(), cwd=netns_lab.folder / "jobs", capture_output=True, text=True, timeout=600
    )
    assert broken.returncode != 0
    assert not (tmp_path / "run" / "run.json").exists()
    kept = steps.read_text().splitlines()
    run, _, said = validate(netns_lab, tmp_path, {}, "--suite", "cpu,storage,network", "--resume")
    assert run.blamed == (), (why(run), said)
    assert len(run.nodes) == 8
    assert steps.read_text().splitlines()[: len(kept) - 1] == kept[:-1]
