"""A viewer, an owner and an operator of one project try every route of the controller for another project's job.

The routes are walked as the application has them, the cockpit's pages too, so a route that is new is tried as well. With
the scopes switched off the same requests must find the job.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from litestar import Litestar
from litestar.routes import HTTPRoute
from msgspec import structs
from tests.cockpit.served import KEY, Served, nodes_of, run, served, the_job
from tests.controller.cases import until

from attack_fixture import Removing
from holdfast.api import auth, operate
from holdfast.api.auth import Role, book_line, new_token
from holdfast.api.tenants import Scope
from holdfast.cockpit import routes as cockpit_routes
from holdfast.model import events as e
from holdfast.model.cluster import JobKey, JobView, RecoverySpec, SchedulerState
from holdfast.ports import Sample

pytestmark = pytest.mark.timeout(600)
HIDDEN = JobKey(KEY.cluster, "424242")
MARKS = re.compile(r"424242|hush-hush|kenichi|dark-matter")
"""The hidden job's id, name, user and project."""
TOKENS = {
    (role, sees): new_token() for role in (Role.VIEWER, Role.OWNER, Role.OPERATOR) for sees in ("user", "project")
}
SEES = {"user": "user:mei", "project": "project:vision"}
BOOK = [book_line(token, role, "mei", sees=[SEES[sees]]) for (role, sees), token in TOKENS.items()]
QUERIES = ("", "?job=424242", "?node=n3", "?kind=job_observed", "?user=kenichi", "?who=kenichi", "?q=hush-hush")
VERBS = {"GET", "HEAD", "OPTIONS"}


def hidden() -> JobView:
    return JobView(
        key=HIDDEN, name="hush-hush", user="kenichi", project="dark-matter", partition="gpu",
        state=SchedulerState.RUNNING, nodes=("n2", "n3"), want_nodes=2, recovery=RecoverySpec(), started_at=time.time(),
    )  # fmt: skip


@asynccontextmanager
async def two_projects(folder: Path, *, faults: bool = True) -> AsyncIterator[Served]:
    """Job 7 of mei on n1 and n2, the hidden one on n2 and n3; a fault of n2 hits both, one of n3 the hidden one."""
    jobs = [the_job(project="vision"), hidden()]
    on = {"n1": ("7",), "n2": ("7", HIDDEN.id), "n3": (HIDDEN.id,)}
    nodes = [structs.replace(node, jobs=on.get(node.name, ())) for node in nodes_of(6)]
    async with served(folder, jobs=jobs, nodes=nodes, book_lines=BOOK) as house:
        await until(lambda: {"7", "424242"} <= set(house.cockpit.fleet.jobs))
        now = time.time()
        for key, nodes in ((KEY, ("n1", "n2")), (HIDDEN, ("n2", "n3"))):
            head = {"at": now, "source": f"launcher:{key.id}", "job": key}
            for event in (
                e.LauncherAttached(id=f"a{key.id}", restart_count=0, nodes=nodes, lease_s=600.0, **head),
                e.AttemptStarted(id=f"s{key.id}", attempt=0, epoch=1, nodes=nodes, ranks=2, **head),
                e.CheckpointSaved(id=f"c{key.id}", attempt=0, step=10, durable=True, path=f"/x/{key.id}", **head),
                e.DrillFired(id=f"d{key.id}", drill=f"d-{key.id}", kind="kill9", **{**head, "source": "drill:d"}),
                e.OperatorCommand(id=f"o{key.id}", command=e.Command.RELEASE, who=f"for {key.id}", **head),
            ):
                await house.controller.submit(event)
        await house.fault("n3", job=HIDDEN)
        for node in ("n3", "n2") if faults else ():
            await house.fault(node, number=1)
        points = [Sample("step", f"job:{key.id}(0)/rank:0", now, 1.0) for key in (KEY, HIDDEN)]
        await house.controller.journal.add_samples(points)
        yield house


