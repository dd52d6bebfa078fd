"""Holdfast's notices as Kubernetes Events on the job, its pods and the node, where `kubectl describe` shows them.

A `ports.Notifier`, wired beside the others when the cluster is a Kubernetes. The same notice again counts up the Event
that is there instead of making another. Events are kept by the API server for an hour or so. No time passes here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import structlog

from holdfast.adapters.kubernetes.api import MERGE, ApiError, stamp
from holdfast.adapters.kubernetes.client import KubernetesOrchestrator
from holdfast.adapters.kubernetes.objects import Json, Node, Pod, Workload
from holdfast.errors import LinkError, TemporaryOrderError
from holdfast.model.evidence import Severity
from holdfast.model.orders import Notify

COMPONENT = "holdfast"
MESSAGE_MAX = 1000
REASON_MAX = 60
PODS_MAX = 8
"""Of a job with more pods, so many are told."""
_ATTEMPT = re.compile(r"^\S+\(\d+\)(?: is| has)?(?=[ :])")
_log = structlog.get_logger("holdfast.kubernetes")


def reason_of(title: str) -> str:
    """One word in the API's way, from a notice's title: `node03 is back` -> `Node03IsBack`.

    The job that the Event is about is left out: `default.job.a(1) is requeued, held` -> `RequeuedHeld`.
    """
    words = re.findall(r"[A-Za-z0-9]+", _ATTEMPT.sub("", title))
    return "".join(word[0].upper() + word[1:] for word in words)[:REASON_MAX] or "Notice"


def message_of(title: str, text: str) -> str:
    """Title and text in one; what the text begins with, and the title ends with, is said once."""
    for start in (0, *(found.end() for found in re.finditer(": ", title))):
        if text.startswith(title[start:].rstrip(".")):
            return title[:start] + text
    return f"{title}: {text}" if text else title


def about_job(job: Workload) -> Json:
    """Reference to a job."""
    found = {"kind": job.kind.name, "namespace": job.namespace, "name": job.name, "uid": job.uid}
    return {**found, "apiVersion": f"{job.kind.group}/{job.version}"}


def about_node(node: Node) -> Json:
    """Reference to a node: as a kubelet has it, with its name as uid, so that `kubectl describe node` finds it."""
    return {"apiVersion": "v1", "kind": "Node", "name": node.metadata.name, "uid": node.metadata.name}


def event(notice: Notify, about: Json, *, now: str) -> Json:
    """The Event. Its name follows from what it says, about whom: the same again is the same Event."""
    said = f"{notice.title}\0{notice.text}\0{about.get('uid', '')}"
    mark = hashlib.sha256(said.encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about['name']}.{mark}"[-253:], "namespace": about.get("namespace", "default")},
        "involvedObject": about,
        "reason": reason_of(notice.title),
        "message": message_of(notice.title, notice.text)[:MESSAGE_MAX],
        "type": "Normal" if notice.severity is Severity.INFO else "Warning",
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def about_pod(pod: Pod) -> Json:
    """Reference to a pod."""
    about = pod.metadata
    return {"apiVersion": "v1", "kind": "Pod", "namespace": about.namespace, "name": about.name, "uid": about.uid}


def pods_to_tell(notice: Notify, pods: Sequence[Pod]) -> list[Pod]:
    """The pods that a notice about their job is about: those on its node, else the failed ones, else the first."""
    here = [pod for pod in pods if notice.node and pod.spec.node_name == notice.node]
    failed = [pod for pod in pods if pod.status.phase == "Failed"]
    first = sorted(pods, key=lambda pod: pod.metadata.name)[:1]
    return sorted(here or failed or first, key=lambda pod: pod.metadata.name)[:PODS_MAX]


class EventNotifier:
    """See the module."""

    def __init__(self, orchestrator: KubernetesOrchestrator) -> None:
        self._orchestrator = orchestrator
        self._is_refused = False

    async def send(self, notice: Notify) -> None:
        """See ports.Notifier."""
        try:
            looks = await self._orchestrator.connect()
            now = stamp()
            job = self._orchestrator.find(notice.job) if notice.job is not None else None
            node = looks.node(notice.node) if notice.node else None
            if job is not None and not job.put_away:
                await self._tell(event(notice, about_job(job), now=now))
                for pod in pods_to_tell(notice, looks.pods_by_workload().get(job.uid, [])):
                    await self._tell(event(notice, about_pod(pod), now=now))
            if node is not None:
                await self._tell(event(notice, about_node(node), now=now))
        except LinkError as error:
            raise TemporaryOrderError(str(error)) from error
        except ApiError as error:
            if error.status == 403:
                self._refused(error)
                return
            raise TemporaryOrderError(str(error)) from error

    def _refused(self, error: ApiError) -> None:
        """Say once which right is missing: the notice itself has gone to the other notifiers."""
        if not self._is_refused:
            self._is_refused = True
            _log.warning(
                "notices are not shown as Events", why=f"{error}: give the controller get, create, patch of events"
            )

    async def _tell(self, body: Json) -> None:
        path = f"/api/v1/namespaces/{body['metadata']['namespace']}/events"
        api = self._orchestrator.api
        try:
            await api.create(path, body)
        except ApiError as error:
            if not error.conflict:
                raise
            place = f"{path}/{body['metadata']['name']}"
            known = await api.get(place)
            count = int(known.get("count") or 1) + 1
            await api.patch(place, {"count": count, "lastTimestamp": body["lastTimestamp"]}, MERGE)
