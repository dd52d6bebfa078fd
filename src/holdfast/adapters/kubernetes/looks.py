"""Watching an API server: a local copy of its nodes, pods and jobs, kept right by list and watch.

`client` reads the copies, orders wait on them. Each `Store` lists once, watches from there, and lists anew only when
the server says that its version is too old (410, which comes as HTTP 200 with an ERROR event): what is missing from the
new list is gone, also if its deletion was never heard of. Any failure is answered by a pause that grows; a store that
cannot read says so and is never taken for an empty one. Without nodes and pods there is no look; a kind of job that
cannot be read (its definition deleted, a right missing) is named by `unseen`, and the others are looked at as always.
Time: pauses, and a probe when nothing was heard for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
import structlog
from msgspec import Struct

from holdfast.adapters.kubernetes.api import OPEN, ApiError, KubeApi
from holdfast.adapters.kubernetes.objects import KINDS, Json, Kind, Node, Pod, Workload
from holdfast.adapters.kubernetes.put_away import NAMESPACE, PUT_AWAY, collection, taken_out
from holdfast.adapters.tasks import end
from holdfast.errors import LinkError, TemporaryOrderError

PAUSE_FIRST_S = 0.2
PAUSE_MAX_S = 5.0
WATCH_S = 300
PROBE_S = 10.0
PROBE_LIMIT_S = 15.0
DISCOVER_S = 60.0
DISCOVER_AGAIN_S = 10.0
"""The pause between two questions about what is served, while a collection that was served is not there."""
GONE_S = 3600.0
"""A kind that the server has not served for this long is gone, and its jobs with it; until then they are unknown."""
ASK_AGAIN_S = 0.5
"""A server that did not answer a look is not asked again for the next ones within this time."""
READY = "/readyz"
READY_UNTOLD = frozenset({401, 403, 404})
"""Answers by which a server does not say whether it is ready: it is taken to be."""
EVERYWHERE = "batch"
"""A group of every Kubernetes."""
HEAR_FIRST = 12
"""Turns of the loop before a look: what connections have to say by now, their end above all, is heard first."""
T = TypeVar("T")
_log = structlog.get_logger("holdfast.kubernetes")


class _About(Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""


class _Versioned(Struct):
    metadata: _About


class _List(Struct):
    metadata: _About
    items: list[msgspec.Raw] | None = None


_versioned = msgspec.json.Decoder(_Versioned)
_list = msgspec.json.Decoder(_List)


class Store(Generic[T]):
    """A copy of one collection, by uid."""

    def __init__(
        self,
        api: KubeApi,
        path: str,
        kind: type[T],
        on_change: Callable[[], None],
        *,
        query: dict[str, str] | None = None,
    ) -> None:
        self.path = path
        self.items: dict[str, T] = {}
        self.broken = "it has not been read yet"
        """Why the copy cannot be trusted; empty when it can."""
        self.is_tried = False
        """The server has answered, or refused, at least once."""
        self.is_absent = False
        """The server does not know this collection."""
        self.unanswered_at = 0.0
        """When (monotonic) the server last gave no answer here: it may be away."""
        self.relists = 0
        self._api = api
        self._decoder = msgspec.json.Decoder(kind)
        self._on_change = on_change
        self._query = query or {}
        self._versions: dict[str, int] = {}
        self._version = ""

    async def run(self) -> None:
        """Keep the copy until cancelled."""
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                if not self._version:
                    await self._relist()
                opened = time.monotonic()
                await self._watch()
                # A server that ends watches at once must not be asked again and again.
                pause_s = PAUSE_FIRST_S if time.monotonic() - opened > 1.0 else min(pause_s * 2, PAUSE_MAX_S)
            except ApiError as error:
                if error.expired:
                    _log.info("the watch's version has expired: listing anew", path=self.path)
                    self._version = ""
                    continue_s = 0.0 if pause_s == PAUSE_FIRST_S else pause_s
                    pause_s = min(pause_s * 2, PAUSE_MAX_S)
                    await asyncio.sleep(continue_s)
                    continue
                if error.gone:
                    # What is there when it is served again has nothing to do with what was.
                    self.is_absent, self._version = True, ""
                self._break(str(error))
                pause_s = min(pause_s * 2, PAUSE_MAX_S)
            except LinkError as error:
                self.unanswered_at = time.monotonic()
                self._break(str(error))
                pause_s = min(pause_s * 2, PAUSE_MAX_S)
            await asyncio.sleep(pause_s)

    def _break(self, why: str) -> None:
        if not self.broken:
            _log.warning("the API server cannot be watched", path=self.path, why=why)
        is_news = self.broken != why or not self.is_tried
        self.broken, self.is_tried = why, True
        if is_news:
            self._on_change()

    async def _relist(self) -> None:
        items: dict[str, T] = {}
        versions: dict[str, int] = {}
        version = ""
        async for raw in self._api.pages(self.path, self._query):
            page = _list.decode(raw)
            version = page.metadata.resource_version
            for item in page.items or []:
                about = _versioned.decode(item).metadata
                items[about.uid] = self._decoder.decode(item)
                versions[about.uid] = _number(about.resource_version)
            await asyncio.sleep(0)
        self.items, self._versions, self._version = items, versions, version
        self.relists += 1
        self._whole()
        self._on_change()

    def _whole(self) -> None:
        self.is_tried, self.is_absent, self.broken = True, False, ""

    async def _watch(self) -> None:
        async for kind, raw in self._api.lines(self.path, self._version, self._query, for_s=WATCH_S):
            if kind == OPEN:
                if self.broken:
                    self._whole()
                    self._on_change()
                continue
            about = _versioned.decode(raw).metadata
            self._version = about.resource_version
            if kind == "BOOKMARK":
                continue
            if kind == "DELETED":
                self._drop(about.uid)
            else:
                self._put(about, raw)

    def take(self, found: Json) -> None:
        """An answer of the server: newer than what the watch has brought, perhaps."""
        raw = msgspec.Raw(msgspec.json.encode(found))
        self._put(_versioned.decode(raw).metadata, raw)

    def _put(self, about: _About, raw: msgspec.Raw) -> None:
        number = _number(about.resource_version)
        if number < self._versions.get(about.uid, 0):
            return
        self._versions[about.uid] = number
        item = self._decoder.decode(raw)
        if self.items.get(about.uid) != item:
            self.items[about.uid] = item
            self._on_change()

    def _drop(self, uid: str) -> None:
        self._versions.pop(uid, None)
        if self.items.pop(uid, None) is not None:
            self._on_change()


def _number(version: str) -> int:
    """Versions are opaque by contract and etcd's revisions in fact, of which the larger is the newer."""
    return int(version) if version.isdecimal() else 0


