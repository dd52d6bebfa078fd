"""Clients of one history: an agent, two operators and two readers, each with its own name, over real HTTP.

Each asks one thing after the other and notes what it asked before it asks, and what it was answered. A request without
an answer, and one that is answered 503, is `unknown`: it happened or not. Whatever is drawn comes from the seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from .checker import PAGE
from .record import OK, REFUSED, UNKNOWN, Recorder

TIMEOUT_S = 0.6
PAUSE_S = 0.03
BACK_OFF_S = 0.1
"""After a request without an answer, at most; longer after several."""
BACK_OFF_MAX_S = 0.8
AFTER = 3
"""Requests of each client once the faults are over: who was stopped wakes up, and may believe that it leads."""
BEHIND_S = 2500.0
"""Events are from so long ago: no jump of the controller's clock makes them come from the future."""
EVENTS_LIMIT = 50


@dataclass
class Desk:
    """What the clients of a history share."""

    recorder: Recorder
    rng: random.Random
    name: str
    """Of the history; ids and reasons begin with it."""
    tokens: dict[str, str]
    urls: Sequence[str]
    job: dict[str, Any]
    """Key of the job that the first operator holds and releases."""
    nodes: Sequence[str]
    after: int
    """Sequence number behind which this history's events begin."""
    calm: asyncio.Event = field(default_factory=asyncio.Event)
    """The faults are over."""


