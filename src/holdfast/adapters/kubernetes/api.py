"""Talking to an API server: raw JSON requests and watches, each with a limit, each failure one of our errors.

`looks`, `job_orders`, `node_orders`, the lab and its tests call it. kubernetes-asyncio reads the kubeconfig (or the
pod's service account), keeps tokens fresh and holds the connections; its models are left out, because raw JSON is some
six times cheaper. Time: a request ends after `REQUEST_S`, a watch when nothing came for longer than it was to last.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast.adapters.kubernetes import library
from holdfast.errors import ConfigError, LinkError, PermanentOrderError, TemporaryOrderError

REQUEST_S = 30.0
CONNECT_S = 5.0
WATCH_MARGIN_S = 15.0
"""A watch that was to last so long and still has not ended after this much more is dead."""
LINE_BYTES_MAX = 8 << 20
PAGE = 500
TRIES = 6
TRY_S = 0.05
PATH_SHOWN = 300
OPEN = "OPEN"
"""Not Kubernetes' word: the first thing that `lines` gives."""
TOKEN_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
_PATH = re.compile(r"(/[A-Za-z0-9][A-Za-z0-9._:-]*)+")
"""A path that names one resource, whatever a name in it was made of: no dots alone, no query, nothing quoted."""

Json = dict[str, Any]
T = TypeVar("T")


