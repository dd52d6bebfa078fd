"""What a validation leaves behind and shows: screen, files, the journal's history. Called by `cli.validate`.

The journal is opened for a moment only; one that cannot be written costs the history, never the run's result.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.text import Text

from holdfast.adapters.journal import open_journal
from holdfast.cli import screen
from holdfast.cli.answer import Answer
from holdfast.cli.json_forms import form
from holdfast.errors import JournalError, NotFoundError, UsageError
from holdfast.report.csv_form import csv_lines
from holdfast.report.validation import render_history, render_html, render_markdown
from holdfast.validate.history import Trend, read, samples_of, trends
from holdfast.validate.results import Item, NodeResult, Run, Verdict

STYLES = {Verdict.PASS: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red", Verdict.ABSENT: "dim"}


def keep(run: Run, url: str) -> list[Trend]:
    """Add the run to its history and say what became of each figure; without a journal nothing."""
    if not url:
        return []
    try:
        return asyncio.run(_keep(run, url))
    except JournalError as error:
        screen.say(f"holdfast: the history is not kept: {error}", err=True)
        return []


async def _keep(run: Run, url: str) -> list[Trend]:
    journal = open_journal(url)
    try:
        await journal.add_samples(samples_of(run))
        found = await read(journal)
    finally:
        await journal.close()
    here = {node.node for node in run.nodes}
    return [trend for trend in trends(found) if trend.node in here]


def export(run: Run, found: Sequence[Trend], path: Path) -> None:
    """Write the run in the form that the file's name asks for. Raises UsageError for another."""
    _write(
        path,
        html=lambda: render_html(run, found).encode(),
        md=lambda: render_markdown(run, found).encode(),
        json=lambda: screen.pretty(run),
        csv=lambda: as_csv(run).encode(),
    )


def _write(path: Path, **forms: Callable[[], bytes]) -> None:
    suffix = {".htm": "html"}.get(path.suffix.lower(), path.suffix.lower().removeprefix("."))
    if suffix not in forms:
        *most, last = (f".{name}" for name in forms)
        raise UsageError(f"--report {path}: name a {', '.join(most)} or {last}")
    path.parent.mkdir(parents=True, exist_ok=True)
    screen.save(path, forms[suffix]())


def as_csv(run: Run) -> str:
    """One row for each item of each node (RFC 4180)."""
    rows: list[Sequence[object]] = [
        ("node", "rank", "item", "verdict", "value", "unit", "text", "expected", "source", "why", "advice")
    ]
    for node in run.nodes:
        for item in node.items:
            value = "" if item.value is None or not math.isfinite(item.value) else item.value
            cells = (item.unit, item.text, item.expected, item.source, item.why, item.advice)
            rows.append((node.node, node.rank, item.name, item.verdict.value, value, *cells))
        if node.lost:
            rows.append((node.node, node.rank, "lost", Verdict.FAIL.value, "", "", "", "", "", node.lost, ""))
    return csv_lines(rows)


def print_run(run: Run, found: Sequence[Trend], *, quiet: bool) -> None:
    """The run on the screen: a node's line each, then what is wrong with it; a single node in full."""
    console = screen.console()
    if len(run.nodes) == 1 and not quiet:
        items = run.nodes[0].items
        rows = ((item.name, _word(item.verdict), item.measured, item.expected) for item in items)
        headings = ("item", "verdict", "measured", "expected")
        console.print(screen.table(*headings, rows=rows, keep=("item", "verdict")))
    elif not quiet:
        console.print(
            screen.table(
                *("node", "verdict", "rank", "figures", "what"),
                rows=((node.node, _word(node.verdict), node.rank, len(node.items), _bad(node)) for node in run.nodes),
                keep=("node", "verdict"),
            )
        )
    for node in run.nodes:
        _problems(node.node, node.items, node.lost)
    for line in (*run.rounds, *run.notes):
        if not quiet:
            screen.say(screen.clean(line))
    for trend in found:
        if trend.told:
            screen.say(screen.clean(f"{trend.node}: {trend.told}"))
    blamed = screen.fold(run.blamed) if run.blamed else ""
    count = f"{len(run.nodes)} node{'s' * (len(run.nodes) != 1)}"
    told = f"not fit: {blamed}" if blamed else "fit" if run.verdict is not Verdict.WARN else "fit, with warnings"
    screen.say(f"{told} ({count}: {', '.join(run.suites)}, {run.seconds:.0f} s)")


def _word(verdict: Verdict) -> Text:
    return Text(verdict.value, style=STYLES[verdict])


def _bad(node: NodeResult) -> str:
    bad = [item.name for item in node.items if item.verdict in {Verdict.WARN, Verdict.FAIL}]
    return "lost" if node.lost else ", ".join(bad)


def _problems(node: str, items: Sequence[Item], lost: str) -> None:
    if lost:
        screen.say(screen.clean(f"{node}: LOST: {lost}"))
    for item in items:
        if item.verdict in {Verdict.WARN, Verdict.FAIL}:
            advice = f"; {item.advice}" if item.advice else ""
            screen.say(screen.clean(f"{node}: {item.verdict.upper()} {item.name}: {item.why or item.shown}{advice}"))


def history_answer(url: str, *, node: str, items: tuple[str, ...], report: Path | None) -> Answer:
    """The trends of this history, which are also written to `report`.

    Raises:
        NotFoundError: there is no history, or none of these.
        UsageError: the file's name asks for no known form.
    """
    head, _, name = url.partition("///")
    if not url or (head == "sqlite:" and not Path(name).exists()):
        raise NotFoundError(f"there is no history in {name or 'no journal'}: `holdfast validate` begins one")
    found = asyncio.run(_history(url, node, items))
    if not found:
        raise NotFoundError(f"no history of {node or 'any node'}{': ' + ', '.join(items) if items else ''}")
    if report is not None:
        points = [(one.node, one.item, point.at, point.value) for one in found for point in one.points]
        _write(
            report,
            html=lambda: render_history(found).encode(),
            csv=lambda: csv_lines([("node", "item", "at", "value"), *points]).encode(),
            json=lambda: screen.pretty(form(trends=found)),
        )
    ends = ((trend, trend.points[0].value, trend.points[-1].value) for trend in found)
    rows = ((one.node, one.item, len(one.points), f"{a:.4g}", f"{z:.4g}", one.told) for one, a, z in ends)
    headings = ("node", "item", "runs", "first", "last", "what")
    table = screen.table(*headings, rows=rows, right=("runs", "first", "last"))
    return Answer(lambda: form(trends=found), lambda: [table])


async def _history(url: str, node: str, items: tuple[str, ...]) -> list[Trend]:
    journal = open_journal(url)
    try:
        found = trends(await read(journal, node=node))
    finally:
        await journal.close()
    return [trend for trend in found if not items or trend.item in items]
