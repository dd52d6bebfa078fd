"""Making a failing run small: which of its faults and options are needed for it to fail?

`fuzz.py` calls `smallest` with a question that runs the simulation once more. Delta debugging (A. Zeller and R.
Hildebrandt, Simplifying and Isolating Failure-Inducing Input, IEEE TSE 28(2), 2002): drop halves, then quarters, and
so on, as long as the failure stays. Deterministic; time passes only inside the question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

TRIES_MAX = 200
"""Questions asked at most: each is a run."""


def smallest(parts: Sequence[str], fails: Callable[[tuple[str, ...]], bool], *, tries: int = TRIES_MAX) -> list[str]:
    """The parts without which it does not fail any more, in their order.

    Args:
        parts: what can be left out; with all of them it fails.
        fails: does it still fail with only these parts?
        tries: how often `fails` may be asked. When they are used up, the smallest found so far is returned.
    """
    kept = list(parts)
    left = tries
    if not kept or left <= 0:
        return kept
    left -= 1
    if fails(()):
        return []
    pieces = 2
    while len(kept) >= 1 and left > 0:
        size = max(1, len(kept) // pieces)
        chunks = [kept[start : start + size] for start in range(0, len(kept), size)]
        for number, chunk in enumerate(chunks):
            if len(chunk) == len(kept) or left <= 0:
                continue  # with nothing it does not fail, which is known
            rest = [part for other, piece in enumerate(chunks) if other != number for part in piece]
            left -= 1
            if fails(tuple(rest)):
                kept, pieces = rest, max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(kept), pieces * 2)
    return kept
