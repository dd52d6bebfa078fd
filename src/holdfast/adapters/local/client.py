"""The embedded cluster as an orchestrator, and its other requests for the command line, the demo and drills.

`LocalOrchestrator` fulfils `holdfast.ports.Orchestrator`: the controller observes, waits for changes and has orders
carried out. "Ensure" semantics hold by order id (the daemon remembers what it did) and by the state of the world.
Each call opens its own connection (tens of microseconds on a Unix socket), so that no wait stands in another's way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from holdfast.adapters.local.protocol import (
    LINE_BYTES_MAX,
    AnyRequest,
    Cancel,
    Changed,
    Drain,
    Exclude,
    NodeRequest,
    Observe,
    Observed,
    Reboot,
    Release,
    Replace,
    RequeueHeldJob,
    ResetGpus,
    Resume,
    Submit,
    WaitChange,
    decode_answer,
    encode_request,
    error_of,
)
from holdfast.errors import HoldfastError, LinkError, OrderError, PermanentOrderError, TemporaryOrderError
from holdfast.model.cluster import JobView, WorldView
from holdfast.model.orders import (
    AnyOrder,
    GiveUp,
    QuarantineNode,
    RebootNode,
    ReleaseJob,
    ReplaceNode,
    RequeueHeld,
    ResetGpu,
    RetireNode,
    ReturnNode,
    SetExcluded,
)
from holdfast.os.unix_sockets import socket_address

DRAIN_PREFIX = "[holdfast]"
"""Begins the reason of every drain that Holdfast sets; only such drains are lifted again."""

T = TypeVar("T")

_NODE_REQUESTS: dict[str, Callable[..., AnyRequest]] = {
    kind.__struct_config__.tag: kind for kind in get_args(AnyRequest) if issubclass(kind, NodeRequest)
}


def request_of(order: AnyOrder) -> AnyRequest | None:
    """What to ask the embedded scheduler for; None when the order is somebody else's (launcher, agent, controller)."""
    match order:
        case RequeueHeld():
            return RequeueHeldJob(job=order.job.id, restart_count=order.restart_count, why=order.why, order=order.id)
        case SetExcluded():
            return Exclude(job=order.job.id, nodes=order.nodes, order=order.id)
        case ReleaseJob():
            return Release(job=order.job.id, epoch=order.epoch, restore_step_max=order.restore_step_max, order=order.id)
        case GiveUp():
            why = f"{DRAIN_PREFIX} {order.why}"
            return Cancel(job=order.job.id, who="holdfast", why=why, only_waiting=not order.cancel, order=order.id)
        case QuarantineNode():
            reason = f"{DRAIN_PREFIX} {order.why}"
            return Drain(node=order.node, reason=reason, instance_id=order.instance_id, order=order.id)
        case RetireNode():
            reason = f"{DRAIN_PREFIX} retired: {order.why}"
            return Drain(node=order.node, reason=reason, instance_id=order.instance_id, order=order.id)
        case ReturnNode():
            return Resume(node=order.node, prefix=DRAIN_PREFIX, instance_id=order.instance_id, order=order.id)
        case ResetGpu():
            return ResetGpus(node=order.node, gpu=order.gpu, order=order.id)
        case RebootNode():
            return Reboot(node=order.node, boot_id=order.boot_id, order=order.id)
        case ReplaceNode():
            return Replace(node=order.node, instance_id=order.instance_id, order=order.id)
        case _:
            return None


class LocalOrchestrator:
    """A client of the embedded cluster's socket.

    Args:
        socket_path: `<cluster_dir>/cluster.sock`.
    """

    name = "local"
    deeds: AbstractSet[str] = _NODE_REQUESTS.keys()

    def __init__(self, socket_path: Path | str) -> None:
        self.path = Path(socket_path)
        self._version = 0

    async def ask(self, request: AnyRequest) -> msgspec.Raw:
        """Send one request and return its result undecoded.

        Raises:
            LinkError: nobody listens, or the cluster ended meanwhile.
            HoldfastError: what the cluster answered, as the same kind of error that it raised.
        """
        try:
            with socket_address(self.path) as address:
                reader, writer = await asyncio.open_unix_connection(address, limit=LINE_BYTES_MAX)
        except OSError as error:
            raise LinkError(f"no embedded cluster answers at {self.path}: {error.strerror or error}") from error
        try:
            writer.write(encode_request(request))
            line = await reader.readline()
        except (OSError, ValueError) as error:
            raise LinkError(f"the embedded cluster at {self.path} broke off: {error}") from error
        finally:
            writer.close()
        if not line.endswith(b"\n"):
            raise LinkError(f"the embedded cluster at {self.path} ended before it answered")
        answer = decode_answer(line)
        if not answer.ok:
            raise error_of(answer)
        return answer.result

    async def _get(self, request: AnyRequest, kind: type[T]) -> T:
        return msgspec.json.decode(await self.ask(request), type=kind)

    # --- the port ---

    async def observe(self) -> WorldView:
        """See ports.Orchestrator."""
        seen = await self._get(Observe(), Observed)
        self._version = seen.version
        return seen.world

    async def wait_change(self, timeout_s: float) -> bool:
        """See ports.Orchestrator. With the cluster away it returns True soon, so that `observe` can say so."""
        try:
            changed = await self._get(WaitChange(after=self._version, timeout_s=timeout_s), Changed)
        except LinkError:
            await asyncio.sleep(min(timeout_s, 0.5))
            return True
        return changed.changed

    def can(self, order: AnyOrder) -> bool:
        """See ports.Orchestrator."""
        return request_of(order) is not None

    async def execute(self, order: AnyOrder) -> str:
        """See ports.Orchestrator."""
        request = request_of(order)
        if request is None:
            raise PermanentOrderError(f"the embedded cluster does not carry out {type(order).__name__}")
        try:
            return await self._get(request, str)
        except OrderError:
            raise
        except LinkError as error:
            raise TemporaryOrderError(str(error)) from error
        except HoldfastError as error:
            raise PermanentOrderError(str(error)) from error

    # --- for people, the demo and drills ---

    async def submit(self, argv: Sequence[str] = (), **wishes: Any) -> JobView:
        """Queue a job; `wishes` are the fields of `protocol.Submit`. Returns it as first seen."""
        return await self._get(Submit(argv=tuple(argv), **wishes), JobView)

    async def job(self, job_id: str) -> JobView | None:
        """One job as it is now, None when there is no such job."""
        world = await self.observe()
        return next((job for job in world.jobs if job.key.id == job_id), None)

    async def cancel(self, job_id: str, *, who: str = "", why: str = "") -> str:
        """End a job for good."""
        return await self._get(Cancel(job=job_id, who=who, why=why), str)

    async def do(self, deed: str, node: str = "", **facts: Any) -> Any:
        """Do one thing to a node: `deed` is one of `deeds`, `facts` are the further fields of its request."""
        return msgspec.json.decode(await self.ask(_NODE_REQUESTS[deed](node=node, **facts)))
