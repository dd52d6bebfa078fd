"""A block of text without its colour codes, and where its lines stood with them.

Codes would stand between and inside the words that rules look for. Called by the matcher, which remembers which
streams are coloured: in a plain one codes are looked for behind the search, when the block lies in the cache.
"""

from __future__ import annotations

from holdfast.detect.lines import ANSI


class Uncoloured:
    """Lines keep their numbers when their codes are taken out, so that places can be found again.

    Attributes:
        text: the lines without codes.
    """

    def __init__(self, original: bytes) -> None:
        self.text = ANSI.sub(b"", original)
        self._original = original
        self._line = self._place = 0

    def place(self, line: int) -> int:
        """Where this line (from 0; not below the one asked for before) begins in the original."""
        while self._line < line:
            self._place = self._original.find(b"\n", self._place) + 1
            self._line += 1
        return self._place
