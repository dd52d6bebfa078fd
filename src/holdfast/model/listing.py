"""The first records of a list that a reader asks for, or may see: the list is filtered first, and cut to a page then.

Called wherever a list is read in parts and only some of it is wanted. No time passes here but that of `ask`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
S = TypeVar("S")
M = TypeVar("M")

PART = 1000
"""Records that are read at once where the first part did not hold enough."""


async def first_of(
    ask: Callable[[M, int], Awaitable[list[T]]],
    choose: Callable[[list[T]], Iterable[S]],
    mark: Callable[[T], M],
    limit: int,
    *,
    start: M,
) -> list[S]:
    """Up to `limit` of the records that `choose` leaves, in the list's order.

    Args:
        ask: the list's next records behind a mark, at most so many.
        choose: those of them that are wanted, in the same order.
        mark: where in the list a record stands.
        limit: of the answer.
        start: the mark to begin behind.
    """
    found: list[S] = []
    size = limit
    while True:
        part = await ask(start, size)
        found += choose(part)
        if len(part) < size or len(found) >= limit:
            return found[:limit]
        start, size = mark(part[-1]), PART
