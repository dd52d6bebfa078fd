"""What is watched is what a server says that it serves, whatever its version; one that still starts is waited for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from holdfast.adapters.kubernetes.api import OPEN, ApiError, KubeApi
from holdfast.adapters.kubernetes.asks import Vocabulary
from holdfast.adapters.kubernetes.looks import Looks
from holdfast.adapters.kubernetes.node_orders import NodeOrders
from holdfast.adapters.kubernetes.objects import Meta, Pod
from holdfast.adapters.kubernetes.settings import KubernetesConfig
from holdfast.errors import LinkError

RECORDS = "/api/v1/namespaces/holdfast/configmaps"
JOBS_OF_1_20 = {"batch": {"v1": ["jobs"], "v1beta1": ["cronjobs"]}}
"""1.20 to 1.24; the second version is gone from 1.25 on."""
JOBS_OF_1_36 = {"batch": {"v1": ["cronjobs", "jobs"]}}
OLD_OPERATOR = {"kubeflow.org": {"v1": ["mpijobs", "mxjobs", "paddlejobs", "pytorchjobs", "tfjobs", "xgboostjobs"]}}
NEW_OPERATOR = {"kubeflow.org": {"v1": ["jaxjobs", "paddlejobs", "pytorchjobs", "tfjobs", "xgboostjobs"]}}
MPI_OPERATOR = {"kubeflow.org": {"v2beta1": ["mpijobs"]}}
SETS = {"jobset.x-k8s.io": {"v1alpha2": ["jobsets"]}}
TRAINER = {"trainer.kubeflow.org": {"v1alpha1": ["clustertrainingruntimes", "trainingruntimes", "trainjobs"]}}


class Server:
    """An API server's discovery documents, and empty collections."""

    def __init__(self, *groups: dict[str, dict[str, list[str]]]) -> None:
        self.groups: dict[str, dict[str, list[str]]] = {}
        for one in groups:
            for name, versions in one.items():
                self.groups.setdefault(name, {}).update(versions)
        self.ready = 200
        self.dies_at = ""
        self.evicts = "v1"
        self.refused: dict[str, int] = {}
        """Collections that are refused, with the status."""
        self.silent: set[str] = set()
        """Collections whose connections break."""
        self.listed: list[str] = []

    async def raw(self, _method: str, path: str, **_: Any) -> bytes:
        if self.ready != 200:
            raise ApiError(self.ready, "", "poststarthook/crd-informer-synced failed", what=f"GET {path}")
        return b"ok"

    async def get(self, path: str, **_: Any) -> dict[str, Any]:
        if self.dies_at and path.startswith(self.dies_at):
            raise LinkError("it died")
        if path == "/version":
            return {}
        if path == "/api/v1":
            eviction = {"name": "pods/eviction", "kind": "Eviction", "group": "policy", "version": self.evicts}
            return {"kind": "APIResourceList", "resources": [{"name": "pods"}, eviction]}
        if path == "/apis":
            return {
                "kind": "APIGroupList",
                "groups": [
                    {"name": name, "versions": [{"groupVersion": f"{name}/{one}", "version": one} for one in versions]}
                    for name, versions in self.groups.items()
                ],
            }
        _, _, group, version = path.split("/")
        kinds = [{"name": plural, "namespaced": True} for plural in self.groups[group][version]]
        more = [{"name": f"{kind['name']}/status", "namespaced": True} for kind in kinds]
        return {"kind": "APIResourceList", "groupVersion": f"{group}/{version}", "resources": [*kinds, *more]}

    async def pages(self, path: str, _query: Any = None) -> AsyncIterator[bytes]:
        self.listed.append(path)
        if path in self.silent:
            raise LinkError(f"no answer: {path}")
        if path in self.refused:
            raise ApiError(self.refused[path], "", "no", what=f"GET {path}")
        yield json.dumps({"metadata": {"resourceVersion": "7"}, "items": []}).encode()

    async def lines(self, *_: Any, **__: Any) -> AsyncIterator[tuple[str, bytes]]:
        yield OPEN, b""
        await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.adapters.kubernetes.looks.ASK_AGAIN_S", 0.0)


def looks_at(server: Server) -> Looks:
    return Looks(cast("KubeApi", server))


async def whole(looks: Looks) -> None:
    async with asyncio.timeout(60):
        await looks.fresh()


