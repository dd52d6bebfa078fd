"""The last words of failed pods, and their kubelets', looked at before their job is told to have failed.

`client` asks `told_of` for each job that seems to have ended badly: until the logs are read, or have been waited for
long enough, the job counts as completing, so that what its pods said is known when its end is judged. Of a job with a
launcher, which reads its own ranks, only the kubelet's word is taken (OOMKilled, Evicted): the launcher may have gone
with its container. A pod may print anything: what is read is bounded, and its lines explain an end, they never cause
one. Time: one request for each failed pod, several at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import PurePath

import structlog

from holdfast.adapters.kubernetes.api import ApiError, KubeApi
from holdfast.adapters.kubernetes.objects import Json, Pod, Workload, ends, seconds, templates
from holdfast.adapters.tasks import end
from holdfast.detect.catalogue import StreamKind
from holdfast.detect.findings import RuleRates, counted, to_finding
from holdfast.detect.matcher import Matcher, StreamSource
from holdfast.errors import LinkError
from holdfast.model.cluster import JobKey
from holdfast.model.events import FindingSeen
from holdfast.model.evidence import Place, Role
from holdfast.ports import Clock

PODS_MAX = 16
"""Per job; those that ended by themselves come before those that were ended."""
LINES = 2000
BYTES = 1 << 18
OLD_S = 900.0
"""What ended longer ago is history that an earlier controller has judged."""
KEPT_MAX = 10_000
STATUS_CHARS = 1000
OOM = "OOMKilled"
_ENDED_BY_OTHERS = frozenset({137, 143})
_FAULTS = frozenset({Role.ROOT, Role.CASCADE, Role.CONTEXT})
_log = structlog.get_logger("holdfast.kubernetes")


class PodLogs:
    """See the module.

    Args:
        matcher: makes the compiled catalogue; called in a thread, when the first pod has failed.
        clock: the time.
        tell: takes the findings, and returns when they are stored or cannot be.
        limit_s: a job's end does not wait longer for its logs; what has come by then is looked at. Reading, looking and
            telling end after twice that, whatever is left.
    """

    def __init__(
        self,
        matcher: Callable[[], Matcher],
        clock: Clock,
        tell: Callable[[Sequence[FindingSeen]], Awaitable[None]],
        *,
        limit_s: float,
    ) -> None:
        self._make = matcher
        self._matcher: Matcher | None = None
        self._making = asyncio.Lock()
        self._clock = clock
        self._tell = tell
        self._limit_s = limit_s
        self._done: dict[str, None] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._refused = False

    def told_of(
        self, api: KubeApi, job: Workload, key: JobKey, pods: Iterable[Pod], *, then: Callable[[], None]
    ) -> bool:
        """Have the failed pods of this job been read? If not it is begun, and `then` is called at its end."""
        launched = has_launcher(job)
        unread = [pod for pod in failed(pods) if pod.metadata.uid not in self._done]
        if launched:
            unread = [pod for pod in unread if status_of(pod)]
        if not unread or is_history(job):
            return True
        if job.id not in self._reading:
            # A launcher counts its restarts in place as attempts, too: its job's newest one is meant.
            work = self._read(None if launched else api, key, None if launched else job.restarts, unread[:PODS_MAX])
            task = self._reading[job.id] = asyncio.create_task(work, name=f"pod logs of {job.id}")

            def over(ended: asyncio.Task[None]) -> None:
                self._reading.pop(job.id, None)
                if not ended.cancelled() and (error := ended.exception()) is not None:
                    _log.error("reading a failed job's logs broke", job=job.id, why=repr(error), exc_info=error)
                self._done.update(dict.fromkeys(pod.metadata.uid for pod in unread))
                while len(self._done) > KEPT_MAX:
                    del self._done[next(iter(self._done))]
                then()

            task.add_done_callback(over)
        return False

    async def close(self) -> None:
        """End what is being read."""
        await end(self._reading.values())

    async def _read(self, api: KubeApi | None, key: JobKey, attempt: int | None, pods: Sequence[Pod]) -> None:
        whole = asyncio.timeout(2 * self._limit_s)
        try:
            async with whole:
                told = [(pod, f"{pod.metadata.name}/status", status_of(pod)) for pod in pods]
                read = [entry for entry in told if entry[2]]
                read += await self._read_pods(api, key, pods) if api is not None else []
                matcher = await self._the_matcher(whole) if read else None
                for pod, name, text in read:
                    if matcher is not None:
                        at = self._clock.now()
                        found = await asyncio.to_thread(findings, matcher, text, key, attempt, pod, name, at)
                        await self._tell(found)
        except TimeoutError:
            if not whole.expired():
                raise
            _log.warning("failed pods' logs could not be looked at in time", job=key.id, limit_s=2 * self._limit_s)

    async def _read_pods(self, api: KubeApi, key: JobKey, pods: Sequence[Pod]) -> list[tuple[Pod, str, bytes]]:
        read: list[tuple[Pod, str, bytes]] = []
        try:
            async with asyncio.timeout(self._limit_s):
                await asyncio.gather(*(self._read_pod(api, pod, read) for pod in pods))
        except TimeoutError:
            _log.warning("not all logs of failed pods could be read in time", job=key.id, limit_s=self._limit_s)
        return read

    async def _read_pod(self, api: KubeApi, pod: Pod, read: list[tuple[Pod, str, bytes]]) -> None:
        about = pod.metadata
        path = f"/api/v1/namespaces/{about.namespace}/pods/{about.name}/log"
        for container in pod.status.container_statuses or []:
            query = {"container": container.name, "tailLines": str(LINES), "limitBytes": str(BYTES)}
            try:
                text = await api.raw("GET", path, query=query, limit_s=self._limit_s)
            except (ApiError, LinkError) as error:
                self._say(error, about.name)
            else:
                read.append((pod, f"{about.name}/{container.name}", text))

    async def _the_matcher(self, whole: asyncio.Timeout) -> Matcher:
        """Made once for all jobs: that takes its time, which does not count against the limit of the first."""
        if self._matcher is None:
            loop = asyncio.get_running_loop()
            left_s = (whole.when() or loop.time()) - loop.time()
            whole.reschedule(None)
            async with self._making:
                if self._matcher is None:
                    self._matcher = await asyncio.to_thread(self._make)
            whole.reschedule(loop.time() + left_s)
        return self._matcher

    def _say(self, error: Exception, pod: str) -> None:
        refused = isinstance(error, ApiError) and error.status == 403
        if refused and self._refused:
            return
        self._refused = self._refused or refused
        hint = ": give the controller get of pods/log" if refused else ""
        _log.warning("a failed pod's log cannot be read", pod=pod, why=f"{error}{hint}")


def status_of(pod: Pod) -> bytes:
    """What the kubelet says of the pod's end, as `kubectl describe` prints it; empty when that is nothing more."""
    lines = [f"Reason: {end.reason}" for end in ends(pod) if end.reason not in {"", "Completed", "Error"}]
    if pod.status.phase == "Failed" and pod.status.reason:
        lines.append(f"{pod.status.reason}: {pod.status.message}"[:STATUS_CHARS])
    return "".join(f"{line}\n" for line in dict.fromkeys(lines)).encode()


