"""A user's or a reporter's texts in what operators look at: pages in a real Chromium, terminals, spreadsheets.

Each text of others holds payloads: scripts, attributes, addresses, styles, SVG, templates, letters that become markup;
escapes of terminals; formulas. Pages are walked as the application has its routes, commands as the command line has
them, so one that is new is tried as well.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import click
import jinja2
import pytest
from litestar.routes import HTTPRoute
from msgspec import structs
from playwright.async_api import Browser, Page
from tests.attack.hostile_journal import make
from tests.cockpit.browsing import Watched, chromium, log_in, needs_chromium
from tests.cockpit.served import KEY, Served, nodes_of, served, the_job
from typer.testing import CliRunner

from attack_fixture import Attempt, Removing
from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.api import Role
from holdfast.cli import explain, stragglers
from holdfast.cli.main import COMMANDS, app, load
from holdfast.cockpit import rendering
from holdfast.model import events as e
from holdfast.model import plain_text
from holdfast.report import csv_form, html, templating

USER = "A user of the cluster whose names and log lines people read"
BROWSER, TERMINAL, SHEET = "an operator's browser", "an operator's terminal", "an operator's spreadsheet"
EVIL = {
    "script": "<script data-evil>window.pwned=1</script>",
    "closing": "</pre></title></textarea></style></script><script data-evil>window.pwned=1</script>",
    "attribute": '"><img data-evil src=x onerror="window.pwned=1">',
    "quote": "' data-evil onmouseover='window.pwned=1' x='",
    "double quote": '" data-evil autofocus onfocus="window.pwned=1" x="',
    "address": "javascript:window.pwned=1",
    "style": "</style><style data-evil>*{background:url(javascript:window.pwned=1)}</style>",
    "svg": "<svg data-evil onload=window.pwned=1><script>window.pwned=1</script></svg>",
    "math": "<math><mtext><table><mglyph><style><img data-evil src onerror=window.pwned=1>",
    "frame": "<iframe data-evil srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "comment": "<!--><img data-evil src=x onerror=window.pwned=1>-->",
    "slashes": "<img/data-evil/src=x/onerror=window.pwned=1>",
    "template": "{{7*7}}evil {%raw%} ${7*7}evil",
    "escaped": "\\u003cimg data-evil src=x onerror=window.pwned=1\\u003e &lt;img data-evil&gt;",
    "full width": "\uff1cimg data-evil src=x onerror=window.pwned=1\uff1e",
    "base": "<base data-evil href=//evil.example/><meta data-evil http-equiv=refresh content='0;url=//evil.example'>",
}
ALL = " ".join(EVIL.values())
LOOK = r"""() => {
  const urls = [...document.querySelectorAll('[href],[src],[action],[formaction]')].filter(one =>
    ['href', 'src', 'action', 'formaction'].some(n => /^\s*(javascript|vbscript):/i.test(one.getAttribute(n) || '')));
  return {ran: window.pwned !== undefined, foreign: document.querySelectorAll('[data-evil]').length, urls: urls.length,
          template: document.documentElement.outerHTML.includes('49evil')};
}"""
CLEAN = {"ran": False, "foreign": 0, "urls": 0, "template": False}


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(400):
            await work()

    asyncio.run(bounded())


@asynccontextmanager
async def hostile_house(folder: Path):
    """A cluster whose job, nodes, faults, reasons and orders carry the payloads."""
    job = the_job(name=ALL, user=ALL, project=ALL, partition=ALL)
    nodes = [
        structs.replace(one, drain_reason=ALL, drained=True, state_text=ALL, topology=ALL, warnings=(ALL,))
        for one in nodes_of(3)
    ]
    async with served(folder, jobs=[job], nodes=nodes) as house:
        now = time.time()
        head = {"at": now, "source": "launcher:7", "job": KEY}
        for number, payload in enumerate(EVIL.values()):
            await house.fault("n1", text=payload, number=number, summary=payload, rule=f"log.{payload[:60]}", job=KEY)
        for event in (
            e.LauncherAttached(id="a", restart_count=0, nodes=("n1", "n2"), lease_s=600.0, **head),
            e.AttemptStarted(id="s", attempt=0, epoch=1, nodes=("n1", "n2"), ranks=2, **head),
            e.CheckpointSaved(id="c", attempt=0, step=10, durable=True, path=ALL, **head),
            e.Escalated(id="x", attempt=0, **head),
            e.OperatorCommand(id="o", command=e.Command.DRAIN, who=ALL, why=ALL, node="n2", at=now),
            e.OperatorCommand(id="h", command=e.Command.HOLD, who=ALL, why=ALL, job=KEY, at=now),
            e.DrillFired(id="d", drill=ALL, kind="kill9", at=now, source="drill:d", job=KEY),
        ):
            await house.controller.submit(event)
        yield house


async def routes(house: Served) -> list[str]:
    """Every page that a GET reaches, with a name of the cluster in its hole."""
    journal = house.controller.journal
    names = {
        "jobs": ["7"], "nodes": ["n1", "n2"], "validation": ["n1"], "static": [],
        "incidents": [one.id for one in await journal.incidents()][:2], "orders": [one.order.id for one in await journal.orders()][:2],
    }  # fmt: skip
    found: list[str] = []
    for route in house.api.app.routes:
        if not isinstance(route, HTTPRoute) or "GET" not in route.methods or route.path in {"/live", "/v1/stream"}:
            continue
        kind = next((one for one in names if f"/{one}/" in f"{route.path}/"), "")
        holes = re.search(r"{\w+:\w+}", route.path)
        found += [re.sub(r"/{\w+:\w+}", f"/{name}", route.path) for name in (names.get(kind, ["7"]) if holes else [""])]
    async with house.browser() as http:
        kinds = [(await http.get(path)).headers.get("content-type", "") for path in found]
    return [path for path, kind in zip(found, kinds, strict=True) if kind.startswith("text/html")]


async def looked_at(page: Page, paths: list[str]) -> dict[str, dict]:
    """What is wrong on each page."""
    wrong = {}
    for path in paths:
        await page.goto(path, wait_until="domcontentloaded")
        found = await page.evaluate(LOOK)
        if found != CLEAN:
            wrong[path] = found
    return wrong


async def opened(browser: Browser, house: Served) -> tuple[Page, Watched]:
    made = await browser.new_context(base_url=house.url)
    page, watched = await made.new_page(), Watched()
    await log_in(page, Role.OPERATOR)
    watched.on(page)
    return page, watched


@needs_chromium
@pytest.mark.timeout(600)
@pytest.mark.attempt(actor=USER, asset=BROWSER, removed="cockpit.rendering.select_autoescape", each=tuple(EVIL))
def test_no_page_of_the_cockpit_obeys_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removing: Removing
) -> None:
    """Put markup into names, reasons, log lines, paths, notes and drills, and have every page opened."""

    async def work() -> None:
        async with hostile_house(tmp_path) as house, chromium() as browser:
            page, watched = await opened(browser, house)
            paths = await routes(house)
            assert len(paths) >= 15
            assert (await looked_at(page, paths), watched.errors) == ({}, [])
            removing(rendering, "select_autoescape", lambda **_named: False)
            monkeypatch.setattr(rendering, "ENVIRONMENT", rendering._environment())
            wrong = await looked_at(page, ["/", "/jobs", "/jobs/7", "/nodes/n1", "/incidents", "/audit"])
            assert all(wrong[path]["foreign"] for path in ("/jobs", "/jobs/7", "/nodes/n1", "/audit"))

    run(work)


def plain_environment(**named: object) -> jinja2.Environment:
    """An environment that escapes nothing."""
    return jinja2.Environment(**{**named, "autoescape": False})  # type: ignore[arg-type]


def a_report(folder: Path) -> str:
    (folder / "r.html").unlink(missing_ok=True)
    journal = folder / "j.db"
    if not journal.exists():
        make(journal, ALL)
    ran = CliRunner().invoke(app, ["report", "--journal", str(journal), "-o", str(folder / "r.html")])
    assert ran.exit_code == 0, ran.output
    return (folder / "r.html").read_text(encoding="utf-8")


def an_explanation(folder: Path) -> str:
    log = folder / "rank.log"
    lines = [f"[rank3]: torch.OutOfMemoryError: CUDA out of memory. {payload}" for payload in EVIL.values()]
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    catalogue = read_catalogue()
    return explain.page(explain.explain_logs([log], matcher=read_matcher(catalogue)), catalogue)


def a_stragglers_page(folder: Path) -> str:
    rows = [
        {"iteration": step, "global_rank": rank, "host": f"{ALL}{rank // 4}", "step_time": 1.6, "wait_s": 0.0 if rank == 5 else 0.6}
        for step in range(30)
        for rank in range(8)
    ]  # fmt: skip
    (folder / "w.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    ran = CliRunner().invoke(app, ["stragglers", str(folder / "w.jsonl"), "--html", str(folder / "p.html")])
    assert ran.exit_code in {0, 1}, ran.output
    return (folder / "p.html").read_text(encoding="utf-8")


FILES = {
    "report": (a_report, templating, "SandboxedEnvironment"),
    "explain": (an_explanation, explain, "Environment"),
    "stragglers": (a_stragglers_page, stragglers, "Environment"),
}


@needs_chromium
@pytest.mark.timeout(600)
@pytest.mark.attempt(
    actor=USER,
    asset=BROWSER,
    removed="report.templating.SandboxedEnvironment, cli.explain.Environment, cli.stragglers.Environment",
    each=tuple(f"{kind}: {name}" for kind in FILES for name in EVIL),
)
def test_no_page_in_a_file_obeys_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removing: Removing) -> None:
    """Put markup into what a report, an explanation and a page of stragglers show; such a file has no policy of contents."""

    async def work() -> None:
        async with chromium() as browser:
            page = await browser.new_page()
            for kind, (write, module, name) in FILES.items():
                file = tmp_path / f"{kind}.html"
                file.write_text(await asyncio.to_thread(write, tmp_path), encoding="utf-8")
                assert await look_at(page, file) == CLEAN, kind
                removing(module, name, plain_environment)
                monkeypatch.setattr(html, "plotly_script", str)  # it is large, and was loaded above
                file.write_text(await asyncio.to_thread(write, tmp_path), encoding="utf-8")
                found = await look_at(page, file)
                assert found["foreign"], kind

    async def look_at(page: Page, file: Path) -> dict:
        await page.goto(file.as_uri(), wait_until="domcontentloaded")
        return await page.evaluate(LOOK)

    run(work)


# --- terminals ---

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b31m\u202eevil\u2066\x00\x08\r\x7f\u2028x"
LIVE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
NAMES = {"job": "1778", "node": "node04", "incident": "i-2", "order": "o-2", "run": "x", "files": "", "name": "node04"}


@pytest.fixture(scope="module")
def escapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("escapes") / "journal.db", ESCAPES)


def said(journal: Path, *words: str) -> str:
    return CliRunner().invoke(app, [*words, "--journal", str(journal)], env={"COLUMNS": "200"}).output


@pytest.mark.attempt(actor=USER, asset=TERMINAL, removed="model.plain_text.UNSAFE")
@pytest.mark.parametrize(
    "command", ["jobs", "job 1778", "node show node04", "incidents", "incident i-1", "orders --all", "report"]
)
def test_no_command_passes_an_escape_on(attempt: Attempt, escapes: Path, command: str) -> None:
    """Put escapes of terminals, control characters and marks of direction into names, reasons and log lines."""
    attempt.without(plain_text, "UNSAFE", re.compile(r"(?!)"))
    attempt.judge(succeeded=LIVE.search(said(escapes, *command.split())) is not None)


def commands() -> list[list[str]]:
    """Every command that reads a journal, with names for what it asks."""
    found = []

    def walk(command: click.Command, words: list[str]) -> None:
        if isinstance(command, click.Group):
            for name, one in command.commands.items():
                walk(one, [*words, name])
        elif any("--journal" in getattr(one, "opts", ()) for one in command.params):
            asked = [one for one in command.params if isinstance(one, click.Argument) and one.required]
            found.append([*words, *(NAMES[str(one.name)] for one in asked)])

    for name in COMMANDS:
        walk(load(name), [name])
    return found


def test_every_command_that_reads_a_journal_is_plain_text(escapes: Path) -> None:
    """Walked as the command line has them: none prints a control character, whatever it says or refuses."""
    walked = [words for words in commands() if words[0] not in {"controller", "top"}]  # they go on until they are ended
    assert len(walked) >= 8
    assert [words for words in walked if LIVE.search(said(escapes, *words))] == []


# --- spreadsheets ---

FORMULAS = (
    "=1+1", "+1+cmd|' /C calc'!A0", "-2+3+cmd|' /C calc'!A0", "@SUM(1)", "\t=1+1", "\r=1+1", "\n=1+1", " =1+1", "\ufeff=1+1",
    "\uff1d1+1", "\uff0b1", "\uff0dSUM(1)", "\uff20SUM(1)", "-1e3+cmd|x",
)  # fmt: skip


@pytest.mark.attempt(actor=USER, asset=SHEET, removed="report.csv_form._safe")
@pytest.mark.parametrize("formula", FORMULAS)
def test_no_cell_is_a_formula(attempt: Attempt, formula: str) -> None:
    """Begin a name or a log line so that a spreadsheet computes it."""
    attempt.without(csv_form, "_safe", lambda value: value)
    (row,) = csv.reader(io.StringIO(csv_form.csv_lines([("x", formula)]), newline=""))
    attempt.judge(succeeded=row[1] == formula)


@pytest.mark.parametrize("value", ["-", "-1", "-1.5", "+3", "1e-3", "-1,000", "-5 %", "gpt", "", 5, -5.0])
def test_numbers_and_words_stay_as_they_are(value: object) -> None:
    """A notebook reads them as before."""
    (row,) = csv.reader(io.StringIO(csv_form.csv_lines([(value,)])))
    assert row == ([str(value)] if value != "" else [""])
