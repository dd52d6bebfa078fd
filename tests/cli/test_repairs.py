"""`[repair]` on the embedded cluster: a real controller has a node replaced by the site's own program, then its hooks run."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from agent.test_with_controller import XID_74, attached
from cluster_fixture import embedded_cluster, node_of
from holdfast.model.events import OrderDone

pytestmark = pytest.mark.cluster

PROGRAM = """
import asyncio, sys
from holdfast.adapters.local.client import LocalOrchestrator
from holdfast.adapters.local.protocol import Replace
asyncio.run(LocalOrchestrator(sys.argv[1]).ask(Replace(node=sys.argv[2])))
print("a spare took its place")
"""


def test_a_site_program_replaces_a_node_and_hooks_follow(tmp_path: Path) -> None:
    """Xid 74: the site's program swaps the machine, the hook runs before the checks, the node returns to service."""
    tool, log, site = tmp_path / "replace.py", tmp_path / "log", tmp_path / "holdfast.toml"
    tool.write_text(PROGRAM)

    async def body() -> None:
        async with embedded_cluster(tmp_path, nodes=1, agents=True) as cluster:
            program = [sys.executable, str(tool), str(cluster.folder / "cluster.sock"), "{node}"]
            hook = ["sh", "-c", f'echo "$1 $HOLDFAST_REPLACED_BY" >> {log}', "hook", "{node}"]
            lines = ["[repair]", f"after_replace = [{json.dumps(hook)}]", "[repair.command]", f"replace = {program}"]
            site.write_text("\n".join(lines) + "\n")
            argv = [sys.executable, "-m", "holdfast.cli.main", "controller", "--dir", str(cluster.folder)]
            cluster.start_controller(argv=[*argv, "--config", str(site)])
            async with asyncio.timeout(60):
                while not cluster.running.controller_file.exists():
                    await asyncio.sleep(0.02)
            client = await attached(cluster.folder, 1)
            before = node_of(await cluster.orchestrator.observe(), "node01").instance_id
            await cluster.orchestrator.do("kmsg", "node01", text=XID_74)
            await cluster.until_node("node01", lambda n: n.instance_id != before and not n.drained, limit_s=60)
            done = [e.detail for e in (await client.events(kind="order_done")).events if isinstance(e, OrderDone)]
            assert "a spare took its place; 1 site hook run" in done
            await client.close()

    asyncio.run(body())
    assert log.read_text() == "node01 a spare took its place\n"
