"""Tables that every form of report shows, as plain strings: sections, incident timelines, totals, lost time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.model.evidence import Place
from holdfast.model.records import PHASE_MARKS, IncidentRecord, Mark
from holdfast.report.definitions import definition
from holdfast.report.figures import CATEGORIES, Spread, Totals
from holdfast.report.timeline import timeline
from holdfast.report.words import ENGLISH, Words


def seconds(value: float | None) -> str:
    """`0.042 s`, `1.3 s`, `2 min 05 s`, `3 h 07 min`, or a dash."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value:.3f} s"
    if value < 120:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def short(value: float) -> str:
    """Four digits of a figure, or all before the point: `0.5196`, `942.5`, `12040000`."""
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def percent(ratio: float | None) -> str:
    """`70.5 %` of a ratio of 0.705, or a dash."""
    return "-" if ratio is None else f"{100.0 * ratio:.1f} %"


def utc(at: float) -> str:
    """`2026-11-20 18:04:07.123 UTC`, a dash for an unknown time."""
    return ENGLISH.time(at)


def cause(incident: IncidentRecord) -> str:
    """The diagnosis in one line."""
    if incident.diagnosis is None:
        return "not diagnosed"
    return incident.diagnosis.summary or incident.diagnosis.cause


def suspects(incident: IncidentRecord) -> str:
    """Nodes, ranks and GPUs that the diagnosis blames, or a dash."""
    found = incident.diagnosis
    if found is None:
        return "-"
    parts = [*found.nodes, *(str(Place(rank=rank)) for rank in found.ranks), *(f"GPU {gpu}" for gpu in found.gpus)]
    return ", ".join(parts) or "-"


def offsets(incident: IncidentRecord, words: Words = ENGLISH) -> list[tuple[str, str]]:
    """(heading, seconds after the fault) for every column of a timeline, a dash where a mark is not known."""
    known = timeline(incident).offsets
    values = {mark: f"+{known[mark]:.3f}" if mark in known else "-" for mark in PHASE_MARKS}
    values[Mark.FAULT] = words.clock(incident.marks.get(Mark.FAULT, 0.0))
    return [(words.say(mark.value.replace("_", " ")), value) for mark, value in values.items()]


def total_rows(totals: Totals, words: Words = ENGLISH) -> list[tuple[str, str, str]]:
    """(figure, value, meaning) for each total."""
    recovered = f"{totals.recovered} of {totals.incidents} recovered"
    if totals.open:
        recovered += f", {totals.open} open"
    rows = [
        ("incidents", recovered, "one underlying trouble each, from first evidence to proven recovery"),
        ("MTTD", _spread(totals.mttd), definition("MTTD").name),
        ("MTTR", _spread(totals.mttr), definition("MTTR").name),
        ("MTTP", _spread(totals.mttp), definition("MTTP").name),
        ("MTBF", seconds(totals.mtbf_s), definition("MTBF").name),
        ("lost steps", str(totals.steps_lost), definition("lost steps").name),
        ("ETTR", "-" if totals.ettr is None else f"{totals.ettr:.3f}", definition("ETTR").name),
        (
            "goodput",
            "-" if totals.goodput_percent is None else f"{totals.goodput_percent:.1f} %",
            definition("goodput").name,
        ),
    ]
    return [(words.say(name), words.say(value), words.say(meaning)) for name, value, meaning in rows]


LEAST_S = 0.0005
"""Less is shown as nothing."""


def badput_rows(totals: Totals, words: Words = ENGLISH) -> list[tuple[str, str]]:
    """(category, seconds) of lost time, largest first; categories with nothing are left out."""
    rows = sorted(((name, totals.badput.get(name, 0.0)) for name in CATEGORIES), key=lambda row: -row[1])
    load = totals.image_load_s
    part = {"startup": f" ({words.say('image load')} {seconds(load)})"} if load >= LEAST_S else {}
    return [(words.say(name), seconds(value) + part.get(name, "")) for name, value in rows if value >= LEAST_S]


def _spread(spread: Spread) -> str:
    if not spread.n:
        return "-"
    return f"{seconds(spread.mean)} (n={spread.n}, p95 {seconds(spread.p95)})"


class Section(Struct, frozen=True):
    """One table. Columns named in `numbers` are set to the right."""

    key: str
    title: str
    intro: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[str] = frozenset()


def table(
    key: str,
    title: str,
    intro: str,
    headings: Sequence[str],
    rows: Iterable[tuple[str, ...]],
    *,
    numbers: Sequence[str] = (),
) -> Section:
    """A table in English; without rows it has no introduction."""
    found = tuple(rows)
    return Section(key, title, intro if found else "", tuple(headings), found, frozenset(numbers))


def spoken(section: Section, words: Words) -> Section:
    """The same table in the report's language; `numbers` names its columns in that language."""
    if words.language == "en":
        return section
    return Section(
        section.key,
        words.say(section.title),
        words.say(section.intro),
        tuple(words.say(heading) for heading in section.headings),
        tuple(tuple(words.say(value) for value in row) for row in section.rows),
        frozenset(words.say(heading) for heading in section.numbers),
    )
