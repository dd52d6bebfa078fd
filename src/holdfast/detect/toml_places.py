"""Line numbers for what `tomllib` parsed, so that an error in a rule file can name its line.

Called by the catalogue loader only when something is wrong, or to give each rule its place. Pure; no time passes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_HEADER = re.compile(r"^\s*(\[\[?)\s*([A-Za-z0-9_.\"'-]+)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"^\s*([A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')\s*=")


class TomlPlaces:
    """Where tables and keys of one TOML text stand.

    Attributes:
        tables: (name, index) -> line of the `[[name]]` or `[name]` header; index counts arrays of tables from 0.
        keys: (name, index, key) -> line of `key = ...`; the top level has name "" and index 0.
    """

    def __init__(self, text: str) -> None:
        self.tables: dict[tuple[str, int], int] = {}
        self.keys: dict[tuple[str, int, str], int] = {}
        counts: dict[str, int] = {}
        table = ("", 0)
        closing = ""
        depth = 0
        for number, line in enumerate(text.splitlines(), start=1):
            if closing:
                if closing in line:
                    closing = ""
                continue
            if depth == 0 and (header := _HEADER.match(line)):
                name = header.group(2)
                index = counts.get(name, 0)
                counts[name] = index + 1
                table = (name, index)
                self.tables[table] = number
                continue
            if depth == 0 and (key := _KEY.match(line)):
                self.keys[*table, key.group(1).strip("\"'")] = number
            closing = _opens_multiline(line)
            if not closing:
                depth = max(0, depth + _bracket_balance(line))

    def line(self, name: str, index: int, key: str = "") -> int:
        """The line of a key, else of its table, else 0."""
        return self.keys.get((name, index, key), 0) or self.tables.get((name, index), 0)


def _opens_multiline(line: str) -> str:
    for quote in ("'''", '"""'):
        if line.count(quote) % 2:
            return quote
    return ""


def _bracket_balance(line: str) -> int:
    """How many array brackets stay open at the end of the line, strings and comments left out."""
    bare = re.sub(r"'''.*?'''|\"\"\".*?\"\"\"|'[^']*'|\"(?:\\.|[^\"\\])*\"", "", line).split("#", 1)[0]
    return bare.count("[") - bare.count("]")


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean "x"?)` for the most similar known word, or an empty text."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f' (did you mean "{found[0]}"?)' if found else ""
