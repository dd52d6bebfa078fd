"""`api/reads.py`: a list is filtered by the token's scope first and cut to a page then, on every route that has a limit.

A page that is cut first is empty for a small team on a busy cluster, although its records are there.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

import httpx
from litestar import Litestar
from litestar.routes import HTTPRoute
from msgspec import structs
from tests.cockpit.served import KEY, fault, nodes_of, run, served, the_job

from holdfast.api.auth import SCOPED, Identity, Role, book_line, new_token
from holdfast.api.tenants import Scope
from holdfast.controller.fleet import Fleet, job_line
from holdfast.model import events as e
from holdfast.model.cluster import JobKey, JobView, NodeView, SchedulerState
from holdfast.model.evidence import Remedy
from holdfast.model.records import IncidentRecord, JobRecord, Observed, slug
from holdfast.model.wire import encode

FOREIGN = 300
OTHER = JobKey(KEY.cluster, "1")
TOKEN = new_token()
BOOK = [book_line(TOKEN, Role.VIEWER, "mei", sees=["user:mei"])]


def others_job(key: JobKey) -> JobView:
    return structs.replace(the_job(), key=key, user="kenichi", state=SchedulerState.PENDING, nodes=())


def words_about(job: JobKey, number: int) -> list[e.AnyEvent]:
    head = {"at": time.time(), "job": job}
    return [
        e.DrillFired(id=f"d{job.id}-{number}", drill=f"d-{number}", kind="kill9", source="drill:d", **head),
        e.OperatorCommand(
            id=f"o{job.id}-{number}", command=e.Command.RELEASE, who="x", source="operator:x", **head
        ),
        structs.replace(fault("n5", job=job, number=number), id=f"f{job.id}-{number}"),
    ]  # fmt: skip


def copies(folder: Path, table: str, payload: str, mark: str, name: str) -> None:
    """Three hundred records like this one, all newer than any other."""
    with sqlite3.connect(folder / "journal.db", timeout=60) as direct:
        columns = [row[1] for row in direct.execute(f"PRAGMA table_info({table})") if row[1] not in {"id", mark}]
        for number in range(FOREIGN):
            direct.execute(
                f"INSERT INTO {table} (id, {mark}, {', '.join(columns)}) "
                f"SELECT ?, ?, {', '.join('?' if one == 'payload' else one for one in columns)} "
                f"FROM {table} WHERE id = ?",
                (f"x{number}", time.time() + 1000 + number, payload.replace(name, f"x{number}"), name),
            )


def lists_of(app: Litestar) -> list[str]:
    """Every route with a limit that a token with a scope may read."""
    return [
        route.path.replace("{job:str}", "7")
        for route in app.routes
        if isinstance(route, HTTPRoute) and route.path.startswith("/v1/")
        for one in route.route_handlers
        if "GET" in one.http_methods and "limit" in one.parsed_fn_signature.parameters
        if SCOPED.items() <= one.opt.items()
    ]


def test_every_list_shows_what_stands_behind_300_records_of_others(tmp_path: Path) -> None:
    """Each route gives a page of the scope's own records, whether theirs are older or newer than all others."""

    async def work() -> None:
        others = [others_job(JobKey(KEY.cluster, str(number))) for number in range(1, FOREIGN)]
        jobs = [the_job(), *(one for one in others if one.key != KEY)]
        nodes = [*nodes_of(6), *(NodeView(name=f"a{n:03}", group="cpu", alive=True) for n in range(FOREIGN))]
        async with served(tmp_path, jobs=jobs, nodes=nodes, book_lines=BOOK) as house:
            journal, submit = house.controller.journal, house.controller.submit
            await house.fault("n1")
            for event in words_about(KEY, 0):
                await submit(event)
            seq = house.controller.seq
            await asyncio.gather(*(submit(one) for n in range(FOREIGN) for one in words_about(OTHER, n)))
            for event in words_about(KEY, 1):
                await submit(event)
            await submit(
                e.CheckpointSaved(id="c", at=time.time(), source="launcher:7", job=KEY, attempt=0, step=1, durable=True)
            )
            ours = next(one for one in await journal.incidents() if KEY in one.jobs)
            theirs = structs.replace(ours, jobs=[OTHER])
            copies(tmp_path, "incidents", encode(theirs).decode(), "opened_at", ours.id)
            mine = next(one for one in await journal.orders() if getattr(one.order, "job", None) == KEY)
            foreign = structs.replace(mine, order=structs.replace(mine.order, job=OTHER))
            copies(tmp_path, "orders", encode(foreign).decode(), "issued_at", mine.order.id)

            paths = lists_of(house.api.app)
            assert len(paths) >= 9, paths
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(base_url=house.url, timeout=200, headers=headers) as http:
                for path in paths:
                    answer = await http.get(path, params={"limit": 1, "after": seq})
                    assert answer.status_code == 200, (path, answer.text)
                    found = answer.json()
                    shown = found["events"] if isinstance(found, dict) else found
                    assert len(shown) == 1, path
                state = (await http.get("/v1/state")).json()
                assert [one["jobs"][0]["id"] for one in state["incidents"]] == ["7"]

    run(work)


def test_an_incident_of_others_too_names_nothing_of_theirs() -> None:
    """Neither in sentences nor in the records of what was observed."""
    fleet = Fleet()
    fleet.jobs[str(KEY)] = job_line(JobRecord(key=KEY, view=the_job(), since=0.0))
    incident = IncidentRecord("i1", 5.0, jobs=[KEY, OTHER], nodes=["n5"], would=["n5 would have been quarantined"])
    incident.observed = [Observed("node:n5", Remedy.QUARANTINE), Observed(slug(OTHER), Remedy.REQUEUE)]
    (seen,) = Scope(Identity("mei", Role.VIEWER, sees=("user:mei",)), fleet).incidents([incident])
    text = encode(seen).decode()
    assert seen.jobs == [KEY]
    assert "n5" not in text
    assert slug(OTHER) not in text


def test_events_wait_for_one_of_the_scope(tmp_path: Path) -> None:
    """With none of its own to give, `/v1/events` waits on past the events of others."""

    async def work() -> None:
        async with served(tmp_path, jobs=[the_job(), others_job(OTHER)], book_lines=BOOK) as house:
            seq = house.controller.seq
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(base_url=house.url, timeout=200, headers=headers) as http:
                asked = asyncio.create_task(http.get("/v1/events", params={"after": seq, "wait": 60}))
                for event in (*words_about(OTHER, 0), *words_about(KEY, 0)):
                    await house.controller.submit(event)
                assert (await asked).json()["events"][0]["job"]["id"] == "7"

    run(work)


def test_what_is_about_the_whole_cluster_refuses_a_scope(tmp_path: Path) -> None:
    """Brakes and policies name groups and rules of everybody: 403, as docs/api.md says, not an empty list."""

    async def work() -> None:
        async with served(tmp_path, policy="[waits]\npropose_s = 900\n", book_lines=BOOK) as house:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(base_url=house.url, timeout=200, headers=headers) as http:
                for path in ("/v1/policies", "/v1/brakes"):
                    assert (await http.get(path)).status_code == 403, path

    run(work)
