"""What NCCL's flight recorder says of a collective that never ended: which rank did not join, and where it was.

Each rank of PyTorch writes its own dump (`TORCH_NCCL_DEBUG_INFO_TEMP_FILE`); `adapters/flight_files` reads them, and
`holdfast explain` hands all of them over at once. Pure; no time passes. Source of the form: PyTorch, FlightRecorder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

DIGITS_MAX = 18
HEAD = 4096
"""Bytes of a file that tell whether it is a dump."""
_KEYS = (b"pg_config", b"pg_status", b"comm_lib_version", b"nccl_version", b"entries")
_PICKLED = re.compile(rb"\x80[\x02-\x05]")
_WRITTEN = re.compile(rb"\s*\{")
_RANK = (
    re.compile(r"rank[_-]?(\d{1,6})(?!\d)", re.IGNORECASE),
    re.compile(r"(\d{1,6})(?:\.[a-z]{1,8})?$", re.IGNORECASE),
)


def is_dump(head: bytes) -> bool:
    """Whether a file that begins so is a flight recorder's dump: a pickle or a JSON object with its keys."""
    begins = _PICKLED.match(head) or _WRITTEN.match(head)
    return begins is not None and sum(key in head for key in _KEYS) > 1


def rank_of(name: str) -> int | None:
    """The rank that wrote the dump of this name, `comm_lib_trace_rank_3` or `_dump_3`; None when the name has none."""
    return next((int(found[1]) for pattern in _RANK if (found := pattern.search(name))), None)


class Dump(Struct, frozen=True):
    """One rank's dump, as far as the judgement needs it.

    `enqueued` and `completed` are the numbers of the last collective of each process group; `ranks` its members;
    `waiting` the operation of each collective that has not completed, by its number.
    """

    rank: int
    enqueued: Mapping[str, int]
    completed: Mapping[str, int]
    ranks: Mapping[str, tuple[int, ...]]
    last_op: str = ""
    last_frame: str = ""
    waiting: Mapping[str, Mapping[int, str]] = {}


class Missing(Struct, frozen=True):
    """Ranks that did not join a collective that the others wait in."""

    ranks: tuple[int, ...]
    group: str
    collective: int
    op: str
    why: str
    frame: str = ""


def dump_of(rank: int, raw: Mapping[str, Any]) -> Dump:
    """A dump's own form reduced to `Dump`. What is missing or of another type is left out."""
    enqueued: dict[str, int] = {}
    completed: dict[str, int] = {}
    for name, told in _mapping(raw.get("pg_status")).items():
        if not isinstance(name, str | int):
            continue
        status = _mapping(told)
        enqueued[str(name)] = _number(status.get("last_enqueued_collective"))
        completed[str(name)] = _number(status.get("last_completed_collective"))
    members = {
        str(name): _ranks(_mapping(config).get("ranks"))
        for name, config in _mapping(raw.get("pg_config")).items()
        if isinstance(name, str | int)
    }
    entries = [entry for entry in _sequence(raw.get("entries")) if isinstance(entry, Mapping)]
    last = entries[-1] if entries else {}
    frames = [frame for frame in _sequence(last.get("frames")) if isinstance(frame, Mapping)]
    user = next((f for f in frames if "site-packages" not in _text(f.get("filename"))), frames[0] if frames else {})
    frame = f"{_text(user.get('filename'))}:{_number(user.get('line'))}" if user else ""
    return Dump(rank, enqueued, completed, members, _text(last.get("profiling_name")), frame, _waiting(entries))


def _waiting(entries: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for entry in entries:
        group = next(iter(_sequence(entry.get("process_group"))), None)
        if isinstance(group, str | int) and not entry.get("is_p2p") and entry.get("state") != "completed":
            number = _number(entry.get("collective_seq_id"))
            found.setdefault(str(group), {})[number] = _text(entry.get("profiling_name"))
    return found


def missing_ranks(dumps: Sequence[Dump]) -> Missing | None:
    """The ranks to suspect, from all dumps of one job; None when the dumps agree.

    A rank enqueues collectives on its GPU ahead of their turn, so that those that wait may stand at several numbers.
    All of them wait in the first collective that somebody has not begun.
    """
    if len(dumps) < 2:
        return None
    for group in sorted({name for dump in dumps for name in dump.enqueued}):
        at = {dump.rank: dump.enqueued[group] for dump in dumps if group in dump.enqueued}
        furthest = max(at.values(), default=0)
        least = min(at.values(), default=0)
        behind = tuple(sorted(rank for rank, number in at.items() if number == least < furthest))
        if behind and len(behind) <= len(at) // 2:
            missed = least + 1
            ahead = next(dump for dump in dumps if at.get(dump.rank) == furthest)
            op = ahead.waiting.get(group, {}).get(missed, ahead.last_op)
            frame = next((dump.last_frame for dump in dumps if dump.rank == behind[0]), "")
            return Missing(behind, group, missed, op, f"never began collective #{missed}", frame)
    members = {rank for dump in dumps for ranks in dump.ranks.values() for rank in ranks}
    silent = tuple(sorted(members - {dump.rank for dump in dumps}))
    if silent and len(silent) <= max(1, len(members) // 8):
        number = max((n for dump in dumps for n in dump.enqueued.values()), default=0)
        return Missing(silent, "", number, dumps[0].last_op, "left no dump while the others wait")
    return None


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int:
    """A count; the JSON form writes some as texts."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= DIGITS_MAX:
        return int(value)
    return value if isinstance(value, int) else 0


def _ranks(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        words = value.strip("[]() ").split(",")
        return tuple(int(word) for word in words if word.strip().isdecimal() and len(word) <= DIGITS_MAX)
    return tuple(item for item in _sequence(value) if isinstance(item, int))
