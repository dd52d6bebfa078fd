"""What agents and jobs of the embedded cluster are started with, without a process of either."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters.local.cluster import Cluster, parse
from holdfast.adapters.local.nodes import LocalNode
from holdfast.adapters.local.protocol import Submit
from holdfast.os.tls import CA_FILE, Trust, trust_of


@pytest.mark.parametrize("has_ca", [True, False])
def test_agents_and_launchers_trust_the_authority_beside_the_token_book(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ca: bool
) -> None:
    """The file of `holdfast token ca --dir DIR`, in place of one that whoever started the cluster trusts elsewhere."""
    monkeypatch.setenv(CA_FILE, "/elsewhere/ca.pem")
    monkeypatch.setattr(LocalNode, "_order", lambda _node, order: started.update({order["do"]: order["env"]}))
    started: dict[str, dict[str, Any]] = {}

    async def work() -> None:
        cluster = Cluster(parse(["--dir", str(tmp_path)]))
        node = LocalNode("node01", tmp_path / "node01", cluster.settings.node, cluster, spare=False)
        cluster.fleet.nodes["node01"] = node
        if has_ca:
            (tmp_path / "controller").mkdir()
            (tmp_path / "controller" / "ca.pem").write_text("made after the cluster came up")
        node._greet({"tmp": ""})
        job = cluster.jobs.submit(Submit(argv=("holdfast", "run")))
        cluster.jobs._start(job, ("node01",))

    asyncio.run(work())
    assert set(started) == {"serve", "start"}
    trusted = Trust(tmp_path / "controller" / "ca.pem") if has_ca else Trust()
    assert {trust_of(environment) for environment in started.values()} == {trusted}
