"""The deep check of a repaired node by a pod on it: what a `ValidateNode` order does where a site names a template.

`client` calls `CheckPods`. The pod is made from a PodTemplate (deploy/kubernetes: `holdfast/holdfast-check`), bound to
the node, which is out of service and marked `Unschedulable`, `InProgress` meanwhile. Its exit code is the answer: 0
well, 1 well with warnings, all else not well; what it wrote says why. One pod for an order, by name, so that a
controller that takes over goes on waiting for the same one. Time passes while the checks run, up to the site's limit.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib

import msgspec
import structlog
from msgspec import Struct

from holdfast.adapters.kubernetes.api import ApiError
from holdfast.adapters.kubernetes.asks import HOLDFAST
from holdfast.adapters.kubernetes.looks import Looks
from holdfast.adapters.kubernetes.objects import Json, Pod, Terminated
from holdfast.errors import ConfigError, LinkError, PermanentOrderError, TemporaryOrderError
from holdfast.model.orders import ValidateNode

START_S = 600.0
"""A check pod that has not begun by then, for want of its image or its node, is taken away and tried anew."""
PASSED = frozenset({0, 1})
TEXT_MAX = 500
LOG_LINES = 400
LOG_BYTES = 1 << 18
CHECKED = f"{HOLDFAST}/checks-node"
"""Annotation of a check pod: the node."""
_BY_NODE = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Evicted", "Preempting", "NodeAffinity"})
"""Ends of a pod that say nothing about its checks."""
_log = structlog.get_logger("holdfast.kubernetes")


class _Verdict(Struct):
    check: str = ""
    status: str = ""
    detail: str = ""


class _Told(Struct):
    """What `holdfast check --json` prints, as far as it is read."""

    checks: list[_Verdict] = []


def template_place(text: str) -> tuple[str, str]:
    """Namespace and name of `NAMESPACE/NAME`. Raises ConfigError."""
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise ConfigError(f"[kubernetes] check_template {text!r}: write NAMESPACE/NAME of a PodTemplate")
    return namespace, name


def pod_name(order: ValidateNode) -> str:
    """The name of an order's pod: the same for the same order."""
    mark = hashlib.sha256(order.id.encode()).hexdigest()[:10]
    return f"holdfast-check-{order.node[:200]}-{mark}".replace("_", "-").lower()


def body_of(template: Json, order: ValidateNode) -> Json:
    """The pod: the template's, bound to the node past the scheduler, which keeps pods off it."""
    made = copy.deepcopy(template["template"])
    about = made.setdefault("metadata", {})
    about["name"] = pod_name(order)
    about.setdefault("annotations", {})[CHECKED] = order.node
    made["spec"] |= {"nodeName": order.node, "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", **made}


def summed_up(text: str) -> str:
    """One sentence of what a check pod wrote: the checks that did not pass, else its last line."""
    try:
        told = msgspec.json.decode(text.encode(), type=_Told)
    except msgspec.MsgspecError:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:TEXT_MAX] if lines else ""
    bad = [f"{one.check}: {one.detail}" for one in told.checks if one.status in {"critical", "unknown"}]
    ran = sum(1 for one in told.checks if one.status in {"ok", "warning"})
    return "; ".join(bad)[:TEXT_MAX] or f"{ran} health checks passed"


class CheckPods:
    """See the module. `template` is `NAMESPACE/NAME`."""

    def __init__(self, looks: Looks, template: str, *, limit_s: float) -> None:
        self._looks = looks
        self._api = looks.api
        self._namespace, self._template = template_place(template)
        self._limit_s = limit_s

    async def execute(self, order: ValidateNode) -> str:
        """Run the checks and say that they passed.

        Raises:
            PermanentOrderError: they did not; says which.
            TemporaryOrderError: they could not be run.
        """
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        pod = await self._made(path, order)
        uid = str(pod["metadata"]["uid"])
        try:
            found = await self._ended(order.node, uid)
            end = _end_of(found)
            said = summed_up(await self._log_of(f"{path}/{pod_name(order)}"))
        except TemporaryOrderError:
            await self._delete(f"{path}/{pod_name(order)}", uid)
            raise
        await self._delete(f"{path}/{pod_name(order)}", uid)
        if found.status.phase == "Succeeded" or (end is not None and end.exit_code in PASSED):
            return said or "the check pod ended well"
        if found.status.reason in _BY_NODE or (end is None and found.status.reason != "DeadlineExceeded"):
            raise TemporaryOrderError(
                f"the check pod on {order.node} was ended: {found.status.reason or 'no word why'}"
            )
        code = f"exit code {end.exit_code}" if end is not None else found.status.reason
        raise PermanentOrderError(f"deep checks of {order.node} failed ({code}): {said or found.status.message}")

    async def _made(self, path: str, order: ValidateNode) -> Json:
        try:
            place = f"/api/v1/namespaces/{self._namespace}/podtemplates/{self._template}"
            return await self._api.create(path, body_of(await self._api.get(place), order))
        except ApiError as error:
            if error.conflict:
                return await self._api.get(f"{path}/{pod_name(order)}")
            hint = f" ([kubernetes] check_template: {self._namespace}/{self._template})"
            if error.status == 403:
                hint += ": give the controller get of podtemplates and create of pods in that namespace"
            # No word about the node: a template that is wrong must not fail its validation.
            raise TemporaryOrderError(f"no check pod for {order.node}: {error}{hint}") from error

    async def _ended(self, node: str, uid: str) -> Pod:
        """The pod, once it has ended."""
        loop = asyncio.get_running_loop()
        begun = loop.time()

        def found() -> Pod | None:
            pod = self._looks.pods.items.get(uid)
            waited_s = loop.time() - begun
            if pod is None:
                if waited_s > START_S / 10:
                    raise TemporaryOrderError(f"the check pod on {node} was deleted by somebody")
                return None
            if pod.status.phase in {"Succeeded", "Failed"}:
                return pod
            if pod.status.phase != "Running" and waited_s > START_S:
                raise TemporaryOrderError(
                    f"the check pod on {node} has not begun in {START_S:g} s: its image, its node?"
                )
            return None

        return await self._looks.until(found, f"the check pod on {node} has not ended", limit_s=self._limit_s)

    async def _log_of(self, path: str) -> str:
        query = {"tailLines": str(LOG_LINES), "limitBytes": str(LOG_BYTES)}
        try:
            return (await self._api.raw("GET", f"{path}/log", query=query)).decode(errors="replace")
        except (ApiError, LinkError) as error:
            _log.warning("a check pod's log cannot be read", why=str(error))
            return ""

    async def _delete(self, path: str, uid: str) -> None:
        try:
            await self._api.delete(path, uid=uid, grace_s=1)
        except (ApiError, LinkError) as error:
            if not (isinstance(error, ApiError) and (error.gone or error.conflict)):
                _log.warning("a check pod was left behind", why=str(error))


def _end_of(pod: Pod) -> Terminated | None:
    """How its first container that ended badly did end; else any."""
    states = [one.state.terminated for one in pod.status.container_statuses or [] if one.state is not None]
    ends = [end for end in states if end is not None]
    return next((end for end in ends if end.exit_code not in PASSED), ends[0] if ends else None)
