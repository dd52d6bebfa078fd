"""The label by which the Service finds the controller that leads: on our own pod, `holdfast.dev/role`.

`wiring/turns.py` sets it. A stand-by is as ready as the leader, or a rollout would never be complete; so readiness
cannot tell them apart. Tried again until it is done: a wrong label costs agents a refused connection, never a wrong
order.
"""

from __future__ import annotations

import asyncio

import structlog

from holdfast.adapters.kubernetes.api import MERGE, ApiError, KubeApi
from holdfast.errors import LinkError

ROLE = "holdfast.dev/role"
ACTIVE, STANDBY = "active", "standby"
RETRY_S = 2.0

_log = structlog.get_logger("holdfast.kubernetes")


async def set_role(api: KubeApi, pod: str, role: str) -> None:
    """Label our pod; returns when it is done.

    Args:
        api: where the pod is.
        pod: `NAMESPACE/NAME`.
        role: `ACTIVE` or `STANDBY`.
    """
    namespace, _, name = pod.partition("/")
    said = False
    while True:
        try:
            await api.patch(
                f"/api/v1/namespaces/{namespace}/pods/{name}", {"metadata": {"labels": {ROLE: role}}}, MERGE
            )
        except (ApiError, LinkError) as error:
            if not said:
                hint = ": give the controller patch of pods in its own namespace" if "403" in str(error) else ""
                _log.warning("our pod could not be labelled; the Service may miss us", why=f"{error}{hint}", role=role)
                said = True
            await asyncio.sleep(RETRY_S)
        else:
            return
