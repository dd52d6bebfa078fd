"""What deploy/kubernetes asks for, on a real API server: the rights suffice, none is too many, tokens say who one is."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
import yaml

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.kubernetes.api import MERGE, ApiError, KubeApi
from holdfast.adapters.kubernetes.client import KubernetesOrchestrator
from holdfast.adapters.kubernetes.incidents import PATH, IncidentMirror
from holdfast.adapters.kubernetes.lease import KubernetesLease
from holdfast.adapters.kubernetes.notices import EventNotifier
from holdfast.adapters.kubernetes.own_pod import ACTIVE, ROLE, set_role
from holdfast.adapters.kubernetes.reviews import AUDIENCE, TokenReviews
from holdfast.adapters.kubernetes.settings import KubernetesConfig
from holdfast.controller.election import NEVER_HELD, keep, win
from holdfast.errors import FencedError, JournalBusyError, LinkError, PermanentOrderError, TemporaryOrderError
from holdfast.lab.kube_control import CONTROLLERS
from holdfast.lab.kube_lab import KubeLab
from holdfast.model.cluster import JobKey, WorldView
from holdfast.model.evidence import Diagnosis, Domain
from holdfast.model.orders import Notify, QuarantineNode, ReleaseJob
from holdfast.model.records import IncidentRecord
from holdfast.ports import LeaseRow
from kube_fixture import admin, running_lab
from kube_kinds import install
from postgres_fixture import Postgres

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
NAMESPACE = "holdfast"
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
PLURALS = {
    "Namespace": "namespaces",
    "ServiceAccount": "serviceaccounts",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ConfigMap": "configmaps",
    "Deployment": "deployments",
    "DaemonSet": "daemonsets",
    "Service": "services",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "NetworkPolicy": "networkpolicies",
    "PodTemplate": "podtemplates",
    "CustomResourceDefinition": "customresourcedefinitions",
}
WHOLE_CLUSTER = {"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def objects() -> list[dict[str, Any]]:
    names = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["resources"]
    return [one for name in names for one in yaml.safe_load_all((DEPLOY / name).read_text())]


def path_of(one: dict[str, Any]) -> str:
    group = one["apiVersion"]
    # The lab's version knows disruption budgets only by their older name; they are the same object.
    group = "policy/v1beta1" if group == "policy/v1" else group
    where = "" if one["kind"] in WHOLE_CLUSTER else f"/namespaces/{NAMESPACE}"
    return f"/{'api' if group == 'v1' else 'apis'}/{group}{where}/{PLURALS[one['kind']]}"


@pytest.fixture(scope="module")
def lab() -> Iterator[KubeLab]:
    """A control plane with everything of deploy/kubernetes in it."""
    with running_lab(nodes=0, agents=False) as running:

        async def apply() -> None:
            async with admin(running) as api:
                for one in objects():
                    if one["apiVersion"] == "policy/v1":
                        one["apiVersion"] = "policy/v1beta1"
                    await api.create(path_of({**one}), one)

        asyncio.run(apply())
        yield running


def run(work: Any) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(600):
            return await work

    return asyncio.run(bounded())


@contextlib.asynccontextmanager
async def as_controller(lab: KubeLab, root: KubeApi, folder: Path) -> AsyncIterator[KubeApi]:
    """The API as the controller's ServiceAccount, by a token of it."""
    token = await token_for(root, "holdfast-controller", audience="")
    config = yaml.safe_load(lab.kubeconfig.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    api = await KubeApi.connect("", file)
    try:
        yield api
    finally:
        await api.close()


async def token_for(root: KubeApi, account: str, *, audience: str, pod: dict[str, Any] | None = None) -> str:
    spec: dict[str, Any] = {"expirationSeconds": 3600}
    if audience:
        spec["audiences"] = [audience]
    if pod is not None:
        spec["boundObjectRef"] = {
            "kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]
        }  # fmt: skip
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = await root.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token", body)
    return str(answer["status"]["token"])


async def make_pod(
    root: KubeApi, name: str, node: str, account: str = "holdfast-agent", owner: dict[str, Any] | None = None
) -> dict[str, Any]:
    spec = {
        "nodeName": node,
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "containers": [{"name": "c", "image": "x"}],
    }
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    about = {"name": name, **({"ownerReferences": [owner]} if owner is not None else {})}
    return await root.create(pods, {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})


def owned_by(one: dict[str, Any]) -> dict[str, Any]:
    about = {"name": one["metadata"]["name"], "uid": one["metadata"]["uid"], "controller": True}
    return {"apiVersion": one["apiVersion"], "kind": one["kind"], **about}


# --- rights ---


async def may(api: KubeApi, user: str, verb: str, group: str, resource: str, namespace: str, name: str = "") -> bool:
    resource, _, sub = resource.partition("/")
    spec = {
        "user": user,
        "groups": ["system:serviceaccounts", "system:authenticated"],
        "resourceAttributes": {
            "verb": verb, "group": group, "resource": resource, "subresource": sub, "namespace": namespace, "name": name
        },
    }  # fmt: skip
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return bool((await api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body))["status"]["allowed"])


