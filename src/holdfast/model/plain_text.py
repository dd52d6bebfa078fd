"""Text from outside as plain text: what a terminal or a mail would obey is taken out. Used by commands and notices."""

from __future__ import annotations

import re

# Escape sequences, other control characters and marks that turn the direction of writing: a log line could move the
# cursor, colour the screen or hide what it says. Line breaks stay.
UNSAFE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Text from outside on one line, without control characters."""
    return " ".join(UNSAFE.sub(" ", text).split())


def printable(text: str) -> str:
    """Text of several lines without other control characters."""
    return UNSAFE.sub("", text)