@pytest.mark.parametrize(
    ("groups", "found"),
    [
        ([JOBS_OF_1_20], {"Job": "v1"}),
        ([JOBS_OF_1_20, OLD_OPERATOR], {"Job": "v1", "PyTorchJob": "v1", "MPIJob": "v1", "TFJob": "v1"}),
        ([JOBS_OF_1_36, NEW_OPERATOR, MPI_OPERATOR], {"PyTorchJob": "v1", "MPIJob": "v2beta1", "JAXJob": "v1"}),
        ([JOBS_OF_1_36, SETS, TRAINER], {"Job": "v1", "JobSet": "v1alpha2", "TrainJob": "v1alpha1"}),
        ([{"jobset.x-k8s.io": {"v1alpha1": ["jobsets"]}}, JOBS_OF_1_36], {"JobSet": "v1alpha1"}),
        ([JOBS_OF_1_36, {"jobset.x-k8s.io": {"v2": ["jobsets"]}}], {"Job": "v1"}),
    ],
    ids=["1.20", "1.20 with operator", "1.36 with operators", "1.36 with sets", "older sets", "unknown version"],
)
def test_what_is_served_is_watched(groups: list[dict[str, dict[str, list[str]]]], found: dict[str, str]) -> None:
    """Each kind in the best version that is known and served; a kind that is not served is not asked for."""

    async def body() -> None:
        server = Server(*groups)
        looks = looks_at(server)
        try:
            await whole(looks)
            versions = {name: version for name, (_, version, _) in looks.kinds.items()}
            assert found.items() <= versions.items()
            served = {plural for versions in server.groups.values() for kinds in versions.values() for plural in kinds}
            assert {kind.plural for kind, _, _ in looks.kinds.values()} <= served
            paths = {kind.path(version) for kind, version, _ in looks.kinds.values()}
            assert set(server.listed) == {"/api/v1/nodes", "/api/v1/pods", RECORDS, *paths}
        finally:
            await looks.close()

    asyncio.run(body())


def test_a_server_that_still_starts_is_not_taken_for_one_without_jobs() -> None:
    """Right after its start it names few groups: a look then would tell that every job is gone."""

    async def body() -> None:
        server = Server({"apiextensions.k8s.io": {"v1": ["customresourcedefinitions"]}})
        looks = looks_at(server)
        try:
            with pytest.raises(LinkError, match="still starting"):
                await whole(looks)
            server.groups, server.ready = {**JOBS_OF_1_20}, 500
            with pytest.raises(LinkError, match="not ready yet"):
                await whole(looks)
            server.groups.update(OLD_OPERATOR)
            server.ready = 200
            await whole(looks)
            assert {"Job", "PyTorchJob"} <= looks.kinds.keys()
        finally:
            await looks.close()

    asyncio.run(body())


@pytest.mark.parametrize("said", [401, 403, 404])
def test_a_server_that_does_not_tell_whether_it_is_ready_is_believed(said: int) -> None:
    """Some keep that page from all but administrators."""

    async def body() -> None:
        server = Server(JOBS_OF_1_36)
        server.ready = said
        looks = looks_at(server)
        try:
            await whole(looks)
            assert list(looks.kinds) == ["Job"]
        finally:
            await looks.close()

    asyncio.run(body())


