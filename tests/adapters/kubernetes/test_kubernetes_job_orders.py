"""Orders about jobs that a controller was killed in the middle of: `adapters.kubernetes.job_orders`, over an API of fakes.

What whole jobs go through on a real API server is in `test_kubernetes_kinds` and `test_kubernetes_controllers`.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.adapters.kubernetes.job_orders import JobOrders
from holdfast.adapters.kubernetes.looks import Looks
from holdfast.adapters.kubernetes.objects import GIVEN_UP, HELD, KINDS, RESTARTS, Workload
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey

KEY = JobKey("c", "default/j")


class OldServer:
    """One Job on an API server that knows no `suspend`; its pods are made anew until it is to have none."""

    def __init__(self, notes: dict[str, str]) -> None:
        about = {"name": "j", "namespace": "default", "uid": "u", "resourceVersion": "1", "annotations": notes}
        self.manifest: dict[str, Any] = {"metadata": about, "spec": {"parallelism": 2, "template": {}}}
        self.version = 1
        self.api = self

    @property
    def job(self) -> Workload:
        return Workload(kind=KINDS["Job"], version="v1", manifest=self.manifest)

    async def get(self, _path: str) -> dict[str, Any]:
        return self.manifest

    async def patch(self, _path: str, patch: dict[str, Any], _kind: str) -> dict[str, Any]:
        self.manifest["metadata"]["annotations"] |= patch["metadata"]["annotations"]
        self.manifest["spec"] |= {key: value for key, value in patch.get("spec", {}).items() if key != "suspend"}
        return self.manifest

    def take(self, _job: Workload, _answer: dict[str, Any]) -> None:
        """The copy is the object."""

    def pods_by_workload(self) -> dict[str, list[Any]]:
        running = [SimpleNamespace(live=True, metadata=SimpleNamespace(uid=f"p{self.version}", name="p", namespace="d"),
                                   spec=SimpleNamespace(node_name="n1"))]  # fmt: skip
        return {"u": running if self.manifest["spec"]["parallelism"] else []}

    async def drop(self, _path: str, *, uid: str, grace_s: int) -> None:
        self.version += 1
        assert self.version < 10, f"pods are made anew for ever ({uid}, {grace_s} s)"

    async def wait(self, _seen: int, _limit_s: float) -> None:
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("notes", "order"),
    [
        ({HELD: "Xid 74", RESTARTS: "1"}, o.RequeueHeld(id="r", cause=1, job=KEY, restart_count=0)),
        ({GIVEN_UP: "no"}, o.GiveUp(id="g", cause=1, job=KEY)),
    ],
    ids=["hold", "give up"],
)
def test_what_was_begun_by_a_controller_that_was_killed_is_completed(notes: dict[str, str], order: o.JobOrder) -> None:
    """The note that it is held, or given up, was written, and its pods were not kept from being made yet."""
    server = OldServer(notes)
    orders = JobOrders(cast("Looks", server), find=lambda _key: server.job)
    assert asyncio.run(orders.execute(order)) in {"held already", "given up"}
    assert server.manifest["spec"]["parallelism"] == 0
