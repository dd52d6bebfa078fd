"""Emulated GPUs on the embedded cluster, a real controller: from a fault that must be polled to the quarantine order."""

import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import pytest

from agent.test_with_controller import attached
from cluster_fixture import embedded_cluster
from holdfast.client import AsyncClient
from holdfast.model.events import FindingSeen, NodeValidated
from holdfast.model.orders import QuarantineNode

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

POLL_S = 1.0


def holdfast(*argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", *argv], capture_output=True, text=True, timeout=60, env=env
    )


async def until(found, limit_s: float = 30.0):
    deadline = time.monotonic() + limit_s
    while not (answer := await found()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.03)
    return answer


async def first_looks(folder: Path, nodes: int) -> None:
    """Every agent has looked at its GPUs, so that what comes now is news."""
    paths = [folder / "nodes" / f"node{n:02d}" / "devices" / "state" for n in range(1, nodes + 1)]
    await until(lambda: asyncio.sleep(0, all(path.exists() for path in paths)))
    await asyncio.sleep(2.0 + POLL_S)  # FIRST_WITHIN_S and one more look: there is no event that tells of a good look


async def quarantined(client: AsyncClient, node: str) -> float:
    """When the order to quarantine the node was issued."""

    async def look():
        return [
            o.issued_at for o in await client.orders() if isinstance(o.order, QuarantineNode) and o.order.node == node
        ]

    return (await until(look))[-1]


def test_polled_faults_lead_to_a_quarantine_order_within_the_interval(tmp_path: Path, record_property) -> None:
    """Injected as people do it; the order is there within the poll interval and a second; the node is reset and returns."""
    faults = [
        ("node01", ("dcgmi", "test", "--inject", "--gpuid", "0", "-f", "319", "-v", "4"), "check.gpu_ecc_uncorrected"),
        ("node02", ("holdfast", "gpu_lost", "--gpu", "5"), "check.gpu_lost"),
        ("node03", ("holdfast", "nvlink", "--gpu", "2", "--link", "7"), "check.gpu_nvlink_down"),
    ]
    policy = Path(str(resources.files("holdfast.drill") / "policy.toml"))

    async def body() -> list[float]:
        options = ("--emulated-devices", "--agent-poll-s", str(POLL_S))
        async with embedded_cluster(tmp_path, nodes=3, controller=True, policy=policy, options=options) as cluster:
            client = await attached(cluster.folder, 3)
            await first_looks(cluster.folder, 3)
            took = []
            for node, argv, rule in faults:
                bin_dir = cluster.folder / "nodes" / node / "devices" / "bin"
                if argv[0] == "holdfast":
                    done = await asyncio.to_thread(
                        holdfast, "drill", "inject", *argv[1:], "--node", node, "--dir", str(cluster.folder), "--json"
                    )
                    assert json.loads(done.stdout)["emulated"] is True
                else:
                    done = await asyncio.to_thread(subprocess.run, [str(bin_dir / argv[0]), *argv[1:]], timeout=90)
                    assert done.returncode == 0
                injected = (cluster.folder / "nodes" / node / "devices" / "state").stat().st_mtime
                took.append(await quarantined(client, node) - injected)
                rules = {
                    e.finding.rule
                    for e in (await client.events(kind="finding_seen", node=node)).events
                    if isinstance(e, FindingSeen)
                }
                assert rule in rules

            async def all_back():
                events = (await client.events(kind="node_validated")).events
                passed = {e.node for e in events if isinstance(e, NodeValidated) and e.passed}
                world = await cluster.orchestrator.observe()
                return passed == {"node01", "node02", "node03"} and not any(n.drained for n in world.nodes)

            await until(all_back, limit_s=60.0)
            await client.close()
            return took

    took = asyncio.run(body())
    record_property("fault_to_order_s", took)
    assert max(took) < POLL_S + 1.0, took
    assert statistics.median(took) < POLL_S + 0.5, took


def test_injection_needs_a_node_that_is_open_to_drills(tmp_path: Path) -> None:
    """A cluster that is not open to drills, a node that does not exist, a fault that does not exist: one sentence each."""

    async def body() -> None:
        async with embedded_cluster(tmp_path, nodes=1, drill_ok=False, agents=False) as cluster:
            where = ("--dir", str(cluster.folder))
            refused = holdfast("drill", "inject", "ecc", "--node", "node01", *where)
            assert (refused.returncode, "not open to drills" in refused.stderr) == (77, True)
            missing = holdfast("drill", "inject", "ecc", "--node", "node09", *where)
            assert (missing.returncode, "no node node09" in missing.stderr) == (1, True)
            wrong = holdfast("drill", "inject", "eec", "--node", "node01", *where)
            assert (wrong.returncode, 'did you mean "ecc"' in wrong.stderr) == (2, True)

    asyncio.run(body())


def test_jobs_on_the_node_see_its_gpus_and_check_works_there(tmp_path: Path) -> None:
    """A job runs `nvidia-smi` and `holdfast check` as a prolog would: critical, and by the check's own exit code."""

    async def body() -> None:
        options = ("--emulated-devices", "--agent-poll-s", "3600")
        async with embedded_cluster(tmp_path, nodes=1, agents=True, options=options) as cluster:
            devices = cluster.folder / "nodes" / "node01" / "devices"
            await until(lambda: asyncio.sleep(0, (devices / "state").exists()))
            script = "nvidia-smi -L | wc -l; dcgmi test --inject --gpuid 1 -f 395 -v 1; "
            script += f"{sys.executable} -m holdfast.cli.main check --mode prolog --quiet; echo exit $?"
            job = await cluster.orchestrator.submit(["sh", "-c", script], nodes=1)
            output = Path(job.job_dir) / "output.log"

            async def ended():
                return output.exists() and re.search(r"^exit \d+$", output.read_text(), re.MULTILINE)

            await until(ended)
            said = output.read_text().split("\n")
            assert said[0].strip() == "8"
            assert any(line.startswith("CRITICAL  gpu-remap") for line in said), said
            assert "exit 2" in said

    with contextlib.suppress(KeyError):
        os.environ.pop("HOLDFAST_AGENT_CONFIG")
    asyncio.run(body())
