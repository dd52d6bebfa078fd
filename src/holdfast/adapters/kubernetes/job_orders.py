"""Orders about jobs: stop and hold, exclude, release, give up. Each looks first, acts once, and waits until it is so.

A job is held by its kind's own `suspend`. Whether a server knows that field is seen by whether it took; a Job of a
version without it is set to run no pods, another kind's manifest is put away. Held means that none of its pods is left:
they are deleted by uid with a short grace, and by force only where their node is known not to run, or stayed silent
longer than the launcher's lease. A release changes the templates of kinds that allow it and makes the others anew, from
a ConfigMap of Holdfast's own namespace (`put_away`) that keeps the manifest while there is no job, so that a controller
killed in between loses nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from holdfast.adapters.kubernetes import patches, put_away
from holdfast.adapters.kubernetes.api import MERGE, ApiError, KubeApi, again_on_conflict
from holdfast.adapters.kubernetes.looks import Looks
from holdfast.adapters.kubernetes.objects import (
    EXCLUDED,
    GIVEN_UP,
    HELD,
    LINEAGE,
    RESTARTS,
    Json,
    Pod,
    Workload,
    alive_of,
    ended,
)
from holdfast.errors import PermanentOrderError, TemporaryOrderError
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey

GRACE_S = 1
"""Between SIGTERM and SIGKILL of a held job's pods: its launcher ends its ranks at once."""
SLOW_END_S = 6.0
"""Longer than a launcher's lease (3 s) and its margin."""
END_LIMIT_S = 100.0
GONE_LIMIT_S = 30.0
_log = structlog.get_logger("holdfast.kubernetes")


class _AlreadyError(Exception):
    """What was to be done has been done."""