def test_the_controller_may_do_what_it_does_and_nothing_else(lab: KubeLab):
    """Each right is there; what would let it take the cluster over is not."""
    user = f"system:serviceaccount:{NAMESPACE}:holdfast-controller"
    wanted = [
        *((verb, "", kind, "") for kind in ("nodes", "pods") for verb in ("get", "list", "watch")),
        ("patch", "", "nodes", ""),
        ("patch", "", "nodes/status", ""),
        ("delete", "", "pods", "training"),
        ("create", "", "pods/eviction", "training"),
        ("get", "", "pods/log", "training"),
        ("get", "", "podtemplates", NAMESPACE, "holdfast-check"),
        ("create", "", "pods", NAMESPACE),
        *((verb, "batch", "jobs", "training") for verb in ("list", "watch", "create", "patch", "delete")),
        *((verb, "kubeflow.org", "pytorchjobs", "training") for verb in ("list", "watch", "create", "patch", "delete")),
        ("create", "", "events", "training"),
        ("create", "authentication.k8s.io", "tokenreviews", ""),
        ("patch", "", "pods", NAMESPACE),
        ("create", "coordination.k8s.io", "leases", NAMESPACE),
        ("create", "holdfast.dev", "incidents", ""),
    ]
    wanted += [
        ("get", "", "events", "training"),
        *((verb, "", "configmaps", NAMESPACE) for verb in ("list", "watch", "create", "patch", "delete")),
    ]
    refused = [
        *((verb, "", "configmaps", "training") for verb in ("get", "list", "watch", "create", "patch", "delete")),
        ("list", "", "configmaps", ""),
        *((verb, "", "secrets", "training") for verb in ("get", "list", "watch", "create")),
        ("get", "", "secrets", NAMESPACE),
        ("create", "", "pods", "training"),
        ("patch", "", "pods", "training"),
        ("create", "", "pods/exec", "training"),
        ("get", "", "podtemplates", NAMESPACE, "another"),
        ("delete", "", "nodes", ""),
        ("update", "", "nodes/status", ""),
        ("create", "", "serviceaccounts/token", NAMESPACE),
        ("create", "rbac.authorization.k8s.io", "clusterrolebindings", ""),
        ("escalate", "rbac.authorization.k8s.io", "clusterroles", ""),
        ("impersonate", "", "users", ""),
        ("delete", "cluster.x-k8s.io", "machines", "training"),
        ("update", "coordination.k8s.io", "leases", "kube-system"),
    ]

    async def work() -> None:
        async with admin(lab) as api:
            for ask in wanted:
                assert await may(api, user, *ask), ask
            for ask in refused:
                assert not await may(api, user, *ask), ask
            agent = f"system:serviceaccount:{NAMESPACE}:holdfast-agent"
            for ask in [*wanted, *refused]:
                assert not await may(api, agent, *ask), ask

    run(work())


def test_a_right_that_is_missing_is_named(lab: KubeLab, tmp_path: Path):
    """Each part says which verb it lacks when it is taken away, and goes on when it is given back."""

    async def work() -> None:
        async with admin(lab) as root, as_controller(lab, root, tmp_path) as api:
            role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/holdfast-controller"
            rules = (await root.get(role))["rules"]
            reviews = TokenReviews(lambda: as_is(api), f"{NAMESPACE}/holdfast-agent", time.monotonic)
            lease = KubernetesLease(api, "default", "controller")
            try:
                taken = {"tokenreviews", "incidents", "nodes/status"}
                kept = [one for one in rules if not taken & set(one["resources"])]
                await root.patch(role, {"rules": kept}, MERGE)
                await until_refused(api)
                with pytest.raises(LinkError, match="create of tokenreviews"):
                    await reviews.source_of("a.b.c")
                with pytest.raises(LinkError, match="get, create and update of leases"):
                    await lease.lease()
                await is_marked_without_a_condition(root, tmp_path)
            finally:
                await root.patch(role, {"rules": rules}, MERGE)
            await until_allowed(lambda: reviews.source_of("a.b.d"))

    run(work())


