"""A report's language and time zone: fixed words, sentence templates, and how a moment is written.

Called by every form of report. Reports are put together in English; a form hands each heading, label and sentence to
`Words.say` as it prints it. A sentence with figures in it is found by its template (`{n} failures after {m} ...`), so
that the code that computes knows one language only. What has no entry (names, rules, log lines, stories in the journal)
stays as it is. No time passes here; the zone's rules are read from the machine's or Python's own table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from zoneinfo import ZoneInfo

from msgspec import Struct

from holdfast.report.words_ja import JAPANESE

LANGUAGES: Mapping[str, Mapping[str, str]] = {"en": {}, "ja": JAPANESE}
"""Language -> English word or template -> its form there."""
_FIELD = re.compile(r"\{(\w+)\}")


class Words(Struct, frozen=True):
    """How a report speaks."""

    language: str = "en"
    zone: str = "UTC"

    def say(self, text: str) -> str:
        """A fixed word or a sentence in this language; as it is where the table has none."""
        table = LANGUAGES[self.language]
        if not table or not text:
            return text
        if text in table:
            return table[text]
        # Several sentences in a row are translated one by one, and clauses that a semicolon parts.
        for pattern, form in _templates(self.language):
            found = pattern.fullmatch(text)
            if found is not None:
                return form.format(**{name: self.say(value) for name, value in found.groupdict().items()})
        return text

    def time(self, at: float) -> str:
        """`2026-11-20 18:04:07.123 UTC`, or in the chosen zone; a dash for an unknown time."""
        if not at:
            return "-"
        moment = datetime.fromtimestamp(at, _zone(self.zone))
        return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + f" {moment.tzname()}"

    def clock(self, at: float) -> str:
        """`18:04:07.123` in the chosen zone, a dash for an unknown time."""
        return datetime.fromtimestamp(at, _zone(self.zone)).strftime("%H:%M:%S.%f")[:-3] if at else "-"

    def offset_s(self, at: float) -> float:
        """Seconds that the zone is ahead of UTC at a moment."""
        if self.zone == "UTC":
            return 0.0
        ahead = datetime.fromtimestamp(at, _zone(self.zone)).utcoffset()
        return ahead.total_seconds() if ahead is not None else 0.0


ENGLISH = Words()


@cache
def _zone(name: str) -> ZoneInfo:
    """Raises ZoneInfoNotFoundError or ValueError for a name that is no zone."""
    return UTC if name == "UTC" else ZoneInfo(name)  # type: ignore[return-value]


@cache
def _templates(language: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Templates of a language as patterns, the most particular ones (most fixed text) first."""
    table = LANGUAGES[language]
    keyed = sorted((key for key in table if _FIELD.search(key)), key=lambda key: -len(_FIELD.sub("", key)))
    return tuple((_pattern(key), table[key]) for key in keyed)


def _pattern(template: str) -> re.Pattern[str]:
    parts, seen, last = [], set(), 0
    for field in _FIELD.finditer(template):
        name = field[1]
        parts.append(re.escape(template[last : field.start()]))
        parts.append(f"(?P={name})" if name in seen else f"(?P<{name}>.+?)")
        seen.add(name)
        last = field.end()
    return re.compile("".join([*parts, re.escape(template[last:])]), re.DOTALL)
