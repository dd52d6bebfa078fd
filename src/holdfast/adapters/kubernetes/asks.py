"""What people ask for in annotations and labels: a job's recovery, a node's repair. Pure.

`holdfast.dev/auto-resume` and its like, and HyperPod's `sagemaker.amazonaws.com/enable-job-auto-resume` and
`job-max-retry-count`, as they are written there. What is nearly right is never guessed at: it has no effect and a
warning says so, because a job that nobody watches is found out too late.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from msgspec import Struct

from holdfast.model.cluster import RecoverySpec

HOLDFAST = "holdfast.dev"
HYPERPOD = "sagemaker.amazonaws.com"
_OURS = ("auto-resume", "max-restarts", "max-in-place", "policy", "drill-ok", "job-dir")
_THEIRS = ("enable-job-auto-resume", "job-max-retry-count")
_NOT_ASKED = (
    "held",
    "restart-count",
    "excluded",
    "given-up",
    "lineage",
    "generation",
    "first-created",
    "parallelism",
    "was-suspended",
    "history",
)
"""Annotations of ours that say how things are; nobody asks by them."""
COUNT_MAX = 1_000_000
TEXT_MAX = 120


class Vocabulary(Struct, frozen=True, kw_only=True):
    """Keys of a node's health, below a prefix that a site may choose (HyperPod's makes its own tools understand)."""

    prefix: str = HOLDFAST

    @property
    def health(self) -> str:
        """Label, and key of the taint."""
        return f"{self.prefix}/node-health-status"

    @property
    def deep(self) -> str:
        """Label of deep checks: InProgress, Passed, Failed."""
        return f"{self.prefix}/deep-health-check-status"

    @property
    def types(self) -> str:
        """Label: which kinds of fault."""
        return f"{self.prefix}/fault-types"

    @property
    def reasons(self) -> str:
        """Label: which faults."""
        return f"{self.prefix}/fault-reasons"

    @property
    def details(self) -> str:
        """Annotation: JSON list of timestamp, type, reason, message."""
        return f"{self.prefix}/fault-details"


SCHEDULABLE = "Schedulable"
UNSCHEDULABLE = "Unschedulable"
PENDING = {"reboot": "UnschedulablePendingReboot", "replace": "UnschedulablePendingReplacement"}
"""A repair -> the label's value that asks for it. FIELD: a person who writes it asks for that repair."""


class Wish(Struct, frozen=True, kw_only=True):
    """What a job's owner asked for."""

    recovery: RecoverySpec | None = None
    drill_ok: bool = False
    job_dir: str = ""
    warnings: tuple[str, ...] = ()


def wish_of(annotations: Mapping[str, str]) -> Wish:
    """What the job's annotations ask for. Other people's annotations are left alone."""
    warnings = [
        *_unknown(annotations, HOLDFAST, (*_OURS, *_NOT_ASKED), _OURS),
        *_unknown(annotations, HYPERPOD, _THEIRS),
    ]
    ours = {name: annotations.get(f"{HOLDFAST}/{name}") for name in _OURS}
    theirs = {name: annotations.get(f"{HYPERPOD}/{name}") for name in _THEIRS}
    enabled = _flag(ours["auto-resume"], f"{HOLDFAST}/auto-resume", warnings)
    hyperpod = _flag(theirs["enable-job-auto-resume"], f"{HYPERPOD}/enable-job-auto-resume", warnings)
    asked = enabled if enabled is not None else hyperpod
    retries = _count(theirs["job-max-retry-count"], f"{HYPERPOD}/job-max-retry-count", warnings)
    restarts = _count(ours["max-restarts"], f"{HOLDFAST}/max-restarts", warnings)
    recovery = None
    if asked is not None:
        recovery = RecoverySpec(
            enabled=asked,
            max_requeues=restarts if restarts is not None else retries,
            max_in_place=_count(ours["max-in-place"], f"{HOLDFAST}/max-in-place", warnings),
            policy=ours["policy"] or "",
        )
    drill_ok = _flag(ours["drill-ok"], f"{HOLDFAST}/drill-ok", warnings) or False
    return Wish(recovery=recovery, drill_ok=drill_ok, job_dir=ours["job-dir"] or "", warnings=tuple(warnings))


def _unknown(given: Mapping[str, str], prefix: str, known: Iterable[str], show: Iterable[str] = ()) -> list[str]:
    names = tuple(known)
    found = []
    for key in given:
        where, mark, name = key.partition("/")
        if not mark or name in names:
            continue
        if where == prefix or where.casefold() == prefix:
            table = {one.casefold(): one for one in (tuple(show) or names)}
            near = difflib.get_close_matches(name.casefold(), table, n=1, cutoff=0.6)
            if near:
                found.append(f"annotation {_short(key)} is not known; {prefix}/{table[near[0]]} is, exactly so")
    return found


def _flag(text: str | None, key: str, warnings: list[str]) -> bool | None:
    if text is None or text in {"true", "false"}:
        return None if text is None else text == "true"
    warnings.append(f"annotation {key} is {_short(text)!r}; it must be 'true' or 'false'")
    return None


def _count(text: str | None, key: str, warnings: list[str]) -> int | None:
    if text is None:
        return None
    if text.isdecimal() and text.isascii() and int(text) <= COUNT_MAX:
        return int(text)
    warnings.append(f"annotation {key} is {_short(text)!r}, not a count; the site's own limit holds")
    return None


def _short(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)[:TEXT_MAX]


def asked_of_node(
    labels: Mapping[str, str], annotations: Mapping[str, str], words: Vocabulary, *, set_by_us: str
) -> tuple[str, tuple[str, ...]]:
    """The repair that a person asks for by the health label, and a warning when the value is nearly one that asks."""
    value = labels.get(words.health, "")
    if not value or annotations.get(set_by_us) == value:
        return "", ()
    for repair, name in PENDING.items():
        if value == name:
            return repair, ()
    if value in {SCHEDULABLE, UNSCHEDULABLE}:
        return "", ()
    near = difflib.get_close_matches(value, [*PENDING.values(), SCHEDULABLE, UNSCHEDULABLE], n=1, cutoff=0.6)
    meant = near[0] if near else " or ".join(PENDING.values())
    return "", (f"its label {words.health}={_short(value)!r} asks for nothing; {meant} would, exactly so",)