async def is_marked_without_a_condition(root: KubeApi, folder: Path) -> None:
    """The node's marks are set all the same; the log names the verb that its condition lacks."""
    await root.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    orchestrator = KubernetesOrchestrator(KubernetesConfig(kubeconfig=str(folder / "kubeconfig")), folder=folder)
    try:
        with structlog.testing.capture_logs() as logs:
            said = await orchestrator.execute(QuarantineNode(id="q", cause=1, node="n1", why="Xid 74"))
        assert said == "cordoned and marked Unschedulable"
        why = next(str(line["why"]) for line in logs if line["event"] == "a node's condition cannot be written")
        assert 'cannot patch resource "nodes/status"' in why
        assert "give the controller's role this verb" in why
    finally:
        await orchestrator.close()
        await root.delete("/api/v1/nodes/n1")


async def as_is(api: KubeApi) -> KubeApi:
    return api


async def until_refused(api: KubeApi) -> None:
    """The API server takes a moment to know of a changed role."""
    while await status_of(api) == 200:
        await asyncio.sleep(0.05)
    assert await status_of(api) == 403


async def status_of(api: KubeApi) -> int:
    try:
        await api.get(PATH)
    except ApiError as error:
        return error.status
    return 200


async def until_allowed(call: Any) -> None:
    while True:
        with contextlib.suppress(LinkError):
            await call()
            return
        await asyncio.sleep(0.05)


# --- tokens ---


def test_an_agents_token_says_which_node_it_is_on(lab: KubeLab, tmp_path: Path):
    """Only for our audience, only of the agents' account, only bound to a pod that exists; never by the token's own word."""

    async def work() -> None:
        async with admin(lab) as root, as_controller(lab, root, tmp_path) as api:
            clock = [0.0]
            reviews = TokenReviews(lambda: as_is(api), f"{NAMESPACE}/holdfast-agent", lambda: clock[0])
            pod = await make_pod(root, "agent-x", "gpu-node-7")
            other = await make_pod(root, "other", "gpu-node-8", "holdfast-controller")
            good = await token_for(root, "holdfast-agent", audience=AUDIENCE, pod=pod)
            await until_allowed(lambda: reviews.source_of("a.b.c"))
            assert await reviews.source_of(good) == "agent:gpu-node-7"
            for token in (
                await token_for(root, "holdfast-agent", audience="", pod=pod),
                await token_for(root, "holdfast-agent", audience="vault", pod=pod),
                await token_for(root, "holdfast-agent", audience=AUDIENCE),
                await token_for(root, "holdfast-controller", audience=AUDIENCE, pod=other),
                forged(good),
                "no token at all",
                "x" * 100_000,
            ):
                assert await reviews.source_of(token) == "", token[:40]
            lab.stop("kube-apiserver")
            try:
                clock[0] = 300.0
                assert (
                    await reviews.source_of(good) == "agent:gpu-node-7"
                )  # heard most of all when the API server is away
                clock[0] = 900.0
                with pytest.raises(LinkError):
                    await reviews.source_of(good)
            finally:
                await asyncio.to_thread(lab.run, "kube-apiserver")
            await root.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/agent-x", grace_s=0)
            clock[0] = 2000.0
            assert await reviews.source_of(good) == ""

    run(work())


