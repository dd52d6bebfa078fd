"""`holdfast simulate --replay JOURNAL --policy FILE`: what another policy would have done with a recorded history.

Called by `simulate.py`. Reads the journal of a controller or of a job's launcher, dead or alive, and changes nothing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from rich.table import Table
from rich.text import Text

from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.cli import screen
from holdfast.cli.json_forms import fields_of
from holdfast.cli.records import open_journal_file
from holdfast.errors import NotFoundError, UsageError
from holdfast.ports import Entry
from holdfast.sim.counterfactual import Replayed, Told, recorded_in, replay
from holdfast.sim.side_by_side import Case, Line, compare, form, totals


def show_replay(journal: str, policy: Path | None, *, show_all: bool = False, json: bool = False) -> None:
    """Print both accounts of a journal's history side by side.

    Args:
        journal: the journal's file, its folder, or its URL.
        policy: the other policy.
        show_all: also incidents in which both did the same.
        json: print the stable form of docs/json-forms.md.

    Raises:
        UsageError: no policy was named.
        NotFoundError: there is no such journal, or it holds nothing.
        ConfigError: the policy is not understood.
    """
    if policy is None:
        raise UsageError("--replay compares with another policy: name it with --policy FILE")
    presets = packaged_presets()
    policies, _ = read_policy(policy, presets)
    entries, then = asyncio.run(_read(journal))
    if not entries:
        raise NotFoundError(f"the journal {journal} holds no events, so there is nothing to replay")
    made = replay(entries, policies, recorded=then.orders, presets=presets)
    cases = compare(then, made.told)
    if json:
        facts = {"journal": journal, "policy": str(policy), **fields_of(made, "events first_at last_at complete")}
        screen.say_json(form(cases, then, made.told, **facts))
    else:
        _print(cases, then, made, policy=str(policy), show_all=show_all)


async def _read(name: str) -> tuple[list[Entry], Told]:
    journal = open_journal_file(name)
    try:
        return await recorded_in(journal)
    finally:
        await journal.close()


def _print(cases: list[Case], then: Told, made: Replayed, *, policy: str, show_all: bool) -> None:
    odd = [case for case in cases if case.differs]
    lasted = screen.span(made.last_at - made.first_at)
    screen.say(f"{made.events} events of {lasted}, {len(cases)} incidents. Under {policy}:")
    if not made.complete:
        screen.say("The journal has dropped its oldest events, so what was before them is not known to the replay.")
    screen.say("")
    for case in cases if show_all else odd:
        screen.console().print(_case_table(case))
        screen.say("")
    if not odd:
        screen.say("Nothing would have been done differently.")
        return
    screen.console().print(_totals_table(totals(then), totals(made.told)))
    same = len(cases) - len(odd)
    rest = f" {same} of {len(cases)} incidents would have gone the same way." if same else ""
    screen.say(f"\n~ rests on a guess: what would have come of an order that was not given is not known.{rest}")


def _case_table(case: Case) -> Table:
    rows: list[tuple[screen.Cell, ...]] = [("", _cause(case.cause_then), _cause(case.cause_now))]
    rows += [(screen.span(max(0.0, line.after_s)), line.then, _now(line)) for line in case.lines]
    rows.append(("", _outcome(case.outcome_then), _outcome(case.outcome_now)))
    title = f"{case.incident or 'new'}: {screen.fold(case.about) or 'the cluster'}"
    return screen.table("after", "then", "now", rows=rows, title=title, right=("after",))


def _now(line: Line) -> Text:
    text = f"~ {line.now}" if line.assumed and line.now else line.now
    return Text(screen.clean(text), style="" if line.then == line.now else "bold yellow")


def _cause(cause: str) -> Text:
    return Text(screen.clean(cause), style="dim")


def _outcome(outcome: str) -> Text:
    return screen.state(outcome) if outcome else Text("no incident", style="dim")


def _totals_table(then: dict[str, int], now: dict[str, int]) -> Table:
    kinds = sorted(then.keys() | now.keys())
    rows = ((kind.replace("_", " "), then.get(kind, 0), now.get(kind, 0)) for kind in kinds)
    return screen.table("orders", "then", "now", rows=rows, right=("then", "now"))