class ApiError(Exception):
    """The API server said no. `status` is HTTP's, `reason` Kubernetes' own word (`Conflict`, `NotFound`, `Expired`)."""

    def __init__(self, status: int, reason: str, message: str, *, what: str = "") -> None:
        super().__init__(f"{what}{': ' if what else ''}{message or reason} ({status} {reason})")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def gone(self) -> bool:
        """There is no such object."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """Somebody changed it meanwhile, or it is there already."""
        return self.status == 409

    @property
    def expired(self) -> bool:
        """The resourceVersion is too old: list anew."""
        return self.status == 410 or self.reason in {"Expired", "Gone"}

    def as_order_error(self) -> TemporaryOrderError | PermanentOrderError:
        """What an executor is told."""
        if self.status == 403:
            return PermanentOrderError(f"{self}: give the controller's role this verb (deploy/kubernetes)")
        if self.status in {404, 405, 422, 400}:
            return PermanentOrderError(str(self))
        return TemporaryOrderError(str(self))


class WatchEvent(msgspec.Struct, frozen=True):
    """One line of a watch."""

    type: str
    object: Json


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Page(msgspec.Struct):
    metadata: dict[str, Any] = {}


_LINE = msgspec.json.Decoder(_Line)


class KubeApi:
    """One API server. Make it by `connect`; `close` it.

    Attributes:
        server: its address, for people.
        cluster: the kubeconfig's name of the cluster, `kubernetes` inside a pod.
        namespace: the namespace of the pod that this process runs in; empty outside a pod.
    """

    def __init__(self, configuration: Any, rest: Any, *, cluster: str, namespace: str = "") -> None:
        self._configuration = configuration
        self._rest = rest
        self.server = str(configuration.host).rstrip("/")
        self.cluster = cluster
        self.namespace = namespace
        self.requests = 0
        """How many requests were made, watches included."""

    @classmethod
    async def connect(cls, context: str = "", kubeconfig: Path | str | None = None, own: str = "") -> KubeApi:
        """Read how to reach the API server; nothing is sent yet.

        Args:
            context: of the kubeconfig; empty: its current one, or the pod's own service account.
            kubeconfig: the file; None or empty: KUBECONFIG or `~/.kube/config`.
            own: Holdfast's own namespace, where nobody else writes; empty: that of the pod it runs in, if any.

        Raises:
            ConfigError: there is no usable kubeconfig, context or service account.
        """
        config, make_configuration, make_connections = library.load()
        configuration = make_configuration()
        cluster, namespace = "kubernetes", ""
        try:
            if not context and not kubeconfig and await asyncio.to_thread(TOKEN_FILE.exists):
                config.load_incluster_config(client_configuration=configuration)
                namespace = await asyncio.to_thread(TOKEN_FILE.with_name("namespace").read_text)
            else:
                file = str(Path(kubeconfig).expanduser()) if kubeconfig else None  # noqa: ASYNC240 - reads no file
                await config.load_kube_config(
                    config_file=file, context=context or None, client_configuration=configuration, persist_config=False
                )
                contexts, active = config.list_kube_config_contexts(config_file=file)
                chosen = next((one for one in contexts if one["name"] == context), active)
                about = chosen["context"] if chosen is not None else {}
                cluster = about.get("cluster", "kubernetes")
        except (config.ConfigException, OSError, KeyError, TypeError) as error:
            where = str(kubeconfig or "the kubeconfig")
            raise ConfigError(
                f"no way to an API server (context {context or 'current'!r}): {error}", file=where
            ) from error
        configuration.connection_pool_maxsize = 0
        return cls(configuration, make_connections(configuration), cluster=cluster, namespace=own or namespace.strip())

    async def close(self) -> None:
        """Close all connections."""
        await self._rest.close()

    # --- requests ---

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, limit_s: float = REQUEST_S) -> Json:
        """GET an object or a list."""
        return await self.call("GET", path, query=query, limit_s=limit_s)

    async def create(self, path: str, body: Json) -> Json:
        """POST an object."""
        return await self.call("POST", path, body=body)

    async def patch(self, path: str, body: Json | list[Json], form: str = MERGE, **query: str) -> Json:
        """PATCH in one of the forms above."""
        return await self.call("PATCH", path, body=body, form=form, query=query)

    async def delete(self, path: str, *, uid: str = "", grace_s: int | None = None) -> Json:
        """DELETE, only if it still is the object of this uid."""
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        return await self.call("DELETE", path, body=options)

    async def drop(self, path: str, *, uid: str = "", grace_s: int | None = None) -> None:
        """DELETE it, where one that is gone, or is another object by now, is fine."""
        try:
            await self.delete(path, uid=uid, grace_s=grace_s)
        except ApiError as error:
            if not (error.gone or error.conflict):
                raise

    async def call(self, method: str, path: str, **what: Any) -> Json:
        """One request, as `raw` takes it, with a JSON object as its answer.

        Raises:
            ApiError: the server refused it.
            LinkError: it could not be reached, or did not answer in time.
        """
        raw = await self.raw(method, path, **what)
        try:
            found: Json = msgspec.json.decode(raw)
        except msgspec.DecodeError as error:
            raise LinkError(f"{self.server}{path}: the answer is not JSON: {raw[:200]!r}") from error
        return found

    async def raw(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        form: str = "application/json",
        limit_s: float = REQUEST_S,
    ) -> bytes:
        """As `call`, with the answer as it is: logs, and lists that are decoded into fewer fields."""
        import aiohttp  # noqa: PLC0415 - comes with kubernetes-asyncio

        try:
            async with asyncio.timeout(limit_s):
                answer = await self._send(method, path, query=query, body=body, form=form, timeout=limit_s)
                async with answer:
                    raw: bytes = await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            said = str(error) or type(error).__name__
            raise LinkError(f"the API server {self.server} does not answer ({method} {path}): {said}") from error
        if not 200 <= answer.status <= 299:
            raise _refusal(answer.status, raw, what=f"{method} {path}")
        return raw

    async def _send(
        self, method: str, path: str, *, query: Mapping[str, str] | None, body: Any, form: str, timeout: float
    ) -> Any:
        import aiohttp  # noqa: PLC0415

        if not _PATH.fullmatch(path):
            raise ApiError(404, "NotFound", "no object can have this name", what=f"{method} {path[:PATH_SHOWN]!r}")
        self.requests += 1
        headers = {"Accept": "application/json", "Content-Type": form, "User-Agent": "holdfast"}
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        if token:
            headers["Authorization"] = token
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=timeout)
        return await self._rest.request(
            method,
            f"{self.server}{path}",
            query_params=list((query or {}).items()),
            headers=headers,
            body=body,
            _preload_content=False,
            _request_timeout=limits,
        )

    # --- lists and watches ---

    async def list_all(self, path: str, query: Mapping[str, str] | None = None) -> tuple[list[Json], str]:
        """Every object of a collection and the resourceVersion to watch from, read in pages of one consistent look."""
        items: list[Json] = []
        version = ""
        async for page in self.pages(path, query):
            found: Json = msgspec.json.decode(page)
            items += found.get("items") or []
            version = (found.get("metadata") or {}).get("resourceVersion", "")
        return items, version

    async def pages(self, path: str, query: Mapping[str, str] | None = None) -> AsyncIterator[bytes]:
        """A collection as the bytes of its pages, for those who decode fewer fields."""
        cursor = ""
        while True:
            asked = {**(query or {}), "limit": str(PAGE)}
            if cursor:
                asked["continue"] = cursor
            raw = await self.raw("GET", path, query=asked)
            yield raw
            cursor = msgspec.json.decode(raw, type=_Page).metadata.get("continue") or ""
            if not cursor:
                return

    async def watch(
        self, path: str, version: str, query: Mapping[str, str] | None = None, *, for_s: int = 300
    ) -> AsyncIterator[WatchEvent]:
        """Changes since `version`, bookmarks among them, until the server ends the watch (after `for_s` at most).

        Raises:
            ApiError: refused, also in the middle: an expired version comes as HTTP 200 with an ERROR event.
            LinkError: the connection failed.
        """
        async for kind, raw in self.lines(path, version, query, for_s=for_s):
            if kind != OPEN:
                yield WatchEvent(kind, msgspec.json.decode(raw))

    async def lines(
        self, path: str, version: str, query: Mapping[str, str] | None = None, *, for_s: int = 300
    ) -> AsyncIterator[tuple[str, msgspec.Raw]]:
        """As `watch`, with each object undecoded, and first of all an `OPEN` as soon as the server has taken it."""
        import aiohttp  # noqa: PLC0415 - comes with kubernetes-asyncio

        asked = {**(query or {}), "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(for_s)}
        if version:
            asked["resourceVersion"] = version
        limit_s = for_s + WATCH_MARGIN_S
        try:
            answer = await self._send("GET", path, query=asked, body=None, form="application/json", timeout=limit_s)
            async with answer:
                if answer.status != 200:
                    raise _refusal(answer.status, await answer.read(), what=f"watch {path}")
                yield OPEN, msgspec.Raw(b"null")
                async for line in _split(answer.content, path):
                    event = _LINE.decode(line)
                    if event.type == "ERROR":
                        raise _refusal(500, line, what=f"watch {path}")
                    yield event.type, event.object
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError) as error:
            said = str(error) or type(error).__name__
            raise LinkError(f"the watch of {path} at {self.server} broke: {said}") from error


def stamp(at: float | None = None) -> str:
    """Unix seconds, or now, as the API has it."""
    return datetime.fromtimestamp(time.time() if at is None else at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def again_on_conflict(attempt: Callable[[], Awaitable[T]], whose: str) -> T:
    """What an attempt gives; another one is made when somebody has changed the object meanwhile.

    Raises:
        TemporaryOrderError: others change it again and again.
    """
    for _ in range(TRIES):
        try:
            return await attempt()
        except ApiError as error:
            if not error.conflict:
                raise
        await asyncio.sleep(TRY_S)
    raise TemporaryOrderError(f"{whose} is changed by others again and again")


async def _split(content: Any, path: str) -> AsyncIterator[bytes]:
    """Lines of a stream, however long its pieces are."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise LinkError(f"watch {path}: a line of more than {LINE_BYTES_MAX} bytes")
        for line in lines:
            if line.strip():
                yield line


def _refusal(status: int, raw: bytes, *, what: str) -> ApiError:
    try:
        told = json.loads(raw)
        told = told.get("object", told) if isinstance(told, dict) else {}
    except (ValueError, AttributeError):
        told = {}
    reason = str(told.get("reason") or status)
    return ApiError(
        int(told.get("code") or status),
        reason,
        str(told.get("message") or raw[:200].decode(errors="replace")),
        what=what,
    )
