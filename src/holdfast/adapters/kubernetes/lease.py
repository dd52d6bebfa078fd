"""A Kubernetes Lease as the thing that elects: which of several controllers may try to lead.

`wiring/turns.py` hands it to `controller/election.py`, which judges. Every write is checked by the server: it carries
the resourceVersion of what was read, so that of two that write at once one is refused. It elects and does not fence,
which the journal's own epoch does. Times in it are for people; nobody here compares them with a clock.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from holdfast.adapters.kubernetes.api import ApiError, KubeApi
from holdfast.errors import FencedError, JournalBusyError, LinkError
from holdfast.ports import LeaseRow

GROUP = "/apis/coordination.k8s.io/v1/namespaces"


class KubernetesLease:
    """A lease object, made when it is missing.

    Args:
        api: where it stands.
        namespace: its namespace, which must exist.
        name: its name.
    """

    def __init__(self, api: KubeApi, namespace: str, name: str) -> None:
        self._api = api
        self._namespace, self._name = namespace, name
        self._path = f"{GROUP}/{namespace}/leases"
        self._held: dict[str, Any] | None = None

    async def lease(self) -> LeaseRow | None:
        """The lease as it stands; None when nobody has ever held it. Raises LinkError."""
        found = await self._look()
        return _row(found) if found is not None else None

    async def take(self, holder: str, *, lease_s: float, now: float, seen: LeaseRow) -> None:
        """Take it, if it still is as it was seen.

        Raises:
            JournalBusyError: somebody else was quicker, or has renewed it.
            LinkError: the API server cannot be reached, or refuses.
        """
        found = await self._look()
        row = _row(found) if found is not None else None
        if row is not None and row.holder not in {"", holder} and row != seen:
            raise JournalBusyError(f"{row.holder!r} leads by {self._namespace}/{self._name}")
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(1, round(lease_s)),
            "acquireTime": _micro(now),
            "renewTime": _micro(now),
            "leaseTransitions": (row.epoch if row is not None else 0) + 1,
        }
        meta = {"name": self._name, "namespace": self._namespace}
        body: dict[str, Any] = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
        try:
            if found is None:
                self._held = await self._api.create(self._path, body)
            else:
                body["metadata"] = found["metadata"]
                self._held = await self._put(body)
        except ApiError as error:
            if error.conflict:
                raise JournalBusyError(f"another was quicker at {self._namespace}/{self._name}") from error
            raise self._refused(error) from error

    async def renew(self, *, now: float) -> None:
        """Keep it.

        Raises:
            FencedError: somebody else has it.
            LinkError: the API server cannot be reached, or refuses.
        """
        await self._change({"renewTime": _micro(now)})

    async def release(self, *, now: float) -> None:
        """Give it back, so that another may have it at once. Raises as `renew`."""
        await self._change({"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _micro(now)})
        self._held = None

    async def _change(self, spec: dict[str, Any]) -> None:
        if self._held is None:
            raise FencedError(f"the lease {self._namespace}/{self._name} is not held")
        try:
            self._held = await self._put({**self._held, "spec": {**self._held["spec"], **spec}})
        except ApiError as error:
            if not error.conflict and not error.gone:
                raise self._refused(error) from error
            mine = _row(self._held)
            found = await self._look()
            if found is None or (_row(found).holder, _row(found).epoch) != (mine.holder, mine.epoch):
                holder = _row(found).holder if found is not None else "nobody"
                raise FencedError(f"the lease {self._namespace}/{self._name} was taken by {holder!r}") from error
            # An answer of ours was lost, or somebody added a label: go on from what stands there.
            self._held = found
            raise LinkError(f"the lease {self._namespace}/{self._name} had changed; it is renewed anew") from error

    async def _look(self) -> dict[str, Any] | None:
        try:
            return await self._api.get(f"{self._path}/{self._name}")
        except ApiError as error:
            if error.gone:
                return None
            raise self._refused(error) from error

    async def _put(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self._api.call("PUT", f"{self._path}/{self._name}", body=body)

    def _refused(self, error: ApiError) -> LinkError:
        hint = ": give the controller get, create and update of leases there" if error.status == 403 else ""
        return LinkError(f"the lease {self._namespace}/{self._name}: {error}{hint}")


def _row(found: dict[str, Any]) -> LeaseRow:
    spec = found.get("spec", {})
    lease_s = float(spec.get("leaseDurationSeconds") or 0)
    renewed = datetime.fromisoformat(spec["renewTime"]).timestamp() if spec.get("renewTime") else 0.0
    return LeaseRow(
        spec.get("holderIdentity") or "", int(spec.get("leaseTransitions") or 0), renewed + lease_s, lease_s
    )


def _micro(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
