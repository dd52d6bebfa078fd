"""The deep check of a repaired node by a pod on it: what a `ValidateNode` order does where a site names a template.

`client` calls `CheckPods`. The pod is made from a PodTemplate (deploy/kubernetes: `holdfast/holdfast-check`), bound to
the node, which is out of service and marked `Unschedulable`, `InProgress` meanwhile. Its exit code is the answer: 0
well, 1 well with warnings if it tells of checks that ran, some say that nothing was checked, all else not well; what it
wrote says why. One pod for an order, by name, so that a controller that takes over goes on waiting for the same one.
Who stops waiting leaves the pod: the next other order about its node takes it away. Time passes while the checks run,
up to the site's limit.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import re
from collections import deque

import msgspec
import structlog
from msgspec import Struct

from holdfast.adapters.kubernetes.api import ApiError
from holdfast.adapters.kubernetes.asks import HOLDFAST
from holdfast.adapters.kubernetes.looks import Looks
from holdfast.adapters.kubernetes.objects import Json, Pod, Terminated
from holdfast.errors import ConfigError, LinkError, OrderError, PermanentOrderError, TemporaryOrderError
from holdfast.model.orders import ValidateNode

START_S = 600.0
"""A check pod that has not begun by then, for want of its image or its node, is taken away and tried anew."""
WARNED = 1
NOT_RUN = frozenset({69, 70, 78, 125, 126, 127})
"""Exit codes of a program that could not begin: of sysexits (service, software, configuration), a shell, a runtime."""
TEXT_MAX = 500
LOG_LINES = 20_000
LOG_BYTES = 1 << 20
FORMS_MAX = 50
"""Lines of a log, the last ones, that are tried as the beginning of what `holdfast check --json` printed."""
RAN = frozenset({"ok", "warning", "critical", "unknown"})
"""Words for a check that was run; the others: what it looks at is not here, it is switched off, or warming up."""
CHECKED = f"{HOLDFAST}/checks-node"
"""Annotation of a check pod: the node."""
_BY_NODE = frozenset(
    {
        "NodeLost",
        "NodeShutdown",
        "Shutdown",
        "Terminated",
        "TerminationByKubelet",
        "Evicted",
        "Preempting",
        "NodeAffinity",
    }
)
"""Ends of a pod that say nothing about its checks. A pod's own `Terminated` is a node's orderly shutdown."""
_DISRUPTED = "DisruptionTarget"
"""Condition of a pod that was evicted, preempted or shut down with its node (1.26 and later)."""
_log = structlog.get_logger("holdfast.kubernetes")


class _Verdict(Struct):
    check: str = ""
    status: str = ""
    detail: str = ""


class _Told(Struct):
    """What `holdfast check --json` prints, as far as it is read."""

    checks: list[_Verdict]

    @property
    def ran(self) -> int:
        """How many checks were run, whatever they found."""
        return sum(1 for one in self.checks if one.status in RAN)


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


def read_form(text: str) -> _Told | None:
    """What `holdfast check --json` printed, also between other lines; None where there is no such form."""
    lines = deque((found.start() for found in re.finditer(r"^\{", text, re.MULTILINE)), maxlen=FORMS_MAX)
    decoder = json.JSONDecoder()
    for start in (*reversed(lines), text.find("{")):
        try:
            form, _ = decoder.raw_decode(text, max(start, 0))
            return msgspec.convert(form, _Told)
        except (ValueError, RecursionError, msgspec.MsgspecError):
            continue
    return None


def summed_up(text: str) -> str:
    """One sentence of what a check pod wrote: the checks that did not pass, else its last line."""
    told = read_form(text)
    if told is None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:TEXT_MAX] if lines else ""
    bad = [f"{one.check}: {one.detail}" for one in told.checks if one.status in {"critical", "unknown"}]
    ran = sum(1 for one in told.checks if one.status in {"ok", "warning"})
    return "; ".join(bad)[:TEXT_MAX] or f"{ran} health checks passed"


def judged(node: str, pod: Pod, text: str | None) -> str:
    """What an ended check pod says of its node: that it passed.

    Args:
        node: its name.
        pod: as it ended.
        text: what it wrote; None: that cannot be read.

    Raises:
        PermanentOrderError: the checks were not passed; says which.
        TemporaryOrderError: the pod says nothing about the node.
    """
    raise_if_deleted(node, pod)
    passed, end = pod.status.phase == "Succeeded", end_of(pod)
    if not passed and (_by_others(pod) or (end is None and pod.status.reason != "DeadlineExceeded")):
        raise TemporaryOrderError(f"the check pod on {node} was ended: {pod.status.reason or 'no word why'}")
    told, said = read_form(text or ""), summed_up(text or "")
    if told is not None and not told.ran:
        raise TemporaryOrderError(f"the check pod on {node} could run no check: does it see the node's GPUs?")
    if passed:
        return said or "the check pod ended well"
    code = end[1].exit_code if end is not None and pod.status.reason != "DeadlineExceeded" else None
    if code in NOT_RUN:
        raise TemporaryOrderError(
            f"the check pod on {node} could not run: exit code {code}{': ' if said else ''}{said}"
        )
    if code == WARNED:
        if text is None:
            raise TemporaryOrderError(f"the check pod on {node} ended with exit code 1, and its log cannot be read")
        if told is not None and all(one.status != "critical" for one in told.checks):
            return said
    why = f"exit code {code}" if code is not None else pod.status.reason
    raise PermanentOrderError(f"deep checks of {node} failed ({why}): {said or pod.status.message}")


def raise_if_deleted(node: str, pod: Pod) -> None:
    """Its containers are killed then: how they end says nothing about the node. Raises TemporaryOrderError."""
    if pod.metadata.deletion_timestamp is not None and pod.status.phase != "Succeeded":
        raise TemporaryOrderError(f"the check pod on {node} is being deleted")


def _by_others(pod: Pod) -> bool:
    disrupted = any(one.type == _DISRUPTED and one.status == "True" for one in pod.status.conditions or [])
    return disrupted or pod.status.reason in _BY_NODE


def end_of(pod: Pod) -> tuple[str, Terminated] | None:
    """The container that says how the checks ended, and how: one that ended badly, else any."""
    states = [(one.name, one.state.terminated) for one in pod.status.container_statuses or [] if one.state is not None]
    ends = [(name, end) for name, end in states if end is not None]
    bad = sorted((one for one in ends if one[1].exit_code), key=lambda one: one[1].exit_code == WARNED)
    return bad[0] if bad else ends[0] if ends else None


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
        await self.clear(order.node, but=pod_name(order))
        pod = await self._made(path, order)
        uid = str(pod["metadata"]["uid"])
        try:
            found = await self._ended(order.node, uid)
            said = judged(order.node, found, await self._log_of(f"{path}/{pod_name(order)}", found))
        except OrderError:
            await self._delete(f"{path}/{pod_name(order)}", uid)
            raise
        await self._delete(f"{path}/{pod_name(order)}", uid)
        return said

    async def clear(self, node: str, *, but: str = "") -> None:
        """Take away pods that check this node and that nobody waits for any more; `but` the one of this name.

        One that cannot be taken away is logged: the order that comes next does not depend on it.
        """
        for uid, pod in list(self._looks.pods.items.items()):
            about = pod.metadata
            ours = about.namespace == self._namespace and (about.annotations or {}).get(CHECKED) == node
            if ours and about.name != but and about.deletion_timestamp is None:
                _log.info("a check pod that nobody waits for is taken away", node=node, pod=about.name)
                await self._delete(f"/api/v1/namespaces/{self._namespace}/pods/{about.name}", uid)

    async def _made(self, path: str, order: ValidateNode) -> Json:
        try:
            place = f"/api/v1/namespaces/{self._namespace}/podtemplates/{self._template}"
            try:
                return await self._api.create(path, body_of(await self._api.get(place), order))
            except ApiError as error:
                if not error.conflict:
                    raise
                pod = await self._api.get(f"{path}/{pod_name(order)}")
        except ApiError as error:
            hint = f" ([kubernetes] check_template: {self._namespace}/{self._template})"
            if error.status == 403:
                hint += ": give the controller get of podtemplates and create of pods in that namespace"
            # No word about the node: a template that is wrong must not fail its validation.
            raise TemporaryOrderError(f"no check pod for {order.node}: {error}{hint}") from error
        if pod["metadata"].get("deletionTimestamp"):
            raise TemporaryOrderError(f"the former check pod on {order.node} is still going")
        return pod

    async def _ended(self, node: str, uid: str) -> Pod:
        """The pod, once it has ended."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        seen = False

        def found() -> Pod | None:
            nonlocal seen
            pod = self._looks.pods.items.get(uid)
            waited_s = loop.time() - begun
            if pod is None:
                if seen or waited_s > START_S / 10:
                    raise TemporaryOrderError(f"the check pod on {node} was deleted by somebody")
                return None
            seen = True
            raise_if_deleted(node, pod)
            if pod.status.phase in {"Succeeded", "Failed"}:
                return pod
            if pod.status.phase != "Running" and waited_s > START_S:
                raise TemporaryOrderError(
                    f"the check pod on {node} has not begun in {START_S:g} s: its image, its node?"
                )
            return None

        return await self._looks.until(found, f"the check pod on {node} has not ended", limit_s=self._limit_s)

    async def _log_of(self, path: str, pod: Pod) -> str | None:
        query = {"tailLines": str(LOG_LINES), "limitBytes": str(LOG_BYTES)}
        end = end_of(pod)
        if end is not None:
            query["container"] = end[0]
        try:
            return (await self._api.raw("GET", f"{path}/log", query=query)).decode(errors="replace")
        except (ApiError, LinkError) as error:
            _log.warning("a check pod's log cannot be read", why=str(error))
            return None

    async def _delete(self, path: str, uid: str) -> None:
        try:
            await self._api.drop(path, uid=uid, grace_s=1)
        except (ApiError, LinkError) as error:
            _log.warning("a check pod was left behind", why=str(error))