def requests(app: Litestar, names: dict[str, list[str]]) -> Iterator[str]:
    """Every address that a GET reaches, with each name of the cluster in its place."""
    for route in app.routes:
        if not isinstance(route, HTTPRoute) or "GET" not in route.methods:
            continue
        kind = next((one for one in names if f"/{one}/" in f"{route.path}/"), "")
        holes = re.findall(r"{(\w+):\w+}", route.path)
        assert len(holes) < 2, route.path
        for name in names[kind] if holes and kind else ["424242"]:
            path = re.sub(r"/{\w+:\w+}", f"/{name}", route.path)
            if path.startswith(("/v1/samples",)):
                yield f"{path}?series=step&subject=job:424242*"
                yield f"{path}?series=step&subject=*"
            elif path == "/live":
                yield from (
                    f"{path}?on={on}" for on in ("overview", "jobs", "job:7", "job:424242", "node:n3", "incidents")
                )
            elif path == "/v1/stream":
                yield from (f"{path}{query or '?after=0'}{'&after=0' if query else ''}" for query in QUERIES)
            else:
                yield from (f"{path}{query}" for query in QUERIES)


async def names_in(house: Served) -> dict[str, list[str]]:
    journal = house.controller.journal
    return {
        "jobs": ["424242", "7"],
        "nodes": ["n2", "n3"],
        "incidents": [one.id for one in await journal.incidents()],
        "orders": [one.order.id for one in await journal.orders()],
        "validation": ["n3"],
        "static": ["424242"],
    }


async def read(http: httpx.AsyncClient, path: str, seq: int) -> tuple[int, str]:
    """Status and text; of a stream what comes until the newest event, of a live page its first message."""
    if not path.startswith(("/v1/stream", "/live")):
        answer = await http.get(path)
        return answer.status_code, answer.text
    text = ""
    async with http.stream("GET", path) as got:
        async for chunk in got.aiter_text():
            text += chunk
            last = [int(one) for one in re.findall(r"^id: (\d+)$", text, re.MULTILINE)]
            if "data: " in text if path.startswith("/live") else last and last[-1] >= seq:
                break
    return got.status_code, text


async def found(house: Served, token: str) -> list[str]:
    """Addresses whose answer tells something of the hidden job to this token, by header and by session."""
    told = []
    seq = house.controller.seq
    paths = list(dict.fromkeys(requests(house.api.app, await names_in(house))))
    async with httpx.AsyncClient(base_url=house.url, timeout=200) as http:
        await http.post("/login", data={"token": token, "next": "/"})
        for path in paths:
            http.headers["Authorization"] = f"Bearer {token}"
            status, text = await read(http, path, seq)
            assert status < 500, (path, text)
            if status < 400 and MARKS.search(text.replace(path.partition("?")[2] or "?", "")):  # a page's own address
                told.append(path)
    return told


OF_THE_PAIR = (Role.VIEWER, "user")
"""Whose requests are made in both forms by the test below."""
TOLD = (
                "/v1/jobs", "/v1/jobs/424242", "/v1/jobs/424242/attempts", "/v1/jobs/424242/checkpoints", "/v1/events",
                "/v1/stream", "/v1/audit", "/v1/findings", "/v1/incidents", "/v1/orders", "/v1/drills", "/v1/samples",
                "/v1/nodes", "/v1/nodes/n3", "/", "/jobs", "/jobs/424242", "/nodes/n3", "/incidents", "/live",
)  # fmt: skip
"""Routes that tell of the hidden job once the scopes are off."""


@pytest.mark.parametrize(("role", "sees"), [one for one in TOKENS if one != OF_THE_PAIR], ids=str)
def test_no_route_tells_of_another_projects_job(tmp_path: Path, role: Role, sees: str) -> None:
    """Lists, records, events, streams, samples, the audit and pages: each is refused, or leaves the job out."""

    async def work() -> None:
        async with two_projects(tmp_path) as house:
            assert await found(house, TOKENS[role, sees]) == []

    run(work)