def test_a_launchers_token_says_which_job_it_is_of(lab: KubeLab, tmp_path: Path):
    """Of any account, by the pod's topmost owner that is a training job, while that object is the one the pod is of."""
    jobs, trains = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}"
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "pytorch", "image": "x"}]}}

    async def work() -> None:
        async with admin(lab) as root, as_controller(lab, root, tmp_path) as api:
            reviews = TokenReviews(lambda: as_is(api), f"{NAMESPACE}/holdfast-agent", time.monotonic)
            await until_allowed(lambda: reviews.source_of("a.b.c"))
            job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 0, "template": template}}
            alone = await root.create(jobs, {**job, "metadata": {"name": "alone"}})
            train = await root.create(f"{trains}/pytorchjobs", {
                "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "llama"},
                "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 0, "template": template}}},
            })  # fmt: skip
            part = await root.create(jobs, {**job, "metadata": {"name": "part", "ownerReferences": [owned_by(train)]}})

            async def source(name: str, owner: dict[str, Any] | None, account: str = "default") -> str:
                pod = await make_pod(root, name, "gpu-node-1", account, owner)
                return await reviews.source_of(await token_for(root, account, audience=AUDIENCE, pod=pod))

            assert await source("of-alone", owned_by(alone)) == f"launcher:{NAMESPACE}.job.alone"
            assert await source("of-llama", owned_by(train)) == f"launcher:{NAMESPACE}.pytorchjob.llama"
            assert await source("of-part", owned_by(part)) == f"launcher:{NAMESPACE}.pytorchjob.llama"
            assert await source("of-nothing", None) == ""
            assert await source("of-an-older-one", {**owned_by(alone), "uid": "another"}) == ""
            assert await source("of-a-set", {**owned_by(alone), "apiVersion": "apps/v1", "kind": "ReplicaSet"}) == ""
            pod = await root.get(f"/api/v1/namespaces/{NAMESPACE}/pods/of-alone")
            assert await reviews.source_of(await token_for(root, "default", audience="vault", pod=pod)) == ""
            assert await reviews.source_of(await token_for(root, "default", audience=AUDIENCE)) == ""

    lab.stop(CONTROLLERS)  # it would take these pods, made by hand, from their jobs
    try:
        run(work())
    finally:
        lab.run(CONTROLLERS)


def forged(token: str) -> str:
    """The same token for another pod, with the old signature."""
    head, body, signature = token.split(".")
    said = json.loads(base64.urlsafe_b64decode(body + "=="))
    said["kubernetes.io"]["pod"]["name"] = "other"
    return f"{head}.{base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip('=')}.{signature}"


# --- the lease that elects, the label, the mirror ---


def test_of_many_that_race_for_a_lease_one_is_elected_each_time(lab: KubeLab):
    """Writes are checked by the server; who lost hears of it with its next renewal."""

    async def work() -> None:
        async with admin(lab) as api:
            stores = [KubernetesLease(api, NAMESPACE, "race") for _ in range(6)]
            all_saw = await asyncio.gather(*(store.lease() for store in stores))

            async def attempt(number: int, store: KubernetesLease, seen: LeaseRow | None) -> int | None:
                try:
                    await store.take(f"c{number}", lease_s=10, now=time.time(), seen=seen or NEVER_HELD)
                except JournalBusyError:
                    return None
                return number

            won = [one for one in await asyncio.gather(*map(attempt, range(6), stores, all_saw)) if one is not None]
            assert len(won) == 1
            first = stores[won[0]]
            await first.renew(now=time.time())
            seen = await first.lease()
            assert seen is not None
            assert (seen.holder, seen.epoch, seen.lease_s) == (f"c{won[0]}", 1, 10.0)
            heir = stores[won[0] - 1]
            with pytest.raises(JournalBusyError, match="leads by"):
                await heir.take("heir", lease_s=10, now=time.time(), seen=NEVER_HELD)
            await heir.take("heir", lease_s=10, now=time.time(), seen=seen)
            with pytest.raises(FencedError, match="taken by 'heir'"):
                await first.renew(now=time.time())
            await heir.release(now=time.time())
            free = await heir.lease()
            assert free is not None
            assert free.holder == ""

    run(work())


def test_an_elected_controller_ends_before_its_lease_when_the_api_server_dies(lab: KubeLab):
    """Killed: the one that was elected stops within the lease's time; nobody has to tell it."""

    async def work() -> None:
        async with admin(lab) as api:
            clock, store = SystemClock(), KubernetesLease(api, NAMESPACE, "dies")
            leading = await win(store, "a", clock, lease_s=3.0, stopped_within=never, patient=False)
            assert leading is not None
            keeping = asyncio.create_task(keep(store, leading, clock))
            until = leading.until
            while leading.until == until:
                await asyncio.sleep(0.05)
            lab.stop("kube-apiserver")
            try:
                await keeping
                assert not leading.may_act(clock.monotonic() + 0.05)
                assert clock.monotonic() <= leading.until + 1.0
            finally:
                await asyncio.to_thread(lab.run, "kube-apiserver")

    run(work())


