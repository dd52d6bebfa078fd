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
constants: Any = importlib.import_module("re._constants")

REPEATS = (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT)
_REFUSING = (
    constants.AT, constants.ASSERT, constants.ASSERT_NOT, constants.GROUPREF, constants.GROUPREF_EXISTS,
)  # fmt: skip
_WIDE = frozenset(range(256)) - {10}
_CATEGORY: dict[Any, frozenset[int]] = {
    constants.CATEGORY_DIGIT: frozenset(b"0123456789"),
    constants.CATEGORY_SPACE: frozenset(b" \t\n\r\f\v"),
    constants.CATEGORY_WORD: frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"),
}
_CATEGORY |= {
    constants.CATEGORY_NOT_DIGIT: frozenset(range(256)) - _CATEGORY[constants.CATEGORY_DIGIT],
    constants.CATEGORY_NOT_SPACE: frozenset(range(256)) - _CATEGORY[constants.CATEGORY_SPACE],
    constants.CATEGORY_NOT_WORD: frozenset(range(256)) - _CATEGORY[constants.CATEGORY_WORD],
}
_CLASS_TEXT = {
    constants.CATEGORY_DIGIT: r"\d",
    constants.CATEGORY_NOT_DIGIT: r"\D",
    constants.CATEGORY_SPACE: r"\s",
    constants.CATEGORY_NOT_SPACE: r"\S",
    constants.CATEGORY_WORD: r"\w",
    constants.CATEGORY_NOT_WORD: r"\W",
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
        if op in REPEATS:
            low, _, body = arg
            chars = _chars(body)
            if _is_long(arg, 64):
                if why := _ambiguous_rounds(body):
                    return why
                if open_ended is not None and open_ended & _first(body) and op is not constants.POSSESSIVE_REPEAT:
                    neighbours = _NEIGHBOURS
                open_ended = chars if low == 0 or open_ended is None else open_ended | chars
            elif low > 0:
                open_ended = None if not _nullable(body) else open_ended
        for part in _parts(op, arg):
            why = _unsafe(part)
            if why and why != _NEIGHBOURS:
                return why
            neighbours = neighbours or why
        if op in REPEATS:
            continue
        # Something mandatory between two repeats separates them only when the first repeat cannot eat it.
        if open_ended is not None and not _item_nullable(op, arg) and op is not constants.AT:
            open_ended = None
    return neighbours


def _ambiguous_rounds(body: Any) -> str:
    """Whether one text can be cut into rounds of the repeated body in several ways."""
    items = [item for item in body if item[0] is not constants.AT]
    while len(items) == 1 and (inner := inner_of(*items[0])) is not None:
        items = [item for item in inner if item[0] is not constants.AT]
    for op, arg in items:
        if op is constants.BRANCH and (why := _overlapping_branches(arg[1])):
            return why
    if _nullable(items):
        return "a repeated group can match nothing" if items else ""
    for index, (op, arg) in enumerate(items):
        rest = items[index + 1 :] + items[:index]
        if _may_vary(op, arg) and _item_chars(op, arg) & _first([*rest, (op, arg)]):
            return "a repeat inside a repeat can be cut in many ways"
        inner = inner_of(op, arg)
        if inner is not None and (why := _ambiguous_rounds(inner)) and "nothing" not in why:
            return why
    return ""


def _may_vary(op: Any, arg: Any) -> bool:
    """Whether the item can match texts of several lengths."""
    if op in REPEATS:
        return bool(arg[0] != arg[1])
    return op is constants.BRANCH and any(_nullable(branch) for branch in arg[1])


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
        wide = op in REPEATS and _is_long(arg, 64) and len(_chars(arg[2])) > 128
        total += 1 if wide else max(map(_count_wildcards, _parts(op, arg)), default=0)
    return total


# --- the tree ---------------------------------------------------------------------------------------------------------


def inner_of(op: Any, arg: Any) -> Any | None:
    """The sequence inside a group; None when the item is no group."""
    if op is constants.SUBPATTERN:
        return arg[3]
    if op is constants.ATOMIC_GROUP:
        return arg
    return None


def _parts(op: Any, arg: Any) -> list[Any]:
    """The sequences inside an item."""
    if op in REPEATS:
        return [arg[2]]
    if op is constants.BRANCH:
        return list(arg[1])
    inner = inner_of(op, arg)
    return [] if inner is None else [inner]


def _is_long(repeat: Any, most: int) -> bool:
    """Whether a repeat may have more rounds than this."""
    return bool(repeat[1] is constants.MAXREPEAT or repeat[1] > most)


def _nullable(seq: Any) -> bool:
    return all(_item_nullable(op, arg) for op, arg in seq)


def _item_nullable(op: Any, arg: Any) -> bool:
    if op in REPEATS:
        return arg[0] == 0 or _nullable(arg[2])
    if op is constants.BRANCH:
        return any(_nullable(branch) for branch in arg[1])
    inner = inner_of(op, arg)
    if inner is not None:
        return _nullable(inner)
    return op in _REFUSING


def _item_chars(op: Any, arg: Any) -> frozenset[int]:
    if op is constants.LITERAL:
        return frozenset({arg & 0xFF, ord(chr(arg).swapcase()) & 0xFF})
    if op is constants.NOT_LITERAL:
        return _WIDE - {arg}
    if op is constants.ANY:
        return _WIDE
    if op is constants.IN:
        return bytes_of_set(arg)
    return frozenset().union(*map(_chars, _parts(op, arg)))


def _chars(seq: Any) -> frozenset[int]:
    return frozenset().union(*(_item_chars(op, arg) for op, arg in seq))


def bytes_of_set(members: Any) -> frozenset[int]:
    """The characters of a class, as bytes."""
    chars: set[int] = set()
    negate = False
    for op, arg in members:
        if op is constants.NEGATE:
            negate = True
        elif op is constants.LITERAL:
            chars.add(arg & 0xFF)
        elif op is constants.RANGE:
            chars.update(range(arg[0], min(arg[1], 255) + 1))
        elif op is constants.CATEGORY:
            chars |= _CATEGORY[arg]
    return frozenset(range(256)) - chars if negate else frozenset(chars)


def _first(seq: Any) -> set[int]:
    chars: set[int] = set()
    for op, arg in seq:
        parts = _parts(op, arg)
        chars |= set().union(*map(_first, parts)) if parts else _item_chars(op, arg)
        if not _item_nullable(op, arg):
            break
    return chars


# --- the core that Hyperscan looks for --------------------------------------------------------------------------------


class NoCoreError(ValueError):
    """The pattern has no stretch with a literal that is long enough to look for."""


LITERAL_MIN = 4
"""Shorter literals occur by chance in nearly every line."""


def core(pattern: str) -> str:
    """The Hyperscan expression for this pattern: bounded, without anchors, groups or look-arounds.

    Raises:
        NoCoreError: no stretch has a literal of at least `LITERAL_MIN` characters.
    """
    text, quality = _best(parse(pattern))
    if quality < LITERAL_MIN:
        raise NoCoreError(f"no literal of {LITERAL_MIN} or more characters that every match contains")
    return f"(?i){text}" if pattern.startswith("(?i)") else text


def number_finder(core: str, after: str) -> str | None:
    """The core with a group around the number that it holds, between `after` and the core's last byte.

    None when the core is not of that form: `after`, a repeat that cannot hold it, and one character at the end.
    """
    items = list(parse(core.encode().decode("latin-1")))
    if core.startswith("(?") or len(items) < 3 or len(after) != 1:
        return None
    before, number, end = items[-3:]
    if before[0] in REPEATS and before[1][0] == 0:
        return None
    last = frozenset(after.encode())
    if _item_chars(*before) != last or number[0] not in REPEATS or number[1][0] == 0 or end[0] in REPEATS:
        return None
    if _item_chars(*number) & (last | _item_chars(*end)) or len(list(number[1][2])) != 1:
        return None
    head = "".join(_render(op, arg) for op, arg in items[:-2])
    if before[0] in REPEATS and before[1][:2] == (1, constants.MAXREPEAT):
        # One character and then more of it: `re` looks for the longer literal.
        once = _render_seq(before[1][2])
        head = "".join(_render(op, arg) for op, arg in items[:-3]) + f"{once}{once}*"
    return f"{head}({_render(*number)}){_render(*end)}"


def _best(seq: Any) -> tuple[str, int]:
    """The best window of neighbouring items, as (expression, length of its longest literal)."""
    windows: list[list[Any]] = [[]]
    for op, arg in seq:
        if op in _REFUSING:
            # A word boundary or look-around only refuses; leaving it out widens the core, which is allowed.
            continue
        if op in REPEATS and _is_long(arg, 16) and len(_chars(arg[2])) > 64:
            windows.append([])
            continue
        windows[-1].append((op, arg))
    scored = [_trimmed(window) for window in windows if window]
    for op, arg in seq:
        inner = arg[2] if op in REPEATS and arg[0] > 0 else inner_of(op, arg)
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
        if op is constants.LITERAL:
            run += 1
            best = max(best, run)
            continue
        inner = arg[2] if op in REPEATS and arg[0] > 0 else inner_of(op, arg)
        if inner is not None:
            nested = list(inner)
            if all(o is constants.LITERAL for o, _ in nested) and op is constants.SUBPATTERN:
                run += len(nested)
                best = max(best, run)
                continue
            best = max(best, _quality(nested))
        elif op is constants.BRANCH:
            best = max(best, min((_quality(list(b)) for b in arg[1]), default=0))
        run = 0
    return best


def _render(op: Any, arg: Any, *, last: bool = False) -> str:
    if op is constants.LITERAL:
        return _literal(arg)
    if op is constants.NOT_LITERAL:
        return f"[^{_literal(arg)}]"
    if op is constants.ANY:
        return "."
    if op is constants.IN:
        return _render_set(arg)
    if op in REPEATS:
        return _render_repeat(arg, last=last)
    if op is constants.BRANCH:
        return "(?:" + "|".join(_render_seq(branch, last=last) for branch in arg[1]) + ")"
    inner = inner_of(op, arg)
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
    if high is constants.MAXREPEAT:
        return inner + {0: "*", 1: "+"}.get(low, f"{{{low},}}")
    return f"{inner}{{{low},{high}}}" if low != high else f"{inner}{{{low}}}"


def _render_set(members: Any) -> str:
    parts: list[str] = []
    for op, arg in members:
        if op is constants.NEGATE:
            parts.append("^")
        elif op is constants.LITERAL:
            parts.append(_literal(arg))
        elif op is constants.RANGE:
            parts.append(f"{_literal(arg[0])}-{_literal(arg[1])}")
        elif op is constants.CATEGORY:
            parts.append(_CLASS_TEXT[arg])
    return "[" + "".join(parts) + "]"


def _literal(code: int) -> str:
    if code < 128 and (chr(code).isalnum() or chr(code) in " _"):
        return chr(code)
    return "".join(f"\\x{byte:02x}" for byte in chr(code).encode())