@pytest.mark.attempt(
    actor="A viewer, an owner, an operator of another project",
    asset="others' jobs",
    removed="api.tenants.Scope.is_whole, api.auth.check_scope",
    each=TOLD,
)
def test_without_scopes_the_same_requests_find_it(tmp_path: Path, removing: Removing) -> None:
    """Read the hidden job on every route: none tells of it, and with the one check off it stands on most."""

    async def work() -> None:
        async with two_projects(tmp_path) as house:
            assert await found(house, TOKENS[OF_THE_PAIR]) == []
            removing(Scope, "is_whole", True)
            removing(auth, "check_scope", lambda _identity, _handler: None)
            told = {path.partition("?")[0] for path in await found(house, TOKENS[Role.VIEWER, "user"])}
            assert told >= set(TOLD)

    run(work)


def test_a_scope_shows_its_own(tmp_path: Path) -> None:
    """Its job with its events, attempts, orders and samples, its nodes, its part of the shared incident, its page."""

    async def work() -> None:
        async with two_projects(tmp_path) as house, httpx.AsyncClient(base_url=house.url, timeout=200) as http:
            http.headers["Authorization"] = f"Bearer {TOKENS[Role.VIEWER, 'project']}"
            whole = (await http.get("/v1/state")).json()
            assert [job["key"]["id"] for job in whole["jobs"]] == ["7"]
            assert {node["name"] for node in whole["nodes"]} <= {"n1", "n2"}
            assert whole["brakes"] == []
            assert (await http.get("/v1/brakes")).status_code == 403
            assert await house.controller.journal.brakes()
            assert [job["key"]["id"] for job in (await http.get("/v1/jobs")).json()] == ["7"]
            assert len((await http.get("/v1/jobs/7")).json()["events"]) > 3
            assert len((await http.get("/v1/samples?series=step")).json()["points"]) == 1
            assert (await http.get("/v1/audit")).json()[0]["who"] == "for 7"
            shared = [one for one in (await http.get("/v1/incidents")).json() if one["jobs"]]
            assert shared
            assert {job["id"] for one in shared for job in one["jobs"]} == {"7"}

    run(work)


def test_the_state_of_a_scope_reads_no_other_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question costs what its answer holds, and not the cluster's ten thousand jobs."""
    asked: list[object] = []

    async def work() -> None:
        async with two_projects(tmp_path) as house, httpx.AsyncClient(base_url=house.url, timeout=200) as http:
            journal = house.controller.journal
            read = journal.jobs

            async def jobs(**where: object) -> object:
                asked.append(where.get("job"))
                return await read(**where)

            monkeypatch.setattr(journal, "jobs", jobs)
            http.headers["Authorization"] = f"Bearer {TOKENS[Role.VIEWER, 'project']}"
            assert [job["key"]["id"] for job in (await http.get("/v1/state")).json()["jobs"]] == ["7"]
            monkeypatch.undo()

    run(work)
    assert asked == [["7"]]


def test_a_page_of_a_job_that_shares_no_trouble_is_shown(tmp_path: Path) -> None:
    """Once another's job is in its incident, the page is refused: its lines would name that job."""

    async def work() -> None:
        async with (
            two_projects(tmp_path, faults=False) as house,
            httpx.AsyncClient(base_url=house.url, timeout=200) as http,
        ):
            await http.post("/login", data={"token": TOKENS[Role.VIEWER, "project"], "next": "/"})
            page = await http.get("/jobs/7")
            assert (page.status_code, MARKS.search(page.text)) == (200, None)
            await house.fault("n2", number=1)
            assert (await http.get("/jobs/7")).status_code == 403

    run(work)


