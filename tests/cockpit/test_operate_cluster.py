"""A person's deeds through the cockpit's own routes, on an embedded cluster of real processes under a real controller.

Each is pressed as a browser would; what came of it is read from the scheduler, from the journal and from the pages.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cockpit.served import csrf_of

from cluster_fixture import TestCluster, embedded_cluster, job_of
from holdfast.api import Role
from holdfast.api.auth import book_line, ensure_tokens, new_token
from holdfast.model import events as e
from holdfast.model.cluster import ENDED, RecoverySpec, SchedulerState
from holdfast.model.evidence import Domain, Finding, Place, Remedy, Severity
from holdfast.model.evidence import Role as FindingRole
from holdfast.model.wire import encode

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
LIMIT_S = 90.0
POLICY = "[brake]\nmax_nodes = 1\nmax_percent = 100.0\n"
S = SchedulerState


class Desk:
    """Olga, an operator, at her browser."""

    def __init__(self, cluster: TestCluster, http: httpx.AsyncClient, agent: str) -> None:
        self.cluster, self.http, self._agent = cluster, http, agent

    async def press(self, page: str, command: str, **more: str) -> str:
        """Fill in the form of a page and press a button; returns what the next page says. A page that has become old
        meanwhile is looked at again, as a person would."""
        deadline = time.monotonic() + LIMIT_S
        while "changed since you looked" in (said := await self._press(page, command, more)):
            assert time.monotonic() < deadline, said
        return said

    async def _press(self, page: str, command: str, more: dict[str, str]) -> str:
        text = (await self.http.get(page)).text
        assert f'value="{command}"' in text, f"{page} has no button {command}"
        seen = re.search(r'name="seen" value="([^"]+)"', text)
        form = {"csrf": await csrf_of(self.http, page), "command": command, "next": page, **more}
        answer = await self.http.post("/operate", data=form | ({"seen": html.unescape(seen.group(1))} if seen else {}))
        assert (answer.status_code, answer.headers["location"]) == (303, page)
        said = re.search(r'<p class="banner (good|bad)" role="status">([^<]*)</p>', (await self.http.get(page)).text)
        assert said, "the page says nothing of it"
        return f"{said.group(1)}: {html.unescape(said.group(2))}"

    async def on_job(self, job: str, command: str, why: str) -> str:
        return await self.press(f"/jobs/{job}", command, job=job, why=why)

    async def get(self, path: str) -> Any:
        answer = await self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def becomes(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not await holds():
            assert time.monotonic() < deadline, f"not within {LIMIT_S:g} s: {what}"
            await asyncio.sleep(0.05)

    async def fault(self, node: str) -> None:
        """Its agent tells of a fault of its hardware."""
        found = Finding(
            id=f"xid-{node}", rule="nvidia.xid.74", at=time.time(), domain=Domain.HARDWARE, role=FindingRole.ROOT,
            severity=Severity.FATAL, remedy=Remedy.REPLACE, place=Place(node=node, gpu=3), fingerprint="nvidia.xid.74",
        )  # fmt: skip
        event = e.FindingSeen(id=f"seen-{node}", at=found.at, source=f"agent:{node}", finding=found)
        body = b'{"version":1,"source":"agent:%b","events":[%b]}' % (node.encode(), encode(event))
        headers = {"Authorization": f"Bearer {self._agent}"}
        async with httpx.AsyncClient(base_url=self.http.base_url, headers=headers, timeout=120) as http:
            answer = await http.post("/v1/ingest", content=body)
        assert answer.status_code == 200, answer.text


@asynccontextmanager
async def at_work(tmp_path: Path) -> AsyncIterator[Desk]:
    """A cluster of four nodes whose brake lets one quarantine through, and Olga, logged in."""
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    async with embedded_cluster(tmp_path, nodes=4, agents=False) as cluster:
        folder = cluster.folder / "controller"
        book = ensure_tokens(folder)
        token = new_token()
        with book.open("a") as lines:
            lines.write(book_line(token, Role.OPERATOR, "olga"))
        await cluster.start_controller_and_wait(policy=policy, limit_s=LIMIT_S)
        url = json.loads((folder / "controller.json").read_text())["url"]
        async with httpx.AsyncClient(base_url=url, timeout=120) as http:
            assert (await http.post("/login", data={"token": token, "next": "/"})).status_code == 303
            yield Desk(cluster, http, (folder / "agent-token").read_text().strip())


def test_each_order_of_a_person_is_carried_out_and_journalled_in_their_name(tmp_path: Path) -> None:
    """Requeue, hold, release and give up of a running job; a tripped brake is reset: the scheduler does it, the journal
    has who and why, and the audit page shows it."""

    async def work() -> None:
        async with at_work(tmp_path) as desk:
            await orders_about_a_job(desk)
            await a_brake(desk)
            told = [one for one in await desk.get("/v1/audit") if one.get("who") == "olga"]
            assert [(one["what"], one["why"]) for one in reversed(told)] == [*DEEDS]
            page = (await desk.http.get("/audit")).text
            for command, why in DEEDS:
                assert why in page, command

    asyncio.run(work())


DEEDS = (
    ("requeue", "move it along"),
    ("hold", "a look at its data"),
    ("requeue", "now stop it"),
    ("release", "the data is well"),
    ("give_up", "no longer needed"),
    ("reset_brake", "one switch, understood"),
)


async def orders_about_a_job(desk: Desk) -> None:
    """Requeued and running again; held: what runs goes on, and does not start again once it is requeued; released."""
    cluster = desk.cluster
    job = (await cluster.orchestrator.submit(["sleep", "1000"], nodes=1, user="mei", recovery=RecoverySpec())).key.id
    await cluster.until_job(job, S.RUNNING, limit_s=LIMIT_S)

    async def known() -> bool:
        return (await desk.http.get(f"/jobs/{job}")).status_code == 200

    await desk.becomes("the controller knows the job", known)
    whys = iter(why for _, why in DEEDS)
    assert "good: Job" in await desk.on_job(job, "requeue", next(whys))
    await started_again(desk, job, 1)
    assert "is held" in await desk.on_job(job, "hold", next(whys))
    assert "held by olga" in (await desk.http.get(f"/jobs/{job}")).text
    assert job_of(await cluster.orchestrator.observe(), job).state is S.RUNNING
    assert "will be requeued" in await desk.on_job(job, "requeue", next(whys))
    await cluster.until_job(job, S.HELD, limit_s=LIMIT_S)
    assert "is released" in await desk.on_job(job, "release", next(whys))
    await started_again(desk, job, 2)
    assert "is given up" in await desk.on_job(job, "give_up", next(whys))
    await cluster.until_job(job, *ENDED, limit_s=LIMIT_S)
    page = (await desk.http.get(f"/jobs/{job}")).text
    assert "It is over: there is nothing to order." in page
    assert 'value="hold"' not in page


async def started_again(desk: Desk, job: str, count: int) -> None:
    """It runs in the scheduler's eyes, and the controller has seen it."""

    def so(world: Any) -> bool:
        one = job_of(world, job)
        return one.restart_count == count and one.state is S.RUNNING

    async def seen() -> bool:
        record = (await desk.get(f"/v1/jobs/{job}"))["record"]
        return record["view"].get("restart_count", 0) == count and record["state"] in {"watching", "proving"}

    await desk.cluster.until(so, f"started again {count} times", limit_s=LIMIT_S)
    await desk.becomes(f"the controller sees start {count}", seen)


async def a_brake(desk: Desk) -> None:
    """The second bad node of the group waits until a person has reset the brake; then it is fenced."""
    await desk.fault("node03")
    await desk.cluster.until_node("node03", lambda n: n.drained, limit_s=LIMIT_S)
    await desk.fault("node04")
    (brake,) = await desk.get("/v1/brakes")
    assert brake["waiting"] == ["node04"]
    assert brake["tripped_at"] > 0
    assert not next(n for n in (await desk.cluster.orchestrator.observe()).nodes if n.name == "node04").drained
    overview = (await desk.http.get("/")).text
    assert "1 quarantine waits" in overview
    why = DEEDS[-1][1]
    assert "has its brake reset" in await desk.press("/settings", "reset_brake", group=brake["group"], why=why)
    await desk.cluster.until_node("node04", lambda n: n.drained, limit_s=LIMIT_S)
    (brake,) = await desk.get("/v1/brakes")
    assert (brake.get("waiting", []), brake.get("tripped_at", 0)) == ([], 0)