async def never(seconds: float) -> bool:
    await asyncio.sleep(seconds)
    return False


def test_the_leading_pod_is_labelled(lab: KubeLab, tmp_path: Path):
    """By the controller's own rights, in its own namespace."""

    async def work() -> None:
        async with admin(lab) as root, as_controller(lab, root, tmp_path) as api:
            await make_pod(root, "controller-0", "n", "holdfast-controller")
            await set_role(api, f"{NAMESPACE}/controller-0", ACTIVE)
            pod = await root.get(f"/api/v1/namespaces/{NAMESPACE}/pods/controller-0")
            assert pod["metadata"]["labels"][ROLE] == ACTIVE

    run(work())


def test_incidents_are_mirrored(lab: KubeLab, tmp_path: Path):
    """`kubectl get incidents` shows state, cause, nodes and jobs; what was closed long ago goes."""
    record = IncidentRecord(
        id="ic9.1", opened_at=1_795_306_000.0, nodes=["n1", "n2", "n3", "n4"], jobs=[JobKey("c", "7")]
    )
    record.diagnosis = Diagnosis(cause="nvidia.xid.74", domain=Domain.HARDWARE, story="NVLink broke." * 1000)

    async def work() -> None:
        async with admin(lab) as root, as_controller(lab, root, tmp_path) as api:
            mirror = IncidentMirror(api)
            await mirror.write(record)
            assert (await columns(root))[1:5] == ["Open", "nvidia.xid.74", "n1,n2,n3 and 1 more", "7"]
            record.closed_at = record.opened_at + 42.0
            await mirror.write(record)
            assert (await columns(root))[1] == "Recovered"
            assert (await root.get(f"{PATH}/ic9.1"))["status"]["seconds"] == 42
            assert await mirror.tidy(record.closed_at + 3600.0) == 0
            assert await mirror.tidy(record.closed_at + 8 * 86400.0) == 1
            assert (await root.get(PATH))["items"] == []

    run(work())


async def columns(api: KubeApi) -> list[str]:
    """The one row of the table that kubectl prints, made by the server."""
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    token = await api._configuration.get_api_key_with_prefix("BearerToken")
    headers = {"Accept": accept, **({"Authorization": token} if token else {})}
    answer = await api._rest.request(
        "GET", f"{api.server}{PATH}", query_params=[], headers=headers, body=None, _preload_content=False
    )
    async with answer:
        table = json.loads(await answer.read())
    return [str(cell) for cell in table["rows"][0]["cells"]]


# --- the command ---