class JobOrders:
    """See the module. `find` gives the job of a key as the copies have it, None when there is none."""

    def __init__(self, looks: Looks, *, find: Callable[[JobKey], Workload | None]) -> None:
        self._looks = looks
        self._api: KubeApi = looks.api
        self._find = find
        self._does: dict[type[o.JobOrder], Callable[[Any, Workload], Awaitable[str]]] = {
            o.RequeueHeld: self._requeue_held,
            o.SetExcluded: self._exclude,
            o.ReleaseJob: self._release,
            o.GiveUp: self._give_up,
        }

    async def execute(self, order: o.JobOrder) -> str:
        """See ports.Orchestrator. What the API server refuses comes as ApiError."""
        return await self._does[type(order)](order, self._job(order.job))

    def _job(self, key: JobKey) -> Workload:
        job = self._find(key)
        if job is None:
            raise PermanentOrderError(f"there is no job {key} in this cluster")
        return job

    async def _change(self, key: JobKey, make: Callable[[Workload], Json]) -> Workload:
        """Patch the job as it is now; again when somebody changed it meanwhile."""

        async def attempt() -> Workload:
            job = self._job(key)
            if job.put_away:
                return await self._change_put_away(job, make)
            fresh = Workload(kind=job.kind, version=job.version, manifest=await self._api.get(job.path))
            if fresh.uid != job.uid:
                raise TemporaryOrderError(f"{job.id} has just been made anew")
            answer = await self._api.patch(job.path, make(fresh), MERGE)
            self._looks.take(job, answer)
            return Workload(kind=job.kind, version=job.version, manifest=answer)

        return await again_on_conflict(attempt, str(key))

    async def _change_put_away(self, job: Workload, make: Callable[[Workload], Json]) -> Workload:
        """The same to a manifest that is kept in a ConfigMap: only notes can be put on it."""
        about = {**job.about, "resourceVersion": ""}
        notes = make(Workload(kind=job.kind, version=job.version, manifest={**job.manifest, "metadata": about}))
        changed = {**job.annotations, **(notes["metadata"].get("annotations") or {})}
        kept = {key: value for key, value in changed.items() if value is not None}
        manifest = {**job.manifest, "metadata": {**job.about, "annotations": kept}}
        await self._put_away(job, manifest)
        return Workload(kind=job.kind, version=job.version, manifest=manifest, put_away=True)

    # --- hold ---

    async def _requeue_held(self, order: o.RequeueHeld, job: Workload) -> str:
        if job.restarts > order.restart_count:
            if not job.held:
                return f"it was restarted already ({job.restarts} times)"
            await self._keep_down(order.job, job)  # whoever held it may have been killed before that
            await self._until_over(order.job, order)
            return "held already"
        restarts = order.restart_count + 1

        def hold(now: Workload) -> Json:
            if now.restarts >= restarts and not now.held:
                # The copy was behind: another controller has held it and let it run again.
                raise _AlreadyError
            return patches.hold(now, why=order.why, restarts=restarts)

        try:
            held = await self._change(order.job, hold)
        except _AlreadyError:
            return f"it was restarted already ({restarts} times)"
        await self._keep_down(order.job, held)
        await self._until_over(order.job, order)
        return f"stopped and held ({restarts} restarts)"

    async def _keep_down(self, key: JobKey, job: Workload) -> None:
        """See that no pods are made for it."""
        if job.put_away or patches.is_suspended(job) or ended(job.manifest)[0] is not None:
            return
        if job.kind.name == "Job":
            await self._change(key, patches.without_pods)
            return
        _log.info("this kind cannot be suspended here: its manifest is put away", job=job.id)
        await self._put_away(job, patches.remade(job, restore_step=None) | {"metadata": _noted(job)})
        await self._delete(job)

    async def _until_over(self, key: JobKey, order: o.JobOrder) -> None:
        """End its pods, and wait until none is left that runs or might."""
        gone = set(order.gone) if isinstance(order, o.RequeueHeld) else set()
        leased = isinstance(order, o.RequeueHeld) and order.leased
        asked: set[tuple[str, bool]] = set()
        begun = time.monotonic()
        while True:
            seen = self._looks.version
            live = self._live(key)
            if not live:
                return
            slow = time.monotonic() - begun > SLOW_END_S
            for pod in live:
                force = pod.spec.node_name in gone or (leased and slow and self._is_silent(pod.spec.node_name))
                if (pod.metadata.uid, force) not in asked:
                    asked.add((pod.metadata.uid, force))
                    path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
                    await self._api.drop(path, uid=pod.metadata.uid, grace_s=0 if force else GRACE_S)
            if time.monotonic() - begun > END_LIMIT_S:
                names = ", ".join(pod.metadata.name for pod in live)
                raise TemporaryOrderError(f"pods of {key} do not end: {names}")
            await self._looks.wait(seen, 0.5)

    def _live(self, key: JobKey) -> list[Pod]:
        job = self._find(key)
        pods: Sequence[Pod] = self._looks.pods_by_workload().get(job.uid, []) if job is not None else []
        return [pod for pod in pods if pod.live]

    def _is_silent(self, name: str) -> bool:
        node = self._looks.node(name)
        if node is None or alive_of(node) is False:
            return True
        ready = next((one for one in node.status.conditions or [] if one.type == "Ready"), None)
        return ready is None or ready.status == "Unknown"

    # --- exclude and release ---

    async def _exclude(self, order: o.SetExcluded, job: Workload) -> str:
        wanted = ",".join(dict.fromkeys(order.nodes))
        if job.annotations.get(EXCLUDED, "") == wanted:
            return "excluded already"
        await self._change(order.job, lambda now: patches.annotated(now, {EXCLUDED: wanted or None}))
        return f"kept off {wanted or 'no node'}"

    async def _release(self, order: o.ReleaseJob, job: Workload) -> str:
        if not job.held:
            if GIVEN_UP in job.annotations:
                raise PermanentOrderError(f"{job.id} was given up")
            return "released already"
        over = ended(job.manifest)[0] is not None

        def release(now: Workload) -> Json:
            if not now.held:
                return patches.annotated(now, {})
            return patches.resumed(now, restore_step=order.restore_step_max)

        if job.kind.mutable and not job.put_away and not over:
            await self._change(order.job, release)
            return "released"
        await self._make_anew(job, patches.remade(job, restore_step=order.restore_step_max))
        return "released (made anew under its name)"

    async def _make_anew(self, job: Workload, manifest: Json) -> None:
        if not job.put_away:
            kept = {**manifest, "metadata": _noted(job) | {"labels": manifest["metadata"].get("labels") or {}}}
            await self._put_away(job, kept)
            await self._delete(job)
        try:
            answer = await self._api.create(job.kind.path(job.version, job.namespace), manifest)
        except ApiError as error:
            if not error.conflict:
                raise
            answer = await self._api.get(job.path)
            if Workload(kind=job.kind, version=job.version, manifest=answer).lineage != job.lineage:
                raise PermanentOrderError(f"somebody made another {job.id} meanwhile") from error
        self._looks.take(job, answer)
        with contextlib.suppress(ApiError):
            name = put_away.record_name(job.kind.name, job.namespace, job.name)
            await self._api.delete(f"{put_away.collection(self._looks.namespace)}/{name}")

    async def _put_away(self, job: Workload, manifest: Json) -> None:
        record = put_away.record_of(job, manifest, self._looks.namespace)
        self._looks.put_away.take(await put_away.write(self._api, record))

    async def _delete(self, job: Workload) -> None:
        await self._api.drop(job.path, uid=job.uid)
        store = self._looks.kinds[job.kind.name][2]
        await self._looks.until(
            lambda: True if job.uid not in store.items else None, f"{job.id} is not gone", limit_s=GONE_LIMIT_S
        )

    # --- give up ---

    async def _give_up(self, order: o.GiveUp, job: Workload) -> str:
        if not order.cancel:
            return "left as it is"
        if ended(job.manifest)[0] is not None and not job.held:
            # Noted on the object, too: a controller that begins without its journal must not take it for a new failure.
            if GIVEN_UP not in job.annotations:
                why = order.why or "given up"
                await self._change(order.job, lambda now: patches.annotated(now, {GIVEN_UP: why}))
            return "it has ended already"
        if GIVEN_UP not in job.annotations:
            notes: dict[str, str | None] = {GIVEN_UP: order.why or "given up", HELD: None}
            if job.put_away:
                await self._change(order.job, lambda now: patches.annotated(now, notes))
                return "given up while it was held"
            job = await self._change(
                order.job, lambda now: patches.annotated(now, notes, **patches.suspension(now.kind, on=True))
            )
        await self._keep_down(order.job, job)
        await self._until_over(order.job, order)
        return "given up"


def _noted(job: Workload) -> Json:
    """Metadata for the kept manifest: as the job's, with the notes that say that it is held."""
    notes = {**job.annotations, HELD: job.annotations.get(HELD, "restart"), RESTARTS: str(job.restarts)}
    notes[LINEAGE] = job.lineage
    kept = {key: value for key, value in job.about.items() if key in {"name", "namespace", "labels", "ownerReferences"}}
    return {**kept, "annotations": notes}
