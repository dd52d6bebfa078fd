"""What people ask for in Slurm's own fields: a job's comment, a node's reason. Pure.

Mission Control's `{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 1}}` and `{"holdfast": {...}}` in the
comment; HyperPod's `Action:Reboot` and `Action:Replace` as a node's reason, exact and case-sensitive. What is nearly
right is never guessed at: it has no effect and a warning says so, because a job that nobody watches, or a node that
nobody repairs, is found out too late.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from holdfast.model.cluster import RecoverySpec

APS = "APS"
OURS = "holdfast"
REQUEUE_MODE = "requeue"
_OFF_MODES = frozenset({"none", "off", "disabled"})
_APS_KEYS = ("auto_resume_mode", "max_requeue_times")
_OUR_KEYS = ("enabled", "max_requeues", "max_in_place", "policy", "drill_ok")
PREFIX = "[holdfast]"
"""Begins the reason of every drain that Holdfast sets; only such drains are lifted again."""
ACTIONS = {"Action:Reboot": "reboot", "Action:Replace": "replace"}
_NEARLY = re.compile(r"^\s*action\s*[:=_ -]\s*(\w+)\s*$", re.IGNORECASE)
TEXT_MAX = 120


class Wish(Struct, frozen=True, kw_only=True):
    """What a job's owner asked for."""

    recovery: RecoverySpec | None = None
    drill_ok: bool = False
    warnings: tuple[str, ...] = ()


def wish_of(comment: str) -> Wish:
    """What the comment asks for. Other people's keys in it are left alone."""
    if not comment.strip():
        return Wish()
    try:
        told = json.loads(comment)
    except (ValueError, RecursionError):
        meant = next((word for word in (APS, OURS) if re.search(rf"\b{word}\b", comment, re.IGNORECASE)), "")
        if meant and "{" in comment:
            return Wish(warnings=(f"the comment names {meant} but is not JSON: {_short(comment)}",))
        return Wish()
    if not isinstance(told, dict):
        return Wish()
    warnings = [
        f"comment key {_short(key)!r} is not known; {near!r} is, exactly so"
        for key in told
        if (near := _near(key, (APS, OURS), cutoff=0.8))
    ]
    aps, ours = told.get(APS), told.get(OURS)
    spec = _of_aps(aps, warnings) if APS in told else None
    drill_ok = False
    if OURS in told:
        spec, drill_ok = _of_ours(ours, spec, warnings)
    return Wish(recovery=spec, drill_ok=drill_ok, warnings=tuple(warnings))


def _of_aps(told: Any, warnings: list[str]) -> RecoverySpec | None:
    if not isinstance(told, dict):
        warnings.append(f"{APS} in the comment is not an object: {_short(told)}")
        return None
    _unknown(told, _APS_KEYS, APS, warnings)
    mode = told.get("auto_resume_mode")
    if isinstance(mode, str) and mode in _OFF_MODES:
        return RecoverySpec(enabled=False)
    if mode != REQUEUE_MODE:
        if mode is not None or "max_requeue_times" in told:
            warnings.append(f"{APS}.auto_resume_mode is {_short(mode)}; only {REQUEUE_MODE!r} asks for recovery")
        return None
    return RecoverySpec(max_requeues=_count(told, "max_requeue_times", APS, warnings))


def _of_ours(told: Any, spec: RecoverySpec | None, warnings: list[str]) -> tuple[RecoverySpec | None, bool]:
    """Beside APS, what is said here holds."""
    if not isinstance(told, dict):
        warnings.append(f"{OURS} in the comment is not an object: {_short(told)}")
        return spec, False
    _unknown(told, _OUR_KEYS, OURS, warnings)
    requeues = _count(told, "max_requeues", OURS, warnings)
    policy = told.get("policy", "")
    if not isinstance(policy, str):
        warnings.append(f"{OURS}.policy is {_short(policy)}, not the name of a policy")
        policy = ""
    made = RecoverySpec(
        enabled=_flag(told, "enabled", True, warnings),
        max_requeues=requeues if requeues is not None else spec.max_requeues if spec is not None else None,
        max_in_place=_count(told, "max_in_place", OURS, warnings),
        policy=policy,
    )
    return made, _flag(told, "drill_ok", False, warnings)


def _count(told: dict[str, Any], key: str, where: str, warnings: list[str]) -> int | None:
    value = told.get(key)
    if value is None:
        return None
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1_000_000:
        warnings.append(f"{where}.{key} is {_short(value)}, not a count; the site's own limit holds")
        return None
    return value


def _flag(told: dict[str, Any], key: str, default: bool, warnings: list[str]) -> bool:
    value = told.get(key, default)
    if not isinstance(value, bool):
        warnings.append(f"{OURS}.{key} is {_short(value)}, neither true nor false; taken as {str(default).lower()}")
        return default
    return value


def _unknown(told: dict[str, Any], keys: Iterable[str], where: str, warnings: list[str]) -> None:
    known = tuple(keys)
    for key in told:
        if key not in known:
            near = _near(key, known, cutoff=0.6)
            hint = f"; did you mean {near!r}?" if near else f"; known are {', '.join(known)}"
            warnings.append(f"{where}.{_short(key)} is not known{hint}")


def _near(word: str, known: Iterable[str], *, cutoff: float) -> str:
    """The known word that this one nearly is; empty when it is right, or far from all."""
    table = {name.casefold(): name for name in known}
    if word in table.values():
        return ""
    hits = difflib.get_close_matches(word.casefold().strip(), table, n=1, cutoff=cutoff)
    return table[hits[0]] if hits else ""


def _short(value: Any) -> str:
    plain = value if isinstance(value, str) else json.dumps(value, default=str)
    return re.sub(r"[\x00-\x1f\x7f]", " ", plain)[:TEXT_MAX]


def action_of(reason: str) -> tuple[str, str]:
    """What a node's reason asks for (`reboot`, `replace`, or nothing), and a warning when it is nearly right."""
    if reason in ACTIONS:
        return ACTIONS[reason], ""
    nearly = _NEARLY.match(reason)
    if nearly is None:
        return "", ""
    near = difflib.get_close_matches(nearly.group(1).casefold(), ("reboot", "replace"), n=1, cutoff=0.5)
    meant = f"Action:{near[0].capitalize()}" if near else " or ".join(ACTIONS)
    return "", f"its reason {_short(reason)!r} asks for nothing; {meant} would, exactly so"