class Looks:
    """All stores of one API server. `namespace` is Holdfast's own: records of jobs put away are read there alone."""

    def __init__(self, api: KubeApi, *, namespace: str = NAMESPACE) -> None:
        self.api = api
        self.namespace = namespace
        self.version = 0
        """Grows with every change of any copy."""
        self.nodes: Store[Node] = Store(api, "/api/v1/nodes", Node, self.changed)
        self.pods: Store[Pod] = Store(api, "/api/v1/pods", Pod, self.changed)
        self.put_away: Store[Json] = Store(
            api, collection(namespace), dict, self.changed, query={"labelSelector": f"{PUT_AWAY}=true"}
        )
        self.kinds: dict[str, tuple[Kind, str, Store[Json]]] = {}
        """What is served here: kind, version, copy."""
        self.eviction = ""
        """Version of the group `policy` in which this server takes evictions; empty: it has not been asked yet."""
        self._news = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By the store's path."""
        self._absent: dict[str, float] = {}
        """Kind -> since when (monotonic) the server has not served it."""
        self._refused: set[str] = set()
        """Records (uid) that were said to be not believed."""
        self._is_started = False
        self._ask_again_at = 0.0
        self._silence = ""
        """What the server's absence looked like when it was asked last."""
        self._probed_at = 0.0
        self._discovered_at = 0.0

    def changed(self) -> None:
        """There is something new: whoever waits for a change looks again."""
        self.version += 1
        self._news.set()
        self._news = asyncio.Event()

    async def start(self) -> None:
        """Find out what is served, and begin to watch.

        Raises:
            LinkError: the API server does not answer, or is still starting.
        """
        if not self._is_started:
            await self._until_whole()
            await self._discover()
            self._is_started = True
            for store in (self.nodes, self.pods, self.put_away):
                self._keep(store)

    def _keep(self, store: Store[Any]) -> None:
        self._tasks[store.path] = asyncio.create_task(store.run(), name=f"watch {store.path}")

    async def _until_whole(self) -> None:
        """Refuse a server that has just been started, and tells of its groups one after another.

        Jobs of a group that is not there yet would be taken for gone. Asked before the first look only: kinds that
        were found are never forgotten.
        """
        try:
            await self.api.raw("GET", READY, limit_s=PROBE_LIMIT_S)
        except ApiError as error:
            if error.status not in READY_UNTOLD:
                raise LinkError(f"the API server is not ready yet: {error}") from error

    async def _discover(self) -> None:
        """Which kinds are served, and in which version: by asking, never by the server's own version."""
        asked: dict[str, set[str]] = {}
        try:
            groups = (await self.api.get("/apis")).get("groups") or []
            served = {group["name"]: [v["version"] for v in group["versions"]] for group in groups}
            if EVERYWHERE not in served:
                raise LinkError(f"the API server does not serve {EVERYWHERE} yet: it is still starting")
            if not self.eviction:
                core = (await self.api.get("/api/v1")).get("resources") or []
                found: Json = next((one for one in core if one["name"] == "pods/eviction"), {})
                self.eviction = str(found.get("version") or "v1")
        except ApiError as error:
            raise LinkError(str(error)) from error
        for kind in KINDS.values():
            try:
                self._found(kind, await self._version_of(kind, served.get(kind.group, []), asked))
            except ApiError as error:
                # Nobody knows whether it is served; the watch of a kind that was says whether it can be read.
                if kind.name not in self.kinds:
                    self._absent[kind.name] = time.monotonic()
                _log.info("what is served of a group cannot be asked", group=kind.group, why=str(error))
        self._discovered_at = time.monotonic()

    async def _version_of(self, kind: Kind, served: list[str], asked: dict[str, set[str]]) -> str:
        """The version to watch: the one that is watched already, else the best that is known; empty: none is served."""
        known = self.kinds.get(kind.name)
        wanted = [version for version in kind.versions if version in served]
        for version in sorted(wanted, key=lambda one: known is None or one != known[1]):
            path = f"/apis/{kind.group}/{version}"
            if path not in asked:
                asked[path] = {one["name"] for one in (await self.api.get(path)).get("resources") or []}
            if kind.plural in asked[path]:
                return version
        return ""

    def _found(self, kind: Kind, version: str) -> None:
        """Watch the kind in this version; one that is not served any more is waited for, and forgotten at last."""
        known = self.kinds.get(kind.name)
        now = time.monotonic()
        since = self._absent.setdefault(kind.name, now)
        if version:
            del self._absent[kind.name]
        if known is not None and (version not in {"", known[1]} or (not version and now - since >= GONE_S)):
            self._tasks.pop(known[2].path).cancel()
            del self.kinds[kind.name]
            self.changed()
        if version and kind.name not in self.kinds:
            store: Store[Json] = Store(self.api, kind.path(version), dict, self.changed)
            self.kinds[kind.name] = kind, version, store
            self._keep(store)

    def unseen(self) -> dict[str, str]:
        """Kinds (as in a job's id) whose jobs cannot be read now -> why; no reason where nobody expects the kind."""
        broken = {kind.name.lower(): store.broken for kind, _, store in self.kinds.values() if store.broken}
        now = time.monotonic()
        recent = {name.lower(): "" for name, since in self._absent.items() if now - since < GONE_S}
        return recent | broken

    async def fresh(self) -> None:
        """Return when every copy is right, as far as can be known.

        Raises:
            LinkError: the API server, its nodes or its pods cannot be read.
        """
        if time.monotonic() < self._ask_again_at:
            raise LinkError(self._silence)
        try:
            await self.start()
            await self._ask_if_due()
            await self._hear()
        except LinkError as error:
            # Whoever looks again and again must not ask a server that is away as often.
            self._ask_again_at, self._silence = time.monotonic() + ASK_AGAIN_S, str(error)
            raise
        for store in (self.nodes, self.pods):
            if store.broken:
                raise LinkError(store.broken)

    async def _hear(self) -> None:
        """Take in what the connections have to say by now. Raises LinkError when the server does not answer."""
        if not all(store.is_tried for store in self.stores()):
            with contextlib.suppress(TemporaryOrderError):
                await self.until(lambda: all(s.is_tried for s in self.stores()) or None, "the first look", limit_s=20.0)
        for _ in range(HEAR_FIRST):
            await asyncio.sleep(0)
        if any(store.unanswered_at > self._probed_at for store in self.stores()):
            # One collection alone, or the server, whose other connections have not told yet.
            await self._probe()

    async def _ask_if_due(self) -> None:
        now = time.monotonic()
        is_absent = any(store.is_absent for _, _, store in self.kinds.values())
        if now - self._discovered_at > (DISCOVER_AGAIN_S if is_absent else DISCOVER_S):
            await self._discover()
            self._probed_at = now
        if now - self._probed_at > PROBE_S:
            # A server that hangs keeps its connections open and says nothing.
            await self._probe()

    async def _probe(self) -> None:
        begun = time.monotonic()
        try:
            await self.api.get("/version", limit_s=PROBE_LIMIT_S)
        except ApiError as error:
            raise LinkError(str(error)) from error
        self._probed_at = begun

    def stores(self) -> list[Store[Any]]:
        """All of them."""
        return [self.nodes, self.pods, self.put_away, *(store for _, _, store in self.kinds.values())]

    async def wait(self, seen: int, timeout_s: float) -> bool:
        """Return True as soon as something is newer than `seen`, False after so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.version <= seen:
                    await self._news.wait()
        return self.version > seen

    async def until(self, found: Callable[[], T | None], what: str, *, limit_s: float) -> T:
        """Wait until `found()` gives something. Raises TemporaryOrderError when it does not within the limit."""
        deadline = time.monotonic() + limit_s
        while True:
            seen = self.version
            value = found()
            if value is not None:
                return value
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TemporaryOrderError(f"{what}: not within {limit_s:g} s")
            await self.wait(seen, min(left_s, 1.0))

    # --- what there is ---

    def node(self, name: str) -> Node | None:
        """The node of this name."""
        return next((node for node in self.nodes.items.values() if node.metadata.name == name), None)

    def workloads(self) -> list[Workload]:
        """Every training job that stands for itself: one that another job made is part of that one."""
        known = {uid for _, _, store in self.kinds.values() for uid in store.items}
        found: list[Workload] = []
        for kind, version, store in self.kinds.values():
            for manifest in store.items.values():
                owners = manifest["metadata"].get("ownerReferences") or []
                if not any(owner["uid"] in known for owner in owners):
                    found.append(Workload(kind=kind, version=version, manifest=manifest))
        present = {job.id for job in found}
        kinds = {name: kind for name, (kind, _, _) in self.kinds.items()}
        for uid, config_map in self.put_away.items.items():
            job, why = taken_out(config_map, kinds, self.namespace)
            if job is not None and job.id not in present:
                found.append(job)
            elif why and uid not in self._refused:
                self._refused.add(uid)
                name = config_map["metadata"].get("name")
                _log.warning("a record of a job put away is not believed", record=f"{self.namespace}/{name}", why=why)
        return found

    def pods_by_workload(self) -> dict[str, list[Pod]]:
        """Uid of a top-level job -> its pods, through what it made for them."""
        owner_of: dict[str, str] = {}
        known = {uid for _, _, store in self.kinds.values() for uid in store.items}
        for _, _, store in self.kinds.values():
            for uid, manifest in store.items.items():
                for owner in manifest["metadata"].get("ownerReferences") or []:
                    if owner["uid"] in known:
                        owner_of[uid] = owner["uid"]
        found: dict[str, list[Pod]] = {}
        for pod in self.pods.items.values():
            owner = pod.owner
            if owner is not None:
                uid = owner.uid
                for _ in range(4):
                    uid = owner_of.get(uid, uid)
                found.setdefault(uid, []).append(pod)
        return found

    def take(self, job: Workload, found: Json) -> None:
        """An answer about a job."""
        served = self.kinds.get(job.kind.name)
        if served is not None:
            served[2].take(found)

    async def close(self) -> None:
        """Stop watching."""
        await end(self._tasks.values())
        self._tasks.clear()