def test_a_server_that_is_away_is_not_asked_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks without a pause is told so without a request; after a moment it is asked again."""

    async def body() -> None:
        server = Server(JOBS_OF_1_20)
        server.dies_at = "/apis"
        looks = looks_at(server)
        try:
            monkeypatch.setattr("holdfast.adapters.kubernetes.looks.ASK_AGAIN_S", 3600.0)
            with pytest.raises(LinkError, match="it died"):
                await whole(looks)
            server.dies_at = ""
            for _ in range(100):
                with pytest.raises(LinkError, match="it died"):
                    await whole(looks)
            assert server.listed == []
            looks._ask_again_at = 0.0
            await whole(looks)
        finally:
            await looks.close()

    asyncio.run(body())


def test_a_server_that_dies_while_it_is_asked_what_it_serves_is_asked_again() -> None:
    """The kinds that were found before are kept, and nodes and pods are watched all the same."""

    async def body() -> None:
        server = Server(JOBS_OF_1_20, OLD_OPERATOR)
        server.dies_at = "/apis/kubeflow.org"
        looks = looks_at(server)
        try:
            with pytest.raises(LinkError, match="it died"):
                await whole(looks)
            server.dies_at = ""
            await whole(looks)
            assert "PyTorchJob" in looks.kinds
            assert {"/api/v1/nodes", "/api/v1/pods"} <= set(server.listed)
            assert len(server.listed) == len(set(server.listed))
        finally:
            await looks.close()

    asyncio.run(body())


PYTORCH = "/apis/kubeflow.org/v1/pytorchjobs"


def hidden(looks: Looks) -> dict[str, str]:
    """Kinds that were expected and cannot be read, and why."""
    return {kind: why for kind, why in looks.unseen().items() if why}


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_kind_that_cannot_be_read_blinds_that_kind_alone_and_comes_back(status: int) -> None:
    """Its definition deleted, a right missing, a broken converter: nodes, pods and other kinds are read as always."""

    async def body() -> None:
        server = Server(JOBS_OF_1_20, OLD_OPERATOR)
        server.refused[PYTORCH] = status
        looks = looks_at(server)
        try:
            await whole(looks)
            assert list(hidden(looks)) == ["pytorchjob"]
            assert str(status) in hidden(looks)["pytorchjob"]
            server.refused.clear()
            assert await looks.until(lambda: not hidden(looks) or None, "it comes back", limit_s=60.0)
            await whole(looks)
        finally:
            await looks.close()

    asyncio.run(body())


@pytest.mark.parametrize("path", ["/api/v1/nodes", "/api/v1/pods"])
def test_without_nodes_and_pods_there_is_no_look(path: str) -> None:
    """What nobody can see of those says something about every job."""

    async def body() -> None:
        server = Server(JOBS_OF_1_20)
        server.refused[path] = 403
        looks = looks_at(server)
        try:
            with pytest.raises(LinkError, match=path):
                await whole(looks)
        finally:
            await looks.close()

    asyncio.run(body())


def test_a_kind_that_is_served_in_another_version_is_watched_in_that_one() -> None:
    """An operator's upgrade takes the former version away."""

    async def body() -> None:
        server = Server(JOBS_OF_1_36, {"jobset.x-k8s.io": {"v1alpha1": ["jobsets"]}})
        looks = looks_at(server)
        try:
            await whole(looks)
            server.groups["jobset.x-k8s.io"] = {"v1alpha2": ["jobsets"]}
            looks._discovered_at = -1e9
            await whole(looks)
            assert looks.kinds["JobSet"][1] == "v1alpha2"
            assert len(looks._tasks) == len(looks.stores())
        finally:
            await looks.close()

    asyncio.run(body())


def test_a_kind_that_is_not_served_is_unknown_for_a_while_and_then_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its jobs are neither ended nor gone meanwhile: a server that has just been started again may not name it yet."""

    async def body() -> None:
        server = Server(JOBS_OF_1_20, OLD_OPERATOR)
        looks = looks_at(server)
        try:
            await whole(looks)
            assert looks.unseen() == dict.fromkeys(("jaxjob", "jobset", "trainjob"), "")
            server.groups.pop("kubeflow.org")
            server.refused[PYTORCH] = 404
            looks._discovered_at = -1e9
            await whole(looks)
            assert "pytorchjob" in looks.unseen()
            monkeypatch.setattr("holdfast.adapters.kubernetes.looks.GONE_S", 0.0)
            looks._discovered_at = -1e9
            await whole(looks)
            assert (looks.unseen(), list(looks.kinds)) == ({}, ["Job"])
        finally:
            await looks.close()

    asyncio.run(body())


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_evictions_are_asked_for_in_the_version_that_the_server_takes(version: str) -> None:
    """`policy/v1beta1` up to 1.21, `policy/v1` from 1.22 on and alone from 1.25 on, by the server's own word."""

    async def body() -> None:
        server = Server(JOBS_OF_1_36)
        server.evicts = version
        looks = looks_at(server)
        sent: list[tuple[str, dict[str, Any]]] = []

        async def create(path: str, body: dict[str, Any]) -> None:
            sent.append((path, body))

        server.create = create  # type: ignore[attr-defined]
        try:
            await whole(looks)
            pod = Pod(metadata=Meta(name="p", namespace="team", uid="u"))
            await NodeOrders(looks, Vocabulary(), KubernetesConfig())._evict_pod(pod)
            [(path, told)] = sent
            assert (path, told["apiVersion"]) == ("/api/v1/namespaces/team/pods/p/eviction", f"policy/{version}")
        finally:
            await looks.close()

    asyncio.run(body())


@pytest.mark.parametrize("path", [PYTORCH, RECORDS])
@pytest.mark.parametrize("is_away", [True, False])
def test_one_broken_connection_has_the_server_asked_whether_it_is_away(path: str, *, is_away: bool) -> None:
    """The first of many to break, or one collection that cannot be sent: only then the others are read on."""

    async def body() -> None:
        server = Server(JOBS_OF_1_20, OLD_OPERATOR)
        server.silent.add(path)
        server.dies_at = "/version" if is_away else ""
        looks = looks_at(server)
        try:
            if is_away:
                with pytest.raises(LinkError, match="it died"):
                    await whole(looks)
            else:
                await whole(looks)
                assert bool(looks.put_away.broken) is (path == RECORDS)
                assert list(hidden(looks)) == (["pytorchjob"] if path == PYTORCH else [])
        finally:
            await looks.close()

    asyncio.run(body())
