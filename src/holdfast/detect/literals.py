"""The plain pieces of a core: byte strings of which every match holds one.

`sieve` chooses from them what is looked for first. Pure; called when a catalogue is compiled.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from holdfast.detect.patterns import REPEATS, bytes_of_set, constants, inner_of, parse

ALTERNATIVES_MAX = 64
"""More wordings of one piece than this are not written out."""
CLASS_MAX = 4
"""A class of more characters than this ends a piece."""
REPEAT_MAX = 3
LENGTH_GAINED = 8
"""Longer pieces are no better: the search compares so many bytes at once."""

Pieces = tuple[bytes, ...]
"""Alternatives: every match holds at least one of them."""


def pieces(core: str) -> tuple[list[Pieces], bool]:
    """What every match of this Hyperscan expression holds, and whether case does not matter.

    Each entry of the list holds for itself: a text without any of its alternatives has no match. The list is empty when
    the expression has no plain piece.
    """
    # One character is one byte, as in Hyperscan without its UTF-8 mode.
    tree = parse(core.encode().decode("latin-1"))
    return _pieces(list(tree)), bool(tree.state.flags & re.IGNORECASE)


def worth(choice: Pieces) -> tuple[int, int]:
    """Long pieces first, then few of them."""
    return min(LENGTH_GAINED, *map(len, choice)), -len(choice)


def _pieces(items: list[Any]) -> list[Pieces]:
    found: list[Pieces] = []
    current = [b""]

    def end(begin_with: list[bytes] | None = None) -> None:
        nonlocal current
        if all(current):
            found.append(tuple(current))
        current = begin_with or [b""]

    for op, arg in items:
        if op is constants.AT:
            continue
        if (texts := _texts(op, arg)) is not None:
            longer = _joined(current, texts)
            if longer is None:
                end(texts)
                continue
            if len(longer) > len(current) and all(current):
                found.append(tuple(current))
            current = longer
            continue
        if op in REPEATS and arg[0] > 0:
            once = _all_texts(list(arg[2])) if arg[0] == 1 else None
            if once is not None and all(once) and (longer := _joined(current, once)) is not None:
                # "x+" ends one piece and begins the next.
                current = longer
                end(once)
                continue
            end()
            found += _pieces(list(arg[2]))
        elif op is constants.BRANCH:
            end()
            each = [_pieces(list(branch)) for branch in arg[1]]
            if all(each):
                found.append(tuple(text for choices in each for text in max(choices, key=worth)))
        else:
            end()
            if (inner := _plain_inner(op, arg)) is not None:
                found += _pieces(list(inner))
    end()
    return found


def _plain_inner(op: Any, arg: Any) -> Any | None:
    """What a group holds; None for groups with flags of their own, which say something else."""
    if op is constants.SUBPATTERN and (arg[1] or arg[2]):
        return None
    return inner_of(op, arg)


def _joined(left: list[bytes], right: list[bytes]) -> list[bytes] | None:
    both = list(dict.fromkeys(a + b for a, b in itertools.product(left, right)))
    return both if len(both) <= ALTERNATIVES_MAX else None


def _all_texts(items: list[Any]) -> list[bytes] | None:
    """Every text that these items can match, when there are few."""
    current = [b""]
    for op, arg in items:
        texts = _texts(op, arg)
        joined = _joined(current, texts) if texts is not None else None
        if joined is None:
            return None
        current = joined
    return current


def _texts(op: Any, arg: Any) -> list[bytes] | None:
    """Every text that this item can match, when there are few; None otherwise."""
    if op is constants.LITERAL:
        return [bytes((arg,))] if arg < 256 else None
    if op is constants.IN:
        chars = bytes_of_set(arg)
        return [bytes((char,)) for char in sorted(chars)] if len(chars) <= CLASS_MAX else None
    if op is constants.BRANCH:
        branches = [_all_texts(list(branch)) for branch in arg[1]]
        texts = [text for branch in branches for text in branch or ()]
        return None if None in branches or len(texts) > ALTERNATIVES_MAX else texts
    if op in REPEATS:
        low, high, body = arg
        once = _all_texts(list(body)) if high is not constants.MAXREPEAT and high <= REPEAT_MAX else None
        if once is None or len(once) ** high > ALTERNATIVES_MAX:
            return None
        rounds = range(low, high + 1)
        texts = [b"".join(parts) for count in rounds for parts in itertools.product(once, repeat=count)]
        return list(dict.fromkeys(texts)) if len(texts) <= ALTERNATIVES_MAX else None
    inner = _plain_inner(op, arg)
    return _all_texts(list(inner)) if inner is not None else None
