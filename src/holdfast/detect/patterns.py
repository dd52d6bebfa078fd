"""What the catalogue must know of a regular expression: is it safe, and which part of it can Hyperscan look for.

A rule's pattern is a Python regular expression that decides. Hyperscan only points at lines that are worth a
decision, so it gets the pattern's `core`: a stretch of bounded length that every match must contain, chosen for
its longest literal. A core never misses what the pattern matches; it may point at lines that the pattern refuses.

Called when a catalogue is loaded. Pure; no time passes.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

# The parser behind `re` has no public name since Python 3.11; a regex-syntax library of our own would drift from it.
_parser: Any = importlib.import_module("re._parser")
_c: Any = importlib.import_module("re._constants")

_REPEATS = (_c.MAX_REPEAT, _c.MIN_REPEAT, _c.POSSESSIVE_REPEAT)
_WIDE = frozenset(range(256)) - {10}
_CATEGORY: dict[Any, frozenset[int]] = {
    _c.CATEGORY_DIGIT: frozenset(b"0123456789"),
    _c.CATEGORY_SPACE: frozenset(b" \t\n\r\f\v"),
    _c.CATEGORY_WORD: frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"),
}
_CATEGORY |= {
    _c.CATEGORY_NOT_DIGIT: frozenset(range(256)) - _CATEGORY[_c.CATEGORY_DIGIT],
    _c.CATEGORY_NOT_SPACE: frozenset(range(256)) - _CATEGORY[_c.CATEGORY_SPACE],
    _c.CATEGORY_NOT_WORD: frozenset(range(256)) - _CATEGORY[_c.CATEGORY_WORD],
}
_CLASS_TEXT = {
    _c.CATEGORY_DIGIT: r"\d",
    _c.CATEGORY_NOT_DIGIT: r"\D",
    _c.CATEGORY_SPACE: r"\s",
    _c.CATEGORY_NOT_SPACE: r"\S",
    _c.CATEGORY_WORD: r"\w",
    _c.CATEGORY_NOT_WORD: r"\W",
}
UNBOUNDED_MAX = 3
"""More unbounded wildcards than this in one pattern can take cubic time on a long line."""


def parse(pattern: str) -> Any:
    """The parse tree that `re` itself uses. Raises `re.error` on bad syntax."""
    return _parser.parse(pattern, re.ASCII)


# --- safety -----------------------------------------------------------------------------------------------------------


def catastrophe(pattern: str, *, exponential_only: bool = False) -> str:
    """Why this pattern could take exponential or high polynomial time on a hostile line; empty when it cannot.

    Refused: a repeat inside a repeat whose rounds can be cut in more than one way, a repeated choice whose branches
    begin alike, two neighbouring unbounded repeats that can eat the same characters, and more than three wildcards.
    With `exponential_only` the last two, which cost polynomial time, pass: for patterns that users bring along and
    that are run on short lines only.
    """
    tree = parse(pattern)
    why = _unsafe(tree)
    if exponential_only:
        return "" if why == _NEIGHBOURS else why
    return why or _too_many_wildcards(tree)


_NEIGHBOURS = "two neighbouring unbounded repeats can match the same characters"


def _unsafe(seq: Any) -> str:
    items = list(seq)
    open_ended: frozenset[int] | None = None
    neighbours = ""
    for op, arg in items:
        if op in _REPEATS:
            low, high, body = arg
            unbounded = high is _c.MAXREPEAT or high > 64
            chars = _chars(body)
            if unbounded:
                if why := _ambiguous_rounds(body):
                    return why
                if open_ended is not None and open_ended & _first(body) and op is not _c.POSSESSIVE_REPEAT:
                    neighbours = _NEIGHBOURS
                open_ended = chars if low == 0 or open_ended is None else open_ended | chars
            elif low > 0:
                open_ended = None if not _nullable(body) else open_ended
        for part in _parts(op, arg):
            why = _unsafe(part)
            if why and why != _NEIGHBOURS:
                return why
            neighbours = neighbours or why
        if op in _REPEATS:
            continue
        # Something mandatory between two repeats separates them only when the first repeat cannot eat it.
        if open_ended is not None and not _item_nullable(op, arg) and op is not _c.AT:
            open_ended = None
    return neighbours


def _ambiguous_rounds(body: Any) -> str:
    """Whether one text can be cut into rounds of the repeated body in several ways."""
    items = [item for item in body if item[0] is not _c.AT]
    while len(items) == 1 and (inner := _inner(*items[0])) is not None:
        items = [item for item in inner if item[0] is not _c.AT]
    for op, arg in items:
        if op is _c.BRANCH and (why := _overlapping_branches(arg[1])):
            return why
    if _seq_nullable(items):
        return "a repeated group can match nothing" if items else ""
    for index, (op, arg) in enumerate(items):
        rest = items[index + 1 :] + items[:index]
        if _may_vary(op, arg) and _item_chars(op, arg) & _first([*rest, (op, arg)]):
            return "a repeat inside a repeat can be cut in many ways"
        inner = _inner(op, arg)
        if inner is not None and (why := _ambiguous_rounds(inner)) and "nothing" not in why:
            return why
    return ""


def _may_vary(op: Any, arg: Any) -> bool:
    """Whether the item can match texts of several lengths."""
    if op in _REPEATS:
        return bool(arg[0] != arg[1])
    return op is _c.BRANCH and any(_nullable(branch) for branch in arg[1])


def _overlapping_branches(branches: Any) -> str:
    seen: set[int] = set()
    for branch in branches:
        first = _first(branch)
        if seen & first:
            return "a repeated choice has branches that begin alike"
        seen |= first
    return ""


def _too_many_wildcards(tree: Any) -> str:
    count = _count_wildcards(tree)
    return f"{count} unbounded wildcards, at most {UNBOUNDED_MAX} are allowed" if count > UNBOUNDED_MAX else ""


def _count_wildcards(seq: Any) -> int:
    total = 0
    for op, arg in seq:
        if op in _REPEATS:
            wide = (arg[1] is _c.MAXREPEAT or arg[1] > 64) and len(_chars(arg[2])) > 128
            total += 1 if wide else _count_wildcards(arg[2])
        elif op is _c.BRANCH:
            total += max((_count_wildcards(branch) for branch in arg[1]), default=0)
        elif (inner := _inner(op, arg)) is not None:
            total += _count_wildcards(inner)
    return total


# --- the tree ---------------------------------------------------------------------------------------------------------


def _inner(op: Any, arg: Any) -> Any | None:
    if op is _c.SUBPATTERN:
        return arg[3]
    if op is _c.ATOMIC_GROUP:
        return arg
    return None


def _parts(op: Any, arg: Any) -> list[Any]:
    """The sequences inside an item."""
    if op in _REPEATS:
        return [arg[2]]
    if op is _c.BRANCH:
        return list(arg[1])
    inner = _inner(op, arg)
    return [] if inner is None else [inner]


def _nullable(seq: Any) -> bool:
    return _seq_nullable(list(seq))


def _seq_nullable(items: list[Any]) -> bool:
    return all(_item_nullable(op, arg) for op, arg in items)


def _item_nullable(op: Any, arg: Any) -> bool:
    if op in _REPEATS:
        return arg[0] == 0 or _nullable(arg[2])
    if op is _c.BRANCH:
        return any(_nullable(branch) for branch in arg[1])
    inner = _inner(op, arg)
    if inner is not None:
        return _nullable(inner)
    return op in {_c.AT, _c.ASSERT, _c.ASSERT_NOT, _c.GROUPREF}


def _item_chars(op: Any, arg: Any) -> frozenset[int]:
    if op is _c.LITERAL:
        return frozenset({arg & 0xFF, ord(chr(arg).swapcase()) & 0xFF})
    if op is _c.NOT_LITERAL:
        return _WIDE - {arg}
    if op is _c.ANY:
        return _WIDE
    if op is _c.IN:
        return _set_chars(arg)
    if op in _REPEATS:
        return _chars(arg[2])
    if op is _c.BRANCH:
        return frozenset().union(*(_chars(branch) for branch in arg[1]))
    inner = _inner(op, arg)
    return _chars(inner) if inner is not None else frozenset()


def _chars(seq: Any) -> frozenset[int]:
    return frozenset().union(*(_item_chars(op, arg) for op, arg in seq))


def _set_chars(members: Any) -> frozenset[int]:
    chars: set[int] = set()
    negate = False
    for op, arg in members:
        if op is _c.NEGATE:
            negate = True
        elif op is _c.LITERAL:
            chars.add(arg & 0xFF)
        elif op is _c.RANGE:
            chars.update(range(arg[0], min(arg[1], 255) + 1))
        elif op is _c.CATEGORY:
            chars |= _CATEGORY[arg]
    return frozenset(range(256)) - chars if negate else frozenset(chars)


def _first(seq: Any) -> set[int]:
    chars: set[int] = set()
    for op, arg in seq:
        inner = _inner(op, arg)
        if op in _REPEATS:
            chars |= _first(arg[2])
        elif op is _c.BRANCH:
            for branch in arg[1]:
                chars |= _first(branch)
        elif inner is not None:
            chars |= _first(inner)
        else:
            chars |= _item_chars(op, arg)
        if not _item_nullable(op, arg):
            break
    return chars


# --- the core that Hyperscan looks for --------------------------------------------------------------------------------


class NoCoreError(ValueError):
    """The pattern has no stretch with a literal that is long enough to look for."""


LITERAL_MIN = 4
"""Shorter literals occur by chance in nearly every line."""


def core(pattern: str, *, caseless: bool = False) -> str:
    """The Hyperscan expression for this pattern: bounded, without anchors, groups or look-arounds.

    Raises:
        NoCoreError: no stretch has a literal of at least `LITERAL_MIN` characters.
    """
    text, quality = _best(parse(pattern))
    if quality < LITERAL_MIN:
        raise NoCoreError(f"no literal of {LITERAL_MIN} or more characters that every match contains")
    return f"(?i){text}" if caseless or pattern.startswith("(?i)") else text


def _best(seq: Any) -> tuple[str, int]:
    """The best window of neighbouring items, as (expression, length of its longest literal)."""
    windows: list[list[Any]] = [[]]
    for op, arg in seq:
        if op is _c.AT or op in {_c.ASSERT, _c.ASSERT_NOT, _c.GROUPREF, _c.GROUPREF_EXISTS}:
            # A word boundary or look-around only refuses; leaving it out widens the core, which is allowed.
            continue
        if op in _REPEATS and (arg[1] is _c.MAXREPEAT or arg[1] > 16) and len(_chars(arg[2])) > 64:
            windows.append([])
            continue
        windows[-1].append((op, arg))
    scored = [_trimmed(window) for window in windows if window]
    for op, arg in seq:
        inner = arg[2] if op in _REPEATS and arg[0] > 0 else _inner(op, arg)
        if inner is not None:
            scored.append(_best(inner))
    return max(scored, key=lambda pair: pair[1], default=("", 0))


def _trimmed(window: list[Any]) -> tuple[str, int]:
    """The window without its variable ends: those would report one line many times."""
    items = list(window)
    while items and _item_nullable(*items[-1]):
        items.pop()
    while items and _item_nullable(*items[0]):
        items.pop(0)
    while len(items) > 1 and _quality([items[0]]) == 0:
        items.pop(0)
    if not items:
        return "", 0
    body = "".join(_render(op, arg) for op, arg in items[:-1]) + _render(*items[-1], last=True)
    return body, _quality(items)


def _quality(items: list[Any]) -> int:
    """Length of the longest literal run that every match of these items holds."""
    best = run = 0
    for op, arg in items:
        if op is _c.LITERAL:
            run += 1
            best = max(best, run)
            continue
        inner = arg[2] if op in _REPEATS and arg[0] > 0 else _inner(op, arg)
        if inner is not None:
            nested = list(inner)
            if all(o is _c.LITERAL for o, _ in nested) and op is _c.SUBPATTERN:
                run += len(nested)
                best = max(best, run)
                continue
            best = max(best, _quality(nested))
        elif op is _c.BRANCH:
            best = max(best, min((_quality(list(b)) for b in arg[1]), default=0))
        run = 0
    return best


def _render(op: Any, arg: Any, *, last: bool = False) -> str:
    if op is _c.LITERAL:
        return _literal(arg)
    if op is _c.NOT_LITERAL:
        return f"[^{_literal(arg)}]"
    if op is _c.ANY:
        return "."
    if op is _c.IN:
        return _render_set(arg)
    if op in _REPEATS:
        return _render_repeat(arg, last=last)
    if op is _c.BRANCH:
        return "(?:" + "|".join(_render_seq(branch, last=last) for branch in arg[1]) + ")"
    inner = _inner(op, arg)
    return f"(?:{_render_seq(inner, last=last)})" if inner is not None else ""


def _render_seq(seq: Any, *, last: bool = False) -> str:
    items = list(seq)
    if last:
        while items and _item_nullable(*items[-1]):
            items.pop()
    return "".join(_render(op, arg, last=last and i == len(items) - 1) for i, (op, arg) in enumerate(items))


def _render_repeat(arg: Any, *, last: bool) -> str:
    low, high, body = arg
    inner = f"(?:{_render_seq(body)})"
    if last:
        return inner if low == 1 else f"{inner}{{{low}}}"
    if high is _c.MAXREPEAT:
        return inner + {0: "*", 1: "+"}.get(low, f"{{{low},}}")
    return f"{inner}{{{low},{high}}}" if low != high else f"{inner}{{{low}}}"


def _render_set(members: Any) -> str:
    parts: list[str] = []
    for op, arg in members:
        if op is _c.NEGATE:
            parts.append("^")
        elif op is _c.LITERAL:
            parts.append(_literal(arg))
        elif op is _c.RANGE:
            parts.append(f"{_literal(arg[0])}-{_literal(arg[1])}")
        elif op is _c.CATEGORY:
            parts.append(_CLASS_TEXT[arg])
    return "[" + "".join(parts) + "]"


def _literal(code: int) -> str:
    if code < 128 and (chr(code).isalnum() or chr(code) in " _"):
        return chr(code)
    return "".join(f"\\x{byte:02x}" for byte in chr(code).encode())