def is_history(job: Workload) -> bool:
    """Did it fail so long ago that an earlier controller has judged it?"""
    conditions = (job.manifest.get("status") or {}).get("conditions") or []
    at = [seconds(one.get("lastTransitionTime")) for one in conditions if one.get("type") == "Failed"]
    return bool(at) and 0.0 < max(at) < time.time() - OLD_S


def failed(pods: Iterable[Pod]) -> list[Pod]:
    """Pods that ended badly and not long ago, those that ended by themselves first."""
    now = time.time()
    found: list[tuple[bool, float, str, Pod]] = []
    for pod in pods:
        bad = [end for end in ends(pod) if end.exit_code != 0]
        if not bad and not (pod.status.phase == "Failed" and pod.status.reason):
            continue  # an evicted pod may have no container any more
        at = max((seconds(end.finished_at) for end in bad), default=0.0)
        if at and now - at > OLD_S:
            continue
        told_to = bool(bad) and all(end.exit_code in _ENDED_BY_OTHERS and end.reason != OOM for end in bad)
        found.append((told_to, at, pod.metadata.name, pod))
    return [entry[3] for entry in sorted(found, key=lambda entry: entry[:3])]


def has_launcher(job: Workload) -> bool:
    """Do its pods run `holdfast run`, which reads what its ranks print?"""
    for _, template in templates(job.kind, job.manifest):
        for container in (template.get("spec") or {}).get("containers") or []:
            words = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
            if _is_launcher(container, words):
                return True
    return False


def _is_launcher(container: Json, words: Sequence[str]) -> bool:
    if any(entry.get("name") == "HOLDFAST_JOB_ID" for entry in container.get("env") or ()):
        return True
    return any(PurePath(word).name == "holdfast" and "run" in words[index + 1 :] for index, word in enumerate(words))


def findings(
    matcher: Matcher, text: bytes, key: JobKey, attempt: int | None, pod: Pod, name: str, at: float
) -> list[FindingSeen]:
    """What a pod's log says of its end. The same log gives the same ids, whoever reads it."""
    node = pod.spec.node_name
    stream = matcher.stream(StreamSource(kind=StreamKind.OUTPUT, node=node))
    rates = RuleRates()
    found: list[FindingSeen] = []
    for match in [*stream.feed(text, at), *stream.flush(at)]:
        count = rates.admit(match.rule, match.rank, at) if match.rule.role in _FAULTS else 0
        if not count:
            continue
        finding = to_finding(
            match,
            source_place=Place(node=node, rank=match.rank),
            job=key,
            attempt=attempt,
            at=at,
            id_prefix=f"pod:{pod.metadata.uid}",
            file=name,
        )
        found.append(FindingSeen(id=f"seen:{finding.id}", at=at, source="kubernetes", finding=counted(finding, count)))
    return found
