"""One table of a report, in the report's language. Made by `sections`, `coverage` and `single`; drawn by every form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.report.words import Words


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