def test_a_controller_in_a_pod_leads_is_found_and_gives_way(lab: KubeLab, tmp_path: Path, postgres: Postgres):
    """Two processes as the Deployment starts them: one leads by journal and Lease and has the label; the other is alive."""
    config = tmp_path / "holdfast.toml"
    settings = f'kubeconfig = "{lab.kubeconfig}"\nagent_account = "holdfast/holdfast-agent"\nmirror_incidents = true\n'
    config.write_text(f"[kubernetes]\n{settings}")
    url = postgres.schema_url()

    def start(name: str, port: int) -> subprocess.Popen[bytes]:
        words = ["--dir", str(tmp_path / name), "--config", str(config), "--cluster", "kubernetes:", "--standby"]
        words += ["--listen", f"127.0.0.1:{port}", "--elect", f"kubernetes:{NAMESPACE}/controller", "--lease-s", "4"]
        env = {**os.environ, "HOLDFAST_JOURNAL": url, "HOLDFAST_POD": f"{NAMESPACE}/{name}"}
        with (tmp_path / f"{name}.log").open("ab") as log:
            return subprocess.Popen([HOLDFAST, "controller", *words], env=env, stdout=log, stderr=log)

    async def work(ports: dict[str, int], processes: dict[str, subprocess.Popen[bytes]]) -> None:
        async with admin(lab) as root, httpx.AsyncClient(trust_env=False) as http:
            for name, port in ports.items():
                await make_pod(root, name, f"node-of-{name}", "holdfast-controller")
                processes[name] = start(name, port)

            async def roles() -> dict[str, str]:
                pods = (await root.get(f"/api/v1/namespaces/{NAMESPACE}/pods"))["items"]
                named = {one["metadata"]["name"]: one["metadata"].get("labels", {}) for one in pods}
                return {name: named[name].get(ROLE, "") for name in ports}

            while sorted((await roles()).values()) != ["active", "standby"]:
                assert all(one.poll() is None for one in processes.values()), said(tmp_path)
                await asyncio.sleep(0.1)
            found = await roles()
            leader, heir = sorted(ports, key=lambda name: found[name])
            held = await KubernetesLease(root, NAMESPACE, "controller").lease()
            assert held is not None
            assert f"/{leader}/controller" in held.holder
            for name, standby in ((leader, False), (heir, True)):
                answer = await http.get(f"http://127.0.0.1:{ports[name]}/livez")
                assert (answer.status_code, answer.json()["standby"]) == (200, standby)
            await root.create("/api/v1/nodes", {"metadata": {"name": "gpu-node-9"}})
            pod = await make_pod(root, "agent-z", "gpu-node-9")
            token = await token_for(root, "holdfast-agent", audience=AUDIENCE, pod=pod)
            for source, status in (("agent:gpu-node-9", 200), ("agent:gpu-node-8", 403)):
                answer = await http.post(
                    f"http://127.0.0.1:{ports[leader]}/v1/ingest",
                    json={"version": 1, "source": source, "events": []},
                    headers={"Authorization": f"Bearer {token}"},
                )
                assert answer.status_code == status, answer.text
            processes[leader].terminate()
            assert await asyncio.to_thread(processes[leader].wait, 60) == 0, said(tmp_path)
            while (await roles())[heir] != "active":
                assert processes[heir].poll() is None, said(tmp_path)
                await asyncio.sleep(0.1)

    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        run(work({"pod-a": free_port(), "pod-b": free_port()}, processes))
    finally:
        for one in processes.values():
            one.kill()
            one.wait()


