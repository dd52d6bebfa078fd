"""A report's language and time zone: fixed words, sentence templates, and how a moment is written.

Called by every form of report. Reports are put together in English; a form hands each heading, label and sentence to
`Words.say` as it prints it. A sentence with figures in it is found by its template (`{n} failures after {m} ...`), so
that the code that computes knows one language only. What has no entry (names, rules, log lines, what a rule found)
stays as it is; so do lines of a story of which no template is known. No time passes here; the zone's rules are read
from the machine's or Python's own table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Literal
from zoneinfo import ZoneInfo

from msgspec import Struct

from holdfast.report.definitions import DEFINITIONS
from holdfast.report.words_ja import FORMULAS, JAPANESE
from holdfast.report.words_ja_story import PHRASES, STORY

LANGUAGES: Mapping[str, Mapping[str, str]] = {
    "en": {},
    "ja": JAPANESE | {entry.formula: FORMULAS.get(entry.symbol, entry.formula) for entry in DEFINITIONS},
}
"""Language -> English word or template -> its form there."""
STORIES: Mapping[str, Mapping[str, str]] = {"en": {}, "ja": STORY}
"""The same for the lines of a story."""
DIAGNOSES: Mapping[str, Mapping[str, str]] = {"en": {}, "ja": PHRASES}
"""Language -> pattern of a sentence in a diagnosis -> its form there."""
_FIELD = re.compile(r"\{(\w+)\}")
COUNTS = {"n", "m", "k"}
"""Fields of a template that stand for a number only; any other one for any text."""
NAMES = {"job", "node"}
"""Fields for a name, which has no spaces."""
AS_WRITTEN = {"holder", "table", "why"}
"""Fields that no language changes: what others named or said."""
DEPTH_MAX = 8
"""A sentence inside a sentence: deeper, it is somebody's text and no sentence of a story."""
_LINE = re.compile(r"(\d\d):(\d\d):(\d\d)Z (.*)", re.DOTALL)
"""A line of a story: its time of day in UTC, its sentence."""
OPENINGS = {"Seen", "Diagnosis", "recovered"}
"""Words before a colon that are no name of a job or node."""
_SUBJECT = re.compile(r"(Job )?(\S+): (.+)", re.DOTALL)


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
        for pattern, form in _templates(self.language, "say"):
            found = pattern.fullmatch(text)
            if found is not None:
                values = found.groupdict().items()
                return form.format(**{k: v if k in AS_WRITTEN else self.say(v) for k, v in values})
        return text

    def tell(self, line: str, at: float) -> str:
        """A line of an incident's story: its clock in the zone, its sentence in the language, as far as it is known.

        Args:
            line: `18:04:07Z Job 7(0): released.`
            at: a moment near it, Unix seconds: how far the zone is ahead then.
        """
        found = _LINE.fullmatch(line)
        if found is None:
            return self._told(line)
        clock = f"{found[1]}:{found[2]}:{found[3]}Z"
        if self.zone != "UTC":
            moment = datetime.fromtimestamp(at, _zone(self.zone))
            passed = int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3]) + round(self.offset_s(at))
            hours, rest = divmod(passed % 86400, 3600)
            clock = f"{hours:02}:{rest // 60:02}:{rest % 60:02} {moment.tzname()}"
        return f"{clock} {self._told(found[4])}"

    def _told(self, sentence: str, depth: int = 0) -> str:
        table = STORIES[self.language]
        if not table or sentence in table or depth == DEPTH_MAX:
            return table.get(sentence, sentence)
        subject = _SUBJECT.fullmatch(sentence)
        if subject is not None and subject[2] not in OPENINGS:
            return f"{self.say('Job') + ' ' if subject[1] else ''}{subject[2]}: {self._told(subject[3], depth + 1)}"
        for pattern, form in _templates(self.language, "tell"):
            found = pattern.fullmatch(sentence)
            if found is not None:
                values = {name: self._told(value, depth + 1) for name, value in found.groupdict().items()}
                if "nodes" in values:
                    values["nodes"] = values["nodes"].replace(" and ", ", ")
                return form.format(**values)
        return self.say(sentence)

    def explain(self, diagnosis: str) -> str:
        """A diagnosis in this language: what a rule found stays, what follows from it is translated."""
        for pattern, form in DIAGNOSES[self.language].items():
            diagnosis = re.sub(pattern, form, diagnosis)
        return diagnosis

    def time(self, at: float) -> str:
        """`2026-11-20 18:04:07.123 UTC`, or in the chosen zone; a dash for an unknown time."""
        if not at:
            return "-"
        moment = datetime.fromtimestamp(at, _zone(self.zone))
        return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + f" {moment.tzname()}"

    def clock(self, at: float) -> str:
        """`18:04:07.123` in the chosen zone, a dash for an unknown time."""
        return datetime.fromtimestamp(at, _zone(self.zone)).strftime("%H:%M:%S.%f")[:-3] if at else "-"

    def month(self, year: int, number: int) -> float:
        """When a month begins in the chosen zone, Unix seconds; `number`: 0 to 11."""
        return datetime(year, number + 1, 1, tzinfo=_zone(self.zone)).timestamp()

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
def _templates(language: str, of: Literal["say", "tell"]) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Templates of a language as patterns, the most particular ones (most fixed text) first."""
    table = (LANGUAGES if of == "say" else STORIES)[language]
    keyed = sorted((key for key in table if _FIELD.search(key)), key=lambda key: -len(_FIELD.sub("", key)))
    return tuple((_pattern(key), table[key]) for key in keyed)


def _pattern(template: str) -> re.Pattern[str]:
    parts, seen, last = [], set(), 0
    for field in _FIELD.finditer(template):
        name = field[1]
        parts.append(re.escape(template[last : field.start()]))
        value = r"[\d.,]+" if name in COUNTS else r"\S+" if name in NAMES else ".+?"
        parts.append(f"(?P={name})" if name in seen else f"(?P<{name}>{value})")
        seen.add(name)
        last = field.end()
    return re.compile("".join([*parts, re.escape(template[last:])]), re.DOTALL)