@dataclass
class Client:
    """One of them."""

    desk: Desk
    name: str
    who: str
    rng: random.Random
    count: int = 0
    at: int = 0
    """Which controller it asks; another one once this one does not answer as one that leads."""
    sent: list[Callable[[], Awaitable[object]]] = field(default_factory=list)
    unanswered: int = 0
    """Requests in a row without an answer."""
    _http: httpx.AsyncClient | None = None

    def http(self) -> httpx.AsyncClient:
        if self._http is None:
            self._http = httpx.AsyncClient(
                headers={"Authorization": f"Bearer {self.desk.tokens[self.who]}"}, timeout=TIMEOUT_S, trust_env=False
            )
        return self._http

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    def fresh(self) -> str:
        self.count += 1
        return f"{self.desk.name}-{self.name}-{self.count}"

    async def ask(self, what: str, method: str, path: str, asked: dict[str, Any], body: Any, read) -> str:
        """One request, noted; `read` makes the answer of the response's JSON. Returns the outcome."""
        number = self.desk.recorder.invoke(self.name, what, **asked)
        outcome, answer = UNKNOWN, {}
        try:
            response = await self.http().request(method, self.desk.urls[self.at] + path, json=body)
            if response.status_code == 200:
                outcome, answer = read(response.json())
            elif 400 <= response.status_code < 500:
                outcome, answer = REFUSED, {"status": response.status_code, "said": response.text[:300]}
            else:
                answer = {"status": response.status_code, "said": response.text[:300]}
        except (httpx.HTTPError, ValueError) as error:
            answer = {"said": repr(error)}
        if outcome == UNKNOWN or self.rng.random() < 0.1:
            self.at = (self.at + 1) % len(self.desk.urls)
        self.desk.recorder.complete(number, outcome, **answer)
        self.unanswered = self.unanswered + 1 if outcome == UNKNOWN else 0
        await asyncio.sleep(self.rng.uniform(0.0, min(BACK_OFF_MAX_S, BACK_OFF_S * self.unanswered)))
        return outcome

    # --- an agent ---

    async def report(self) -> None:
        """One to three findings in a batch, some about a node that is not the agent's to speak of."""
        node, other = self.rng.sample(list(self.desk.nodes), 2)
        names = [self.fresh() for _ in range(self.rng.randint(1, 3))]
        source = f"agent:{node}"
        place = {"node": node if self.rng.random() < 0.9 else other}  # of another node it may not speak
        at = time.time() - BEHIND_S
        events = [
            {
                "event": "finding_seen", "id": name, "at": at,
                "finding": {"id": name, "rule": "histories.probe", "at": at, "role": "benign", "summary": name,
                            "place": place},
            }
            for name in names
        ]  # fmt: skip
        asked = {"ids": [f"{source}/{name}" for name in names], "marks": names}

        def read(answer: dict[str, Any]) -> tuple[str, dict[str, Any]]:
            refused = answer.get("refused", [])
            if not refused:
                return (OK if answer["stored"] == len(names) else UNKNOWN), answer
            return (REFUSED if len(refused) == len(names) else UNKNOWN), answer

        async def send() -> str:
            body = {"version": 1, "source": source, "events": events}
            return await self.ask("report", "POST", "/v1/ingest", asked, body, read)

        await self._send(send)

    async def _send(self, send: Callable[[], Awaitable[str]]) -> None:
        if await send() != REFUSED:
            self.sent.append(send)

    async def again(self) -> None:
        """Something that was sent before, whatever became of it."""
        if self.sent:
            await self.rng.choice(self.sent)()

    # --- people ---

    async def command(self) -> None:
        """A drain or return of a node, or, by the one who keeps the job, a hold or its end."""
        name = self.fresh()
        keeper = self.who == "ann"
        command = self.rng.choice(("hold", "release") if keeper else ("drain", "return"))
        node = "" if keeper else self.rng.choice(self.desk.nodes)
        target: dict[str, Any] = {"job": self.desk.job} if keeper else {"node": node}
        body = {"command": command, "why": name, "id": name, **target}
        asked = {
            "ids": [f"command:{name}"], "marks": [name], "command": command, "who": self.who, "why": name,
            "target": self.desk.job["id"] if keeper else node,
        }  # fmt: skip

        async def send() -> str:
            return await self.ask("command", "POST", "/v1/commands", asked, body, lambda answer: (OK, answer))

        self.sent.append(send)
        outcome = await send()
        while keeper and outcome == UNKNOWN:
            # The next command about the job must not overtake this one: its keeper insists, as a person would.
            outcome = await send()

    # --- readers ---

    async def state(self) -> None:
        job = self.desk.job["id"]

        def read(answer: dict[str, Any]) -> tuple[str, dict[str, Any]]:
            held = [one.get("held_by", "") for one in answer["jobs"] if one["key"]["id"] == job]
            return OK, {"seq": answer["seq"], "held_by": held[0] if held else None}

        await self.ask("state", "GET", "/v1/state", {}, None, read)

    async def events(self) -> None:
        after = self.desk.after + self.rng.randint(0, 20)
        wait = self.rng.choice((0, 0, 0.2))

        def read(answer: dict[str, Any]) -> tuple[str, dict[str, Any]]:
            return OK, {"events": [[one["seq"], one["id"]] for one in answer["events"]]}

        path = f"/v1/events?after={after}&wait={wait}&limit={EVENTS_LIMIT}"
        await self.ask("events", "GET", path, {"after": after, "limit": EVENTS_LIMIT}, None, read)

    async def audit(self) -> None:
        def read(answer: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
            deeds = [[one["seq"], one["who"], one["what"], one.get("target", ""), one.get("why", "")] for one in answer]
            return OK, {"deeds": deeds}

        await self.ask("audit", "GET", f"/v1/audit?limit={PAGE}", {}, None, read)

    async def follow(self, until: asyncio.Event) -> None:
        """The stream; after each break on from the last number, at whichever controller answers."""
        after = self.desk.after
        while not until.is_set():
            number = self.desk.recorder.invoke(self.name, "stream", after=after)
            got: list[list[Any]] = []
            try:
                async with asyncio.timeout(30):
                    reading = asyncio.create_task(self._read_quietly(after, got))
                    ended = asyncio.create_task(until.wait())
                    await asyncio.wait([reading, ended], return_when=asyncio.FIRST_COMPLETED)
                    for task in (reading, ended):
                        task.cancel()
                    await asyncio.gather(reading, ended, return_exceptions=True)
            except TimeoutError:
                pass
            self.desk.recorder.complete(number, UNKNOWN, events=got)
            after = got[-1][0] if got else after
            self.at = (self.at + 1) % len(self.desk.urls)
            await asyncio.sleep(PAUSE_S)

    async def _read_quietly(self, after: int, got: list[list[Any]]) -> None:
        with contextlib.suppress(httpx.HTTPError):
            await self._read_stream(after, got)

    async def _read_stream(self, after: int, got: list[list[Any]]) -> None:
        url = f"{self.desk.urls[self.at]}/v1/stream?after={after}"
        seq = 0
        async with self.http().stream("GET", url, timeout=httpx.Timeout(TIMEOUT_S, read=None)) as response:
            if response.status_code != 200:
                return
            async for line in response.aiter_lines():
                if line.startswith("id: "):
                    seq = int(line[4:])
                elif line.startswith("data: "):
                    got.append([seq, json.loads(line[6:])["id"]])

    # --- a life ---

    async def live(self, doings: Sequence[Callable[[], Awaitable[None]]], count: int) -> None:
        """So many requests, drawn from these, then slowly more until the faults are over, and some after them."""
        asked = after = 0
        while asked < count or after < AFTER:
            after += self.desk.calm.is_set()
            await self.rng.choice(doings)()
            asked += 1
            await asyncio.sleep(self.rng.uniform(0.0, PAUSE_S if asked < count else BACK_OFF_S))


async def run_clients(desk: Desk, requests: int) -> None:
    """All clients until each has asked so often."""
    seeds = [random.Random(desk.rng.random()) for _ in range(5)]
    agent, ann, ben, reader, follower = clients = [
        Client(desk, *names, seed)
        for names, seed in zip(
            (("agent", "agent"), ("ann", "ann"), ("ben", "ben"), ("reader", "eve"), ("follower", "eve")),
            seeds,
            strict=True,
        )
    ]
    over = asyncio.Event()
    following = asyncio.create_task(follower.follow(over))
    try:
        await asyncio.gather(
            agent.live([agent.report, agent.report, agent.again], requests),
            ann.live([ann.command, ann.again, ann.state], requests // 2),
            ben.live([ben.command, ben.again, ben.audit], requests // 2),
            reader.live([reader.state, reader.events, reader.audit], requests),
        )
    finally:
        over.set()
        await following
        await asyncio.gather(*(client.close() for client in clients))


async def look(desk: Desk, url: str) -> None:
    """What a new reader is shown when all is over, by a controller that answers."""
    last = Client(desk, "last", "eve", random.Random(0))
    last.desk = Desk(**{**vars(desk), "urls": [url]})
    try:
        for what in (last.state, last.events, last.audit):
            await what()
    finally:
        await last.close()