def said(folder: Path) -> str:
    return "\n".join(path.read_text()[-3000:] for path in folder.glob("*.log"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- what a tenant can write ---


def escape(name: str, version: str, **about: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A ConfigMap that looks like a job put away, of a Job that takes the node it runs on over."""
    pod = {
        "hostPID": True,
        "restartPolicy": "Never",
        "containers": [{"name": "c", "image": "x", "securityContext": {"privileged": True}}],
    }
    notes = {"holdfast.dev/held": "Xid 74", "holdfast.dev/restart-count": "1", "holdfast.dev/lineage": "u"}
    head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "annotations": notes, **about}}
    manifest = {**head, "spec": {"template": {"spec": pod}}}
    record = {
        "name": f"holdfast-job-{name}",
        "labels": {"holdfast.dev/put-away": "true"},
        "annotations": {"holdfast.dev/kind": "Job", "holdfast.dev/version": version},
    }
    return {"metadata": record, "data": {"manifest.json": json.dumps(manifest)}}, manifest


@contextlib.asynccontextmanager
async def as_tenant(lab: KubeLab, root: KubeApi, folder: Path) -> AsyncIterator[KubeApi]:
    """The API as an account that may do everything with Jobs and ConfigMaps in `default`, and nothing elsewhere."""
    group, where = "rbac.authorization.k8s.io", "/namespaces/default"
    rules = [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["*"]},
    ]
    subjects = [{"kind": "ServiceAccount", "name": "tenant", "namespace": "default"}]
    role = {"apiGroup": group, "kind": "Role", "name": "tenant"}
    await root.create(f"/api/v1{where}/serviceaccounts", {"metadata": {"name": "tenant"}})
    await root.create(f"/apis/{group}/v1{where}/roles", {"metadata": {"name": "tenant"}, "rules": rules})
    body = {"metadata": {"name": "tenant"}, "roleRef": role, "subjects": subjects}
    await root.create(f"/apis/{group}/v1{where}/rolebindings", body)
    ask = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = (await root.create(f"/api/v1{where}/serviceaccounts/tenant/token", ask))["status"]["token"]
    config = yaml.safe_load(lab.kubeconfig.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    file = folder / "tenant"
    file.write_text(yaml.safe_dump(config))
    api = await KubeApi.connect("", file)
    try:
        yield api
    finally:
        await api.close()


@pytest.mark.parametrize(
    ("version", "about"),
    [
        ("v1/namespaces/kube-system/jobs?", {}),
        ("v1/namespaces/default/../kube-system/jobs?", {}),
        ("v1", {"namespace": "kube-system"}),
    ],
    ids=["version", "dots", "namespace"],
)
def test_a_tenant_cannot_have_the_controller_create_a_job_elsewhere(
    lab: KubeLab, tmp_path: Path, version: str, about: dict[str, str]
):
    """A ConfigMap of a tenant's is never taken for a job put away, whatever stands in it: nothing is created."""
    body, manifest = escape("evil", version, **about)

    async def work() -> None:
        async with (
            admin(lab) as root,
            as_controller(lab, root, tmp_path),
            as_tenant(lab, root, tmp_path) as tenant,
        ):
            with pytest.raises(ApiError, match="403"):
                await tenant.create("/apis/batch/v1/namespaces/kube-system/jobs", manifest)
            with pytest.raises(ApiError, match="403"):
                await tenant.create(f"/api/v1/namespaces/{NAMESPACE}/configmaps", body)
            await tenant.create("/api/v1/namespaces/default/configmaps", body)
            config = KubernetesConfig(kubeconfig=str(tmp_path / "kubeconfig"), cluster="c")
            orchestrator = KubernetesOrchestrator(config, folder=tmp_path)
            try:
                seen = [job.key for job in (await orchestrator.observe()).jobs]
                for namespace in ("default", "kube-system"):
                    key = JobKey("c", f"{namespace}.job.evil")
                    with contextlib.suppress(PermanentOrderError):
                        await orchestrator.execute(ReleaseJob(id=f"r{namespace}", cause=1, job=key, epoch=2))
                jobs, _ = await root.list_all("/apis/batch/v1/jobs")
                made = [one["metadata"]["namespace"] for one in jobs if one["metadata"]["name"] == "evil"]
                assert made == [], "a Job was created"
                assert [key for key in seen if "evil" in key.id] == []
            finally:
                await orchestrator.close()
                await tidy(root)

    run(work())


async def tidy(root: KubeApi) -> None:
    """Without the tenant and what it made."""
    for path in (
        "/apis/batch/v1/namespaces/default/jobs",
        "/apis/batch/v1/namespaces/kube-system/jobs",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/tenant",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/tenant",
        "/api/v1/namespaces/default/serviceaccounts/tenant",
        "/api/v1/namespaces/default/configmaps/holdfast-job-evil",
    ):
        body = {"kind": "DeleteOptions", "propagationPolicy": "Background"}
        with contextlib.suppress(ApiError):
            await root.call("DELETE", path, body=body)


# --- what cannot be read ---

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
BATCH = "/apis/batch/v1/namespaces/default/jobs"
TORCH = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
SOON_S = 60.0


async def until(orchestrator: KubernetesOrchestrator, holds: Any) -> WorldView:
    """A look that shows it; every look on the way must succeed."""
    deadline = time.monotonic() + SOON_S
    while not holds(seen := await orchestrator.observe()):
        assert time.monotonic() < deadline, seen
        await orchestrator.wait_change(0.2)
    return seen


def names(seen: WorldView) -> set[str]:
    """Jobs of the namespace in which these tests make theirs; others leave some elsewhere."""
    return {job.name for job in seen.jobs if job.key.id.startswith("default.")}


def hidden(seen: WorldView) -> set[str]:
    return {one.kind for one in seen.unseen if one.why}


async def deleted(root: KubeApi, plural: str) -> dict[str, Any]:
    """What to make the definition of again, once it is gone."""
    found = await root.get(f"{CRDS}/{plural}")
    await root.delete(f"{CRDS}/{plural}")
    with contextlib.suppress(ApiError):
        while await root.get(f"{CRDS}/{plural}"):
            await asyncio.sleep(0.1)
    return {
        "apiVersion": found["apiVersion"],
        "kind": found["kind"],
        "spec": found["spec"],
        "metadata": {"name": plural},
    }


def test_deleted_definitions_blind_their_own_kinds_alone_until_they_are_made_again(lab: KubeLab, tmp_path: Path):
    """Two of them deleted and made again, twice: other jobs are seen and nodes are marked all the while, and no look fails."""
    pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "pytorch", "image": "x"}]}}
    train = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 0, "template": pod}}},
    }

    async def work() -> None:
        async with admin(lab) as root, as_controller(lab, root, tmp_path):
            await install(lab)
            orchestrator = KubernetesOrchestrator(
                KubernetesConfig(kubeconfig=str(tmp_path / "kubeconfig"), cluster="c")
            )
            await root.create("/api/v1/nodes", {"metadata": {"name": "marked"}})
            await root.create(BATCH, {"metadata": {"name": "plain"}, "spec": {"parallelism": 0, "template": pod}})
            try:
                for turn in range(2):
                    await root.create(TORCH, {"metadata": {"name": f"train-{turn}"}, **train})
                    await until(orchestrator, lambda seen, turn=turn: names(seen) == {"plain", f"train-{turn}"})
                    plurals = ("pytorchjobs.kubeflow.org", "jobsets.jobset.x-k8s.io")
                    kept = [await deleted(root, plural) for plural in plurals]
                    seen = await until(orchestrator, lambda seen: hidden(seen) == {"pytorchjob", "jobset"})
                    assert (names(seen), seen.complete) == ({"plain"}, True)
                    key = JobKey("c", f"default.pytorchjob.train-{turn}")
                    with pytest.raises(TemporaryOrderError, match="cannot be read now"):
                        await orchestrator.execute(ReleaseJob(id="r", cause=1, job=key, epoch=2))
                    order = QuarantineNode(id=f"q{turn}", cause=1, node="marked", why="Xid 74")
                    said = await orchestrator.execute(order)
                    assert said == ("out of service already" if turn else "cordoned and marked Unschedulable")
                    for one in kept:
                        await root.create(CRDS, one)
                    seen = await until(orchestrator, lambda seen: not hidden(seen))
                    assert names(seen) == {"plain"}, "its jobs went with their definition"
            finally:
                await orchestrator.close()
                await root.delete("/api/v1/nodes/marked")
                await tidy(root)

    run(work())


