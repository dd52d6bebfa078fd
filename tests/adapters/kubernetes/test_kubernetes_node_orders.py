"""What orders about nodes write to Kubernetes, and whose cordons they leave alone. Without an API server."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast.adapters.kubernetes.asks import Vocabulary
from holdfast.adapters.kubernetes.node_orders import NodeOrders
from holdfast.adapters.kubernetes.objects import DRAIN_REASON, PREFIX, Node, Pod
from holdfast.adapters.kubernetes.settings import KubernetesConfig
from holdfast.errors import PermanentOrderError
from holdfast.model import orders as o

QUARANTINE = o.QuarantineNode(id="1", cause=1, node="n1", why="Xid 79")


def merged(into: Any, patch: Any) -> Any:
    """A JSON merge patch, carried out."""
    if not isinstance(patch, dict):
        return patch
    made = dict(into) if isinstance(into, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merged(made.get(name), value)
    return made


class Cluster:
    """One node, as the API server has it; stands for the looks and for the API."""

    def __init__(self, reason: str = "", *, boot: str = "b0") -> None:
        self.about: dict[str, Any] = {}
        self.patched: list[str] = []
        self.evicted: list[str] = []
        self.api = self
        self.nodes = SimpleNamespace(take=lambda _made: None)
        self.pods = SimpleNamespace(items={})
        self.eviction, self.version = "v1", 0
        self.on_wait: Callable[[], None] = lambda: None
        self.shows(reason, boot=boot)

    def shows(self, reason: str = "", *, boot: str = "b0") -> None:
        """The node is like this now; a reason comes with a cordon."""
        notes = {DRAIN_REASON: reason} if reason else {}
        self.about = {
            "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "1", "labels": {}, "annotations": notes},
            "spec": {"unschedulable": bool(reason), "providerID": "", "taints": []},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {"bootID": boot, "systemUUID": "machine-1", "machineID": ""},
            },
        }

    @property
    def reason(self) -> str:
        return str(self.about["metadata"]["annotations"].get(DRAIN_REASON, ""))

    def node(self, name: str) -> Node | None:
        return msgspec.convert(self.about, Node) if name == "n1" else None

    async def get(self, _path: str) -> dict[str, Any]:
        return copy.deepcopy(self.about)

    async def patch(self, path: str, body: dict[str, Any], _kind: str) -> dict[str, Any]:
        self.patched.append(path)
        if not path.endswith("/status"):
            self.about = merged(self.about, body)
        return self.about

    async def create(self, path: str, _body: dict[str, Any]) -> dict[str, Any]:
        name = path.split("/")[-2]
        self.evicted.append(name)
        del self.pods.items[name]
        return {}

    async def wait(self, _version: int, _limit_s: float) -> None:
        return

    async def until(self, found: Callable[[], Any], _what: str, *, limit_s: float) -> Any:
        assert limit_s > 0
        self.on_wait()
        answer = found()
        assert answer is not None
        return answer

    def orders(self, **config: Any) -> NodeOrders:
        return NodeOrders(self, Vocabulary(), KubernetesConfig(**config))  # type: ignore[arg-type]


def test_a_cordon_of_somebody_else_is_left_as_it_is():
    """It serves as well: nothing is written over it. A node that nobody has taken out is marked as ours."""
    theirs, free = Cluster("fan is broken"), Cluster()
    assert "somebody else (fan is broken)" in asyncio.run(theirs.orders().execute(QUARANTINE))
    assert (theirs.patched, theirs.reason) == ([], "fan is broken")
    asyncio.run(free.orders().execute(QUARANTINE))
    assert (free.reason, free.about["spec"]["unschedulable"]) == (f"{PREFIX} Xid 79", True)
    assert asyncio.run(free.orders().execute(QUARANTINE)) == "out of service already"


def test_an_order_for_another_machine_changes_nothing():
    """The machine that it was for is gone, and the one behind the name has done nothing."""
    cluster = Cluster()
    with pytest.raises(PermanentOrderError, match="another machine now"):
        asyncio.run(cluster.orders().execute(msgspec.structs.replace(QUARANTINE, instance_id="k8s:machine-0")))
    assert cluster.patched == []


@pytest.mark.parametrize("reason", [f"{PREFIX} Xid 79", "mine now"])
def test_a_node_that_a_person_took_over_while_it_booted_stays_theirs(reason: str):
    """Ours is marked as before, and is in its checks; what the person wrote is not written over."""
    cluster = Cluster(f"{PREFIX} Xid 79")
    cluster.on_wait = lambda: cluster.shows(reason, boot="b1")
    orders = cluster.orders(reboot_program=("true",))
    order = o.RebootNode(id="1", cause=1, node="n1", why="Xid 79", boot_id="k8s:b0")
    assert asyncio.run(orders.execute(order)) == "rebooted"
    assert cluster.reason == reason
    assert bool(cluster.about["metadata"]["labels"]) == reason.startswith(PREFIX)


def pod(name: str, kind: str, **about: Any) -> Pod:
    """A running pod of the node."""
    owners = [{"kind": kind, "name": "owner", "uid": "o1", "controller": True, "apiVersion": "v1"}]
    told = {
        "metadata": {"name": name, "namespace": "default", "uid": name, "ownerReferences": owners, **about},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running"},
    }
    return msgspec.convert(told, Pod)


def test_what_every_node_has_stays_while_a_node_is_repaired():
    """A DaemonSet's pod would come back at once, and a static pod is the kubelet's; the others leave, training first."""
    cluster = Cluster(f"{PREFIX} Xid 79")
    static = {"annotations": {"kubernetes.io/config.mirror": "m"}}
    pods = [pod("web", "ReplicaSet"), pod("rank", "Job"), pod("exporter", "DaemonSet"), pod("proxy", "Node", **static)]
    cluster.pods.items = {one.metadata.name: one for one in pods}
    cluster.on_wait = lambda: cluster.shows(f"{PREFIX} Xid 79", boot="b1")
    order = o.RebootNode(id="1", cause=1, node="n1", why="Xid 79", boot_id="k8s:b0")
    asyncio.run(cluster.orders(reboot_program=("true",)).execute(order))
    assert cluster.evicted == ["rank", "web"]
    assert list(cluster.pods.items) == ["exporter", "proxy"]
