"""The controller's HTTP API as typed methods: `AsyncClient`, and `Client` for code without a loop.

Used by the reporter, the agent, the launcher, drills, and by people. Time passes only while an answer is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from holdfast.client.munge_login import SOURCE, MungeLogin
from holdfast.errors import HoldfastError, LinkError, NotFoundError, RefusedError, StaleError, WireError
from holdfast.model.answers import (
    CommandAnswer,
    CommandRequest,
    Deed,
    EventsAnswer,
    Problem,
    SamplesAnswer,
    StateAnswer,
)
from holdfast.model.cluster import JobKey
from holdfast.model.events import AnyEvent, Command
from holdfast.model.records import BrakeRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.model.wire import (
    SOURCE_HEADER,
    WIRE_VERSION,
    Beat,
    BeatAnswer,
    IngestAnswer,
    decode,
    decode_event,
    encode,
)
from holdfast.os.tls import DEFAULT_TRUST, Trust
from holdfast.os.unix_sockets import check_peer, socket_address, socket_of, unanswered
from holdfast.ports import Sample

P = ParamSpec("P")
T = TypeVar("T")

TIMEOUT_S = 10.0
KEEP_S = 20.0
"""An idle connection is kept for two beats of an agent: not every beat opens one. The server waits longer."""
PAGE = 1000
BROKEN = (httpx.HTTPError, ssl.SSLError)
"""What httpx raises; an alert of the other side in the middle of a request passes through it as it is."""
QUIET_S = 60.0
"""A stream says something at least every 15 s; one that is silent for longer is cut off."""


class Transport(httpx.AsyncHTTPTransport):
    """Connections to one controller, by its Unix socket where the address names one."""

    def __init__(self, url: str, trust: Trust) -> None:
        self._kept = contextlib.ExitStack()
        path = socket_of(url)
        # A controller is reached directly: a proxy of the environment would be asked for 127.0.0.1, too.
        super().__init__(
            verify=trust.context(),
            trust_env=False,
            limits=httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=KEEP_S),
            uds=self._kept.enter_context(socket_address(path)) if path is not None else None,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await super().aclose()
        self._kept.close()


class AsyncClient:
    """One controller.

    Args:
        url: such as `http://127.0.0.1:8470`, or `unix:/run/holdfast/controller.sock` on the controller's machine.
        token: bearer token; empty: none is sent, and by a Unix socket this process's user is who asks.
        timeout_s: for one request, beyond any wait that the request itself asks for.
        trust: certificates, and whether a token may cross a network unencrypted.
        transport: another httpx transport, for tests.
        page: records that are asked for at once.
        explain: makes of each error what is raised instead.

    Every method raises LinkError when the controller cannot be reached or says that it cannot now, RefusedError when
    the token does not suffice, NotFoundError for what does not exist, StaleError for a record that has changed since,
    WireError for what it cannot understand. Making one raises RefusedError where the token would go over plain HTTP to
    another machine and `trust` does not allow it, ConfigError for certificates that cannot be read.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout_s: float = TIMEOUT_S,
        trust: Trust = DEFAULT_TRUST,
        transport: httpx.AsyncBaseTransport | None = None,
        page: int = PAGE,
        explain: Callable[[HoldfastError], HoldfastError] = lambda error: error,
    ) -> None:
        trust.check(url, token)
        self.url = url.rstrip("/")
        self._timeout_s, self._trust = timeout_s, trust
        self._page = page
        self._explain = explain
        is_local = socket_of(url) is not None
        login = MungeLogin(trust.munge, _error) if trust.munge is not None and not token and not is_local else None
        self._http = httpx.AsyncClient(
            base_url="http://localhost" if is_local else self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            auth=login,
            timeout=timeout_s,
            transport=transport or Transport(url, trust),
            trust_env=False,
            event_hooks={"request": [_checking(trust, url, token)]},
            follow_redirects=False,  # a token goes to the address that it was given for, and to no other
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # --- reporting ---

    async def ingest(self, source: str, events: Sequence[AnyEvent]) -> IngestAnswer:
        """Deliver events; returns when they are on the controller's disk."""
        return await self.ingest_encoded(source, [encode(event) for event in events])

    async def ingest_encoded(self, source: str, events: Sequence[bytes]) -> IngestAnswer:
        """Deliver events that are written already."""
        head = {"version": WIRE_VERSION, "source": source, "events": [msgspec.Raw(event) for event in events]}
        return await self._call("POST", "/v1/ingest", IngestAnswer, content=encode(head), source=source)

    async def beat(self, beat: Beat, *, wait_s: float = 0.0) -> BeatAnswer:
        """Say that we are alive; with `wait_s` the answer comes as soon as there is an order for us."""
        how = {"params": {"wait": wait_s} if wait_s else None, "wait_s": wait_s, "source": beat.source}
        return await self._call("POST", "/v1/beat", BeatAnswer, content=encode(beat), **how)

    # --- reading ---

    async def state(self) -> StateAnswer:
        """Jobs, nodes, incidents and brakes."""
        return await self._call("GET", "/v1/state", StateAnswer)

    async def events(self, /, *, after: int = 0, wait_s: float = 0.0, limit: int = 1000, **where: str) -> EventsAnswer:
        """Events after a sequence number; `where`: incident, job, node, kind."""
        params: dict[str, Any] = {"after": after, "wait": wait_s, "limit": limit, **where}
        return await self._call("GET", "/v1/events", EventsAnswer, params=params, wait_s=wait_s)

    async def follow(self, *, after: int = 0, wait_s: float = 30.0, **where: str) -> AsyncIterator[AnyEvent]:
        """Every event after `after`, then each new one, for ever. Raises LinkError when the controller goes away."""
        while True:
            page = await self.events(after=after, wait_s=wait_s, limit=1000, **where)
            for event in page.events:
                yield event
            after = page.last

    async def jobs(self, *, job: str = "") -> list[JobRecord]:
        """All jobs, or one."""
        if not job:
            return await self._all("/v1/jobs", JobRecord)
        return await self._one(f"/v1/jobs/{_part(job)}", JobRecord)

    async def nodes(self, *, node: str = "") -> list[NodeRecord]:
        """All nodes, or one."""
        if not node:
            return await self._all("/v1/nodes", NodeRecord)
        return await self._one(f"/v1/nodes/{_part(node)}", NodeRecord)

    async def brakes(self) -> list[BrakeRecord]:
        """The brake of every group."""
        return await self._call("GET", "/v1/brakes", list[BrakeRecord])

    async def incidents(
        self, *, incident: str = "", job: str = "", node: str = "", open_only: bool = False, limit: int = 1000
    ) -> list[IncidentRecord]:
        """Incidents, newest first, or one; of a job, of a node."""
        if incident:
            return await self._one(f"/v1/incidents/{_part(incident)}", IncidentRecord)
        return await self._all("/v1/incidents", IncidentRecord, limit, job=job, node=node, open_only=open_only)

    async def orders(self, /, *, order: str = "", limit: int = 1000, **where: str | bool) -> list[OrderRecord]:
        """Orders, newest first, or one. `where`: incident, job, node, pending_only."""
        if order:
            return await self._one(f"/v1/orders/{_part(order)}", OrderRecord)
        return await self._all("/v1/orders", OrderRecord, limit, **where)

    async def audit(self, *, who: str = "", limit: int = 100) -> list[Deed]:
        """What people did, newest first."""
        return await self._all("/v1/audit", Deed, limit, who=who)

    async def stream(self, *, after: int = -1, **where: str) -> AsyncIterator[AnyEvent]:
        """Each event as it is stored, from behind `after` on; -1: what comes next. `where`: incident, job, node, kind.

        Ends when the controller does; raises LinkError when the connection breaks. Then ask again with `after` = the
        `seq` of the last event.
        """
        timeout = httpx.Timeout(self._timeout_s, read=QUIET_S)
        try:
            async with self._http.stream("GET", "/v1/stream", params={"after": after, **where}, timeout=timeout) as got:
                if not got.is_success:
                    await got.aread()
                    raise _error(got)
                async for line in got.aiter_lines():
                    if line.startswith("data: "):
                        yield decode_event(line.removeprefix("data: "))
        except BROKEN as error:
            raise LinkError(f"the stream of {self.url} broke: {str(error) or type(error).__name__}") from error

    async def samples(self, series: str, subject: str = "", *, after: float = 0.0) -> list[Sample]:
        """Points of a series in order of time; `subject` may end in `*`."""
        params = {"series": series, "subject": subject, "after": after}
        found = await self._call("GET", "/v1/samples", SamplesAnswer, params=params)
        return [Sample(series, one, at, math.nan if value is None else value) for one, at, value in found.points]

    async def healthy(self) -> bool:
        """Is the controller ready and well? False, too, when it cannot be reached."""
        try:
            response = await self._http.get("/healthz", auth=None)
        except (*BROKEN, RefusedError):
            return False
        return response.status_code == httpx.codes.OK

    # --- commanding ---

    async def command(
        self,
        command: Command | str,
        *,
        who: str = "",
        why: str = "",
        node: str = "",
        job: JobKey | None = None,
        order: str = "",
        group: str = "",
        value: str = "",
        remedy: str = "",
        if_match: str = "",
    ) -> CommandAnswer:
        """Give an operator's command; returns when it is on the controller's disk, with what the engine said to it.

        `if_match`: `tag` of the target as you saw it; StaleError when it has changed since.
        """
        asked = CommandRequest(
            command=Command(command), who=who, why=why, node=node, job=job, order=order, group=group, value=value,
            remedy=remedy,
        )  # fmt: skip
        headers = {"If-Match": if_match} if if_match else None
        return await self._call("POST", "/v1/commands", CommandAnswer, content=encode(asked), headers=headers)

    async def tag(self, *, node: str = "", job: str = "", incident: str = "", order: str = "") -> str:
        """The entity tag of a record as it is now. Raises NotFoundError when there is none."""
        kinds = {"nodes": node, "jobs": job, "incidents": incident, "orders": order}
        path = next((f"/v1/{kind}/{_part(name)}" for kind, name in kinds.items() if name), "/v1/nodes/")
        return str((await self._request("GET", path)).headers.get("etag", ""))

    # --- requests ---

    async def _all(self, path: str, kind: type[T], limit: int | None = None, **params: Any) -> list[T]:
        """Up to `limit` records of a list, page by page."""
        found: list[T] = []
        cursor: dict[str, str] = {}
        while limit is None or len(found) < limit:
            size = self._page if limit is None else min(self._page, limit - len(found))
            response = await self._request("GET", path, params={**params, "limit": max(1, size), **cursor})
            found += self._read(response.content, list[kind])  # type: ignore[valid-type]
            if not (following := response.links.get("next", {}).get("url", "")):
                break
            cursor = {"cursor": httpx.URL(following).params["cursor"]}
        return found if limit is None else found[:limit]

    async def _one(self, path: str, kind: type[T]) -> list[T]:
        try:
            found = await self._call("GET", path, dict[str, msgspec.Raw])
        except NotFoundError:
            return []
        return [self._read(found["record"], kind)]

    async def _call(self, method: str, path: str, kind: type[T], **how: Any) -> T:
        """An answer of this kind; `how` is as `_request` takes it."""
        return self._read((await self._request(method, path, **how)).content, kind)

    def _read(self, content: bytes | msgspec.Raw, kind: type[T]) -> T:
        try:
            return decode(content, kind)
        except WireError as error:
            raise self._explain(error) from error

    async def _request(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        wait_s: float = 0.0,
        source: str = "",
    ) -> httpx.Response:
        if content is not None:
            headers = {"Content-Type": "application/json", **(headers or {})}
        if self._http.is_closed:
            raise self._explain(LinkError(f"the connection to the controller at {self.url} is closed"))
        how: dict[str, Any] = {"content": content, "params": params, "headers": headers, "extensions": {SOURCE: source}}
        try:
            response = await self._http.request(method, path, timeout=self._timeout_s + wait_s, **how)
        except BROKEN as error:
            raise self._explain(_unreachable(self.url, self._trust, error)) from error
        if response.is_success:
            return response
        raise self._explain(_error(response))


def _checking(trust: Trust, url: str, token: str) -> Callable[[httpx.Request], Coroutine[Any, Any, None]]:
    """Check trust anew before each new connection: a controller that has ended leaves its port to other users.

    A kept connection leads to the process that accepted it, so nobody else can come to it later.
    """
    path = socket_of(url)

    async def step(name: str, facts: dict[str, Any]) -> None:
        if name in {"connection.connect_tcp.started", "connection.connect_unix_socket.started"}:
            trust.check(url, token)
        elif name == "connection.connect_unix_socket.complete" and path is not None:
            try:
                check_peer(facts["return_value"].get_extra_info("socket"), path)
            except RefusedError:
                await facts["return_value"].aclose()
                raise

    async def watch(request: httpx.Request) -> None:
        request.extensions["trace"] = step
        if path is not None and request.extensions.get(SOURCE):
            request.headers[SOURCE_HEADER] = request.extensions[SOURCE]

    return watch


def _unreachable(url: str, trust: Trust, error: Exception) -> LinkError:
    path, behind = socket_of(url), _behind(error)
    if path is not None and isinstance(behind, OSError):
        return unanswered(path, behind)
    why = str(error) or type(error).__name__
    is_closed = url.startswith("https:") and isinstance(error, httpx.ReadError | httpx.WriteError)
    hint = trust.tls_hint(_whole(error), is_closed=is_closed)
    return LinkError(f"the controller at {url} cannot be reached: {why}{f'; {hint}' if hint else ''}")


def _behind(error: BaseException) -> BaseException:
    """The first error of those that led to this one: httpx keeps the system's to itself."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return error


def _whole(error: BaseException | None) -> str:
    """What an error and all those behind it say: httpx keeps a TLS alert to itself."""
    return f"{error!r} {_whole(error.__cause__ or error.__context__)}" if error is not None else ""


def _part(name: str) -> str:
    """A name as one segment of a path: generations are written `1778#2`."""
    return quote(name, safe="")


def _error(response: httpx.Response) -> HoldfastError:
    try:
        said = msgspec.json.decode(response.content, type=Problem)
        detail = said.detail or said.title
    except msgspec.DecodeError:
        detail = response.reason_phrase
    status = response.status_code
    if response.is_redirect:
        return WireError(f"the answer sends us elsewhere ({status}): a controller does not; no token was sent there")
    if status in {401, 403}:
        return RefusedError(detail)
    if status == httpx.codes.NOT_FOUND:
        return NotFoundError(detail)
    if status == httpx.codes.PRECONDITION_FAILED:
        return StaleError(detail)
    if status >= 500 or status in {httpx.codes.TOO_MANY_REQUESTS, httpx.codes.REQUEST_TIMEOUT}:
        return LinkError(f"the controller cannot answer now: {detail}")
    return WireError(detail)


class _Waiting(Generic[P, T]):
    """A method of `AsyncClient` as one of `Client`, which waits for its answer."""

    def __init__(self, method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method

    def __get__(self, client: Client, _kind: type[Client] | None = None) -> Callable[P, T]:
        @wraps(self._method)
        def wait(*words: P.args, **options: P.kwargs) -> T:
            return client._run(self._method(client._client, *words, **options))  # noqa: SLF001 - a method of it

        return wait


class Client:
    """`AsyncClient` for code that does not await: the same methods, each of which waits. Use it from one thread.

    Requests run on a loop in a thread of its own, so that it works where a loop runs already, as in a notebook's cells.

    >>> with Client("http://127.0.0.1:8470", token) as client:   # doctest: +SKIP
    ...     print([job.name for job in client.state().jobs])
    """

    def __init__(
        self, url: str, token: str = "", *, timeout_s: float = TIMEOUT_S, trust: Trust = DEFAULT_TRUST
    ) -> None:
        self._client = AsyncClient(url, token, timeout_s=timeout_s, trust=trust)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-client", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        if self._loop.is_closed():
            return
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    ingest = _Waiting(AsyncClient.ingest)
    beat = _Waiting(AsyncClient.beat)
    state = _Waiting(AsyncClient.state)
    events = _Waiting(AsyncClient.events)
    orders = _Waiting(AsyncClient.orders)
    jobs = _Waiting(AsyncClient.jobs)
    nodes = _Waiting(AsyncClient.nodes)
    incidents = _Waiting(AsyncClient.incidents)
    audit = _Waiting(AsyncClient.audit)
    tag = _Waiting(AsyncClient.tag)
    samples = _Waiting(AsyncClient.samples)
    healthy = _Waiting(AsyncClient.healthy)
    command = _Waiting(AsyncClient.command)

    def follow(self, *, after: int = 0, wait_s: float = 30.0, **where: str) -> Iterator[AnyEvent]:
        """See `AsyncClient.follow`."""
        while True:
            page = self.events(after=after, wait_s=wait_s, limit=1000, **where)
            yield from page.events
            after = page.last

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("this client is closed: make another one")
        if not self._thread.is_alive():
            self._thread.start()
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result()
        except BaseException:  # Ctrl-C, too: what nobody waits for any more is ended
            waiting.cancel()
            raise
