"""Plays histories one after the other on one pair of controllers, and has each judged. Called by the tests and by hand."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import checker
from .clients import Desk, look, run_clients
from .nemesis import Fault, Nemesis, plan
from .record import Journal, Op, Recorder, read_history, read_journal
from .servers import Servers, site

REQUESTS = 8
"""Of each client, or half of it."""


@dataclass
class Outcome:
    """What many histories have shown."""

    histories: int = 0
    ops: list[Op] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    verdict: checker.Verdict = field(default_factory=checker.Verdict)

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        asked = ", ".join(f"{count} {kind}" for kind, count in sorted(self.outcomes.items()))
        seen = self.verdict
        return (
            f"{self.histories} histories, {len(self.ops)} requests ({asked}); faults: {faults}; "
            f"{seen.acknowledged} acknowledged, {seen.lost} lost, {seen.doubled} doubled, {len(seen.complaints)} complaints"
        )

    def add(self, found: checker.Verdict) -> None:
        self.verdict.acknowledged += found.acknowledged
        self.verdict.lost += found.lost
        self.verdict.doubled += found.doubled
        self.verdict.complaints += found.complaints

    def add_last(self, found: checker.Verdict) -> None:
        """The verdict on all histories together: what it counts was counted before, if it was so then."""
        self.verdict.lost = max(self.verdict.lost, found.lost)
        self.verdict.doubled = max(self.verdict.doubled, found.doubled)
        self.verdict.complaints += found.complaints


def planned(seed: int, number: int, store: str) -> tuple[random.Random, list[Fault]]:
    """The generator of one history, and its faults: both follow from the seed and the number alone."""
    rng = random.Random(f"{seed} {number} {store}")
    return rng, plan(rng, store)


async def play(
    folder: Path,
    *,
    seed: int,
    count: int,
    store: str,
    first: int = 0,
    say: Callable[[str], object] = print,
    requests: int = REQUESTS,
) -> Outcome:
    """Play `count` histories; ends after the first that has complaints. Files stay in `folder`."""
    outcome = Outcome()
    async with site(folder, store) as servers:
        await servers.begin()
        start = read_journal(servers.journal)
        outcome.add(checker.judge([], start))
        for number in range(first, first + count):
            start = await _one(servers, folder, seed, number, start, outcome, requests)
            if outcome.verdict.complaints:
                say(f"history {number} of seed {seed} over {store}: see {folder}/history-{number}.jsonl")
                break
            if (number + 1) % 25 == 0:
                say(f"{store}, seed {seed}: {outcome}")
        outcome.add_last(checker.judge(outcome.ops, read_journal(servers.journal), checker.ENDURING))
    return outcome


async def _one(
    servers: Servers, folder: Path, seed: int, number: int, before: Journal, outcome: Outcome, requests: int
) -> Journal:
    """One history; returns what is stored after it."""
    rng, faults = planned(seed, number, servers.store)
    path = folder / f"history-{number}.jsonl"
    recorder = Recorder(path)
    desk = Desk(
        recorder,
        rng,
        f"h{number}",
        servers.tokens,
        [server.url for server in servers.servers],
        servers.job,
        servers.nodes,
        before.seq,
    )
    nemesis = asyncio.create_task(Nemesis(servers, recorder.note).run(faults))
    nemesis.add_done_callback(lambda _: desk.calm.set())
    try:
        await run_clients(desk, requests)
    finally:
        await asyncio.gather(nemesis)
        servers.heal()
    await look(desk, await servers.ready())
    recorder.close()
    ops = read_history(path.read_text(encoding="utf-8").splitlines())
    after = read_journal(servers.journal, after=before.seq, before=before.head or Journal.before)
    outcome.histories += 1
    outcome.ops += ops
    outcome.outcomes.update(op.outcome for op in ops)
    outcome.faults.update(fault.kind for fault in faults)
    outcome.add(checker.judge(ops, after))
    (folder / f"journal-{number}.json").write_text(json.dumps(vars(after), default=vars))
    return after