def test_a_right_that_is_missing_for_one_kind_hides_that_kind_alone(lab: KubeLab, tmp_path: Path):
    """It is named, and once it is given the kind is seen without a restart."""

    async def work() -> None:
        async with admin(lab) as root, as_controller(lab, root, tmp_path) as api:
            role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/holdfast-controller"
            rules = (await root.get(role))["rules"]
            orchestrator = KubernetesOrchestrator(KubernetesConfig(kubeconfig=str(tmp_path / "kubeconfig")))
            try:
                less = [one for one in rules if not {"incidents", "pytorchjobs"} & set(one["resources"])]
                await root.patch(role, {"rules": less}, MERGE)
                await until_refused(api)
                seen = await until(orchestrator, lambda seen: "pytorchjob" in hidden(seen))
                (why,) = [one.why for one in seen.unseen if one.kind == "pytorchjob"]
                assert 'cannot list resource "pytorchjobs"' in why
                await root.patch(role, {"rules": rules}, MERGE)
                await until(orchestrator, lambda seen: not hidden(seen))
            finally:
                await root.patch(role, {"rules": rules}, MERGE)
                await orchestrator.close()

    run(work())


def test_a_notice_that_comes_again_is_counted_up_with_the_rights_that_are_given(lab: KubeLab, tmp_path: Path):
    """Its Event is there already: it must be read before it is written."""

    async def work() -> None:
        async with admin(lab) as root, as_controller(lab, root, tmp_path):
            orchestrator = KubernetesOrchestrator(KubernetesConfig(kubeconfig=str(tmp_path / "kubeconfig")))
            await root.create("/api/v1/nodes", {"metadata": {"name": "told"}})
            try:
                await until(orchestrator, lambda seen: any(node.name == "told" for node in seen.nodes))
                notifier = EventNotifier(orchestrator)
                for _ in range(3):
                    await notifier.send(Notify(id="m", cause=1, topic="i1", title="told is back", node="told"))
                events = (await root.list_all("/api/v1/namespaces/default/events"))[0]
                assert [one["count"] for one in events if one["reason"] == "ToldIsBack"] == [3]
            finally:
                await orchestrator.close()
                await root.delete("/api/v1/nodes/told")

    run(work())
