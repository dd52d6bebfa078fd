"""The mirror of incidents in the API server, for `kubectl get incidents`: written, never read back, may be deleted.

`wiring/turns.py` has it told of incidents that changed. The first functions are pure. A write that fails is said once
and left out: the journal has it. Incidents that are closed longer ago than `KEPT_S` are taken away. Times are Unix
seconds.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import structlog

from holdfast.adapters.kubernetes.api import MERGE, ApiError, KubeApi, stamp
from holdfast.errors import LinkError
from holdfast.model.records import IncidentRecord

PATH = "/apis/holdfast.dev/v1/incidents"
KEPT_S = 7 * 86400.0
LIST_MAX = 20
TEXT_MAX = 4096

_log = structlog.get_logger("holdfast.kubernetes")


def object_name(incident: str) -> str:
    """A name that Kubernetes takes; ids are ASCII with few signs beside letters and digits."""
    return re.sub(r"[^a-z0-9.-]+", "-", incident.lower()).strip("-.")[:250] or "incident"


def body_of(record: IncidentRecord) -> dict[str, Any]:
    """The whole object."""
    diagnosis = record.diagnosis
    jobs = [str(job) for job in record.jobs]
    closed = record.closed_at > 0.0
    status: dict[str, Any] = {
        "id": record.id,
        "state": "Recovered" if closed else "Open",
        "cause": diagnosis.cause if diagnosis is not None else "",
        "domain": diagnosis.domain.value if diagnosis is not None else "",
        "nodes": list(record.nodes)[:LIST_MAX],
        "nodesText": _short(record.nodes),
        "jobs": jobs[:LIST_MAX],
        "jobsText": _short(jobs),
        "openedAt": stamp(record.opened_at),
        "story": (diagnosis.story if diagnosis is not None else "")[:TEXT_MAX],
    }
    if closed:
        status["closedAt"] = stamp(record.closed_at)
        status["seconds"] = max(0, round(record.closed_at - record.opened_at))
    meta = {"name": object_name(record.id), "labels": {"app.kubernetes.io/managed-by": "holdfast"}}
    return {"apiVersion": "holdfast.dev/v1", "kind": "Incident", "metadata": meta, "status": status}


def _short(names: Iterable[str]) -> str:
    found = list(names)
    return ",".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


class IncidentMirror:
    """Writes what it is told of, one after the other; the newest word about an incident replaces an older one."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._waiting: dict[str, IncidentRecord] = {}
        self._bell = asyncio.Event()
        self._said = ""

    def tell(self, records: Iterable[IncidentRecord]) -> None:
        """These are new or have changed."""
        for record in records:
            self._waiting[record.id] = record
            self._bell.set()

    async def run(self) -> None:
        """Write, until it is cancelled."""
        while True:
            await self._bell.wait()
            self._bell.clear()
            while self._waiting:
                name = next(iter(self._waiting))
                await self.write(self._waiting.pop(name))

    async def write(self, record: IncidentRecord) -> None:
        """Bring one object to what the record says."""
        body = body_of(record)
        try:
            try:
                await self._api.patch(f"{PATH}/{body['metadata']['name']}", body, MERGE)
            except ApiError as error:
                if not error.gone:
                    raise
                await self._api.create(PATH, body)
        except (ApiError, LinkError) as error:
            self._say(error)
        else:
            self._said = ""

    async def tidy(self, now: float) -> int:
        """Take away what has been closed for long; how many."""
        taken = 0
        try:
            found = await self._api.get(PATH)
            for one in found.get("items", ()):
                closed = one.get("status", {}).get("closedAt")
                if closed and datetime.fromisoformat(closed).timestamp() < now - KEPT_S:
                    await self._api.delete(f"{PATH}/{one['metadata']['name']}")
                    taken += 1
        except (ApiError, LinkError) as error:
            self._say(error)
        return taken

    def _say(self, error: Exception) -> None:
        status = error.status if isinstance(error, ApiError) else 0
        hint = {
            403: ": give the controller list, create, patch and delete of incidents.holdfast.dev",
            404: ": apply deploy/kubernetes/incident-crd.yaml, or leave the mirror out",
        }.get(status, "")
        if self._said != f"{status}{hint}":
            self._said = f"{status}{hint}"
            _log.warning("incidents are not mirrored into the API server", why=f"{error}{hint}")
