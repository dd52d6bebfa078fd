"""What the newest validation said of a node, suite by suite, in words: kept beside the figures in the series store.

A sample has a subject of bounded length and one number, so a suite's items are written as one JSON text, cut into
pieces: series `validate.told`, subject `node:NAME/SUITE/PIECE.PIECES=TEXT`, value the suite's severity. `told_of`
turns a run into samples, `latest` brings the newest of each suite back. Pure but for `read_latest`; times are the runs'
begins.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from holdfast.ports import Journal, Sample
from holdfast.validate.registry import SUITES
from holdfast.validate.results import SEVERITY, Item, NodeResult, Run, Verdict, worst

TOLD = "validate.told"
SUBJECT_MAX = 300
"""Characters that every journal keeps of a subject."""
PIECES_MAX = 99
TEXT_MAX = 300
"""Characters of one word of an item: a reason, an advice."""
LOST = "lost"
VERDICTS = {rank: verdict for verdict, rank in SEVERITY.items()}
_SUITE_OF = {step.name: suite.name for suite in SUITES.values() for step in suite.steps}


class Told(Struct, frozen=True, array_like=True):
    """One item in words."""

    name: str
    verdict: Verdict = Verdict.PASS
    measured: str = ""
    expected: str = ""
    why: str = ""
    advice: str = ""


class SuiteWord(Struct, frozen=True, kw_only=True):
    """The newest word of one suite about one node."""

    suite: str
    at: float
    verdict: Verdict
    items: tuple[Told, ...]
    """What is wrong first."""


def suite_of(item: str) -> str:
    """The suite that an item belongs to by its name; a step that did not end (`cpu-stress.ended`) to its suite."""
    head = item.partition(".")[0]
    return _SUITE_OF.get(head, "shared" if head.startswith("shared-") else head)


def told_of(run: Run) -> list[Sample]:
    """A run's words as samples."""
    return [sample for node in run.nodes for sample in _node(node, run.at)]


def _node(node: NodeResult, at: float) -> list[Sample]:
    items = [*node.items]
    if node.lost:
        items.append(Item(name=LOST, verdict=Verdict.FAIL, why=node.lost, advice="see its console and its kernel log"))
    by_suite: dict[str, list[Item]] = {}
    for item in items:
        by_suite.setdefault(suite_of(item.name), []).append(item)
    found = []
    for suite, members in by_suite.items():
        value = float(SEVERITY[worst(item.verdict for item in members)])
        found += [Sample(TOLD, subject, at, value) for subject in _subjects(f"node:{node.node}/{suite}/", members)]
    return found


def _subjects(head: str, items: Sequence[Item]) -> list[str]:
    """The suite's items in as many subjects as they need; fewer items if need be, none where a name leaves no room."""
    room = SUBJECT_MAX - len(head) - len("99.99=")
    if room < 40:
        return []
    told = sorted((_told(item) for item in items), key=_order)
    while told:
        text = msgspec.json.encode(told).decode()
        pieces = [text[begin : begin + room] for begin in range(0, len(text), room)]
        if len(pieces) <= PIECES_MAX:
            return [f"{head}{number}.{len(pieces)}={piece}" for number, piece in enumerate(pieces, 1)]
        told = told[: len(told) // 2]
    return []


def _order(one: Told) -> tuple[int, str]:
    return -SEVERITY[one.verdict], one.name


def _told(item: Item) -> Told:
    expected = f"{item.expected} ({item.source})" if item.expected and item.source else item.expected
    words = (item.shown, expected, item.why, item.advice)
    return Told(item.name[:120], item.verdict, *(_short(word) for word in words))


def _short(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 3]}..."


def latest(samples: Sequence[Sample]) -> list[SuiteWord]:
    """The newest word of each suite about the one node that all samples are of, the worst first.

    What is torn or not ours is left out. What is about a run as a whole (a lost node) holds until the next run.
    """
    by_suite: dict[str, dict[tuple[float, int], dict[int, str]]] = {}
    for one in sorted(samples, key=lambda sample: sample.at):
        where, mark, text = one.subject.partition("=")
        head, _, numbers = where.rpartition("/")
        number, _, pieces = numbers.partition(".")
        if mark and number.isdecimal() and pieces.isdecimal() and len(numbers) <= 5:
            runs = by_suite.setdefault(head.rpartition("/")[2], {})
            runs.setdefault((one.at, int(pieces)), {})[int(number)] = text
    found = [word for suite, runs in by_suite.items() if (word := _newest(suite, runs)) is not None]
    last = max((word.at for word in found), default=0.0)
    found = [word for word in found if word.suite in SUITES or word.at == last]
    return sorted(found, key=lambda one: (-SEVERITY[one.verdict], one.suite))


def _newest(suite: str, runs: dict[tuple[float, int], dict[int, str]]) -> SuiteWord | None:
    """The newest whole one."""
    for (at, count), parts in reversed(runs.items()):
        try:
            text = "".join(parts[piece] for piece in range(1, count + 1))
            items = msgspec.json.decode(text, type=tuple[Told, ...])
        except (KeyError, msgspec.MsgspecError):
            continue
        if items:
            return SuiteWord(suite=suite, at=at, verdict=worst(item.verdict for item in items), items=items)
    return None


async def read_latest(journal: Journal, node: str, *, after: float = 0.0) -> list[SuiteWord]:
    """The newest word of each suite about a node, of runs that began after `after` (Unix seconds)."""
    return latest(await journal.samples(TOLD, f"node:{node}/*", after=after))