COMMANDS = (
    {"command": "hold", "job": {"cluster": "test", "id": "424242"}},
    {"command": "give_up", "job": {"cluster": "test", "id": "424242"}},
    {"command": "drain", "node": "n3"},
    {"command": "set_mode", "value": "observe"},
    {"command": "reset_brake", "group": "gpu"},
)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OWNER])
def test_a_scope_commands_its_own_jobs_alone(tmp_path: Path, role: Role) -> None:
    """See `commands_its_own_jobs_alone`: a viewer commands nothing, an owner jobs of its own."""
    run(lambda: commands_its_own_jobs_alone(tmp_path, role))


@pytest.mark.attempt(
    actor="A viewer, an owner, an operator of another project", asset="others' jobs", removed="api.operate._check_jobs"
)
def test_an_operator_with_a_scope_commands_its_own_jobs_alone(tmp_path: Path, removing: Removing) -> None:
    """Command another project's job with an operator's token."""
    run(lambda: commands_its_own_jobs_alone(tmp_path, Role.OPERATOR, removing))


async def commands_its_own_jobs_alone(tmp_path: Path, role: Role, removing: Removing | None = None) -> None:
    """Another's job, their orders, nodes, modes, brakes, reports as an agent, policies: refused, nothing is journalled.

    An operator whose scope is forgotten does the first of them.
    """

    async with two_projects(tmp_path) as house, httpx.AsyncClient(base_url=house.url, timeout=200) as http:
        http.headers["Authorization"] = f"Bearer {TOKENS[role, 'user']}"
        journal = house.controller.journal
        theirs = [one.order.id for one in await journal.orders() if getattr(one.order, "job", None) == HIDDEN]
        stored = len(await journal.events(kind="operator_command"))
        for body in (*COMMANDS, *({"command": "approve", "order": one} for one in theirs)):
            assert (await http.post("/v1/commands", json=body)).status_code == 403, body
        batch = {"version": 1, "source": "agent:n3", "events": []}
        assert (await http.post("/v1/ingest", json=batch)).status_code == 403
        assert (await http.post("/v1/beat", json={"source": "agent:n3", "node": "n3"})).status_code == 403
        assert len(await journal.events(kind="operator_command")) == stored
        mine = {"command": "hold", "job": {"cluster": "test", "id": "7"}}
        assert (await http.post("/v1/commands", json=mine)).status_code == (403 if role is Role.VIEWER else 200)
        if removing is not None:
            removing(operate, "_check_jobs", _unchecked)
            assert (await http.post("/v1/commands", json=COMMANDS[0])).status_code == 200


async def _unchecked(*_of: object) -> None:
    return


def test_nobody_learns_jobs_from_figures_and_probes(tmp_path: Path) -> None:
    """Without a token `/metrics` and the probes name no job; with a viewer's of the whole cluster the figures do, and
    to all where the setting says so."""

    async def work() -> None:
        async with (
            two_projects(tmp_path, faults=False) as house,
            httpx.AsyncClient(base_url=house.url, timeout=200) as http,
        ):
            for path in ("/metrics", "/healthz", "/livez"):
                assert not MARKS.search((await http.get(path)).text), path
            assert "holdfast_jobs{" in (await http.get("/metrics")).text
            wrong = await http.get("/metrics", headers={"Authorization": "Bearer hft_wrong"})
            assert not MARKS.search(wrong.text)
            house.api.app.state.open_metrics = True
            assert MARKS.search((await http.get("/metrics")).text)

    run(work)


def test_pages_ask_who_looks_in_one_place() -> None:
    """Each handler of the cockpit but sign-in, sign-out and files of the package asks `looker`, where scopes are kept."""
    source = Path(cockpit_routes.__file__).read_text()
    for name in ("a_list", "one_thing", "an_incident", "change_policy", "run_drill", "operate", "live"):
        body = source.split(f"async def {name}(", 1)[1].split("\n\n\n", 1)[0]
        assert re.search(r"looker\(|writer\(|page\(|page_or_chart\(", body), name
