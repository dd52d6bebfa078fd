"""What a finding of a rule says beyond its severity and domain, as the catalogue's files state it.

Attribution (`decide.diagnosis`), `holdfast explain` and the agent ask here by rule id, so that a finding of an older
journal is judged as one of today. The files ship with the program and are as constant as its code. A rule states its
own meaning; a `[[group]]` states what all rules have in common whose ids begin alike, those of sites included. Pure.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum
from importlib import resources
from typing import Any

import msgspec
from msgspec import Struct

CACHED_IDS = 4096
"""Rule ids may come from outside: so many meanings are remembered."""


class Weight(IntEnum):
    """Kinds of candidates for the root cause; the heavier explains the lighter."""

    WARNING = 0
    """Counts only when a time-out points back at it."""
    SYMPTOM = 1
    """A time-out or hang: says that something is wrong, not what."""
    EXIT = 2
    """An exit code or a kill without a reason."""
    SIGNAL = 3
    """A death that is the rank's own: a segmentation fault and its like."""
    SPECIFIC = 4
    """An error that names its cause."""
    LOST = 5
    """A node is gone."""
    HARDWARE = 6
    """A machine says that it is broken."""


class Trait(StrEnum):
    """What attribution and `explain` must know of a rule, one word each."""

    WAIT = "wait"
    """Tells of a wait in vain: that something is wrong, not what."""
    COLLECTIVE = "collective"
    """A wait in a collective, told by each rank that waits."""
    HANG = "hang"
    """A wait that a watcher saw, not a rank's own time-out."""
    ODD_RANK = "odd_rank"
    """Names the rank that stands apart from the others."""
    SIGNAL = "signal"
    """The process ended by a signal."""
    KILLED = "killed"
    """The process was killed from outside (signal 9)."""
    QUIET_EXIT = "quiet_exit"
    """How a rank ends that has lost a peer or waited in vain, too."""
    ENDED = "ended"
    """A program ended with an error; which one is not told."""
    NO_REASON = "no_reason"
    """Says that a process ended: lines that the job never printed before may say why."""
    HOW_IT_ENDED = "how_it_ended"
    """Says how a process ended: nothing of the cause where it had lost a peer."""
    FROM_OUTSIDE = "from_outside"
    """A bare "Killed" or "Terminated": by the kernel, the scheduler or a person."""
    LAUNCHER_SAW = "launcher_saw"
    """A launcher saw which process died."""
    FIRST_FAILED = "first_failed"
    """A launcher names the rank that it calls the first to fail."""
    SECOND_HAND = "second_hand"
    """Told of a rank by its launcher or the scheduler, not by the rank."""
    KERNEL_ENDED = "kernel_ended"
    """The kernel ended some process, perhaps none of the job's."""
    SCHEDULER_ENDS = "scheduler_ends"
    """The scheduler begins to end the job, which may go on for a while."""
    FRAME = "frame"
    """Says that a call failed: the reason stands in the lines below."""
    LOOSE = "loose"
    """Knows an exception by little more than its type."""
    BY_WORDS = "by_words"
    """An exception of any kind: its type and message tell whether it follows from a lost peer."""
    MEMORY = "memory"
    """Memory ran out."""
    BELOW = "below"
    """The kernel's word about what programs stand on."""
    GAVE_UP = "gave_up"
    """A transport tried a link in vain for a while before it told so."""
    DEMAND = "demand"
    """A driver's demand, weaker than the fault that it follows."""
    NEW_LINE = "new_line"
    """A line that healthy attempts never printed."""
    PARTING = "parting"
    """What processes say when they end, or when others are no longer there."""
    STILL_RUNS = "still_runs"
    """Counts after the work was done, too: some process did not end."""
    HELD_UP = "held_up"
    """May pass by itself: a cause only in a log that tells of nothing else."""
    LASTING = "lasting"
    """A warning that is trouble when nothing says that it passed."""
    THREAD = "thread"
    """Announces an exception that ends a thread, not the program."""
    IGNORED = "ignored"
    """Announces an exception that Python passes over."""
    PEER_CLOSED = "peer_closed"
    """A peer had gone before."""
    TELLING = "telling"
    """Follows from something else as a rule; where nothing else is told, says at least what failed."""
    LEFT_BEHIND = "left_behind"
    """A node came to a rendezvous that had ended: its job is over."""
    SAYS_WHY = "says_why"
    """Names the reason, of a node that it does not name."""
    BY_SURVIVOR = "by_survivor"
    """Told by a survivor: the line's own place is not the lost one."""
    OF_PLATFORM = "of_platform"
    """Follows from the network's trouble as a rule; where nothing else is told, drivers and topology are likelier."""
    COMPLAINT = "complaint"
    """Says no more than that something did not work, and counts only where the log shows no step."""
    OF_DRIVER = "of_driver"
    """A driver's complaint in a kernel log, which counts only beside no job."""
    DAEMONS_GO_ON = "daemons_go_on"
    """What daemons call an error and go on after."""
    EXIT_LINE = "exit_line"
    """Says no more than an end that another rule knows."""
    SHELL = "shell"
    """A shell's own word; after an end that a rule knows it is of the work that comes after."""
    COMMAND = "command"
    """A person's command, which is no fault."""
    STATE = "state"
    """A state that a check looks at: a look that finds it well ends what follows from it."""
    EVENT = "event"
    """A check tells of an event: what has happened stays true."""


class Meaning(Struct, frozen=True, forbid_unknown_fields=True):
    """What one rule's findings say."""

    weight: Weight | None = None
    """The kind of candidate where severity and domain do not tell."""
    traits: frozenset[Trait] = frozenset()
    takes_back: tuple[str, ...] = ()
    """Rules whose findings are over when a line of this one comes."""
    follows: tuple[str, ...] = ()
    """Rules of which this one is a consequence when they were told just before it."""
    often: int = 0
    """Trouble only when it comes so often in one log."""
    strength: int = 0
    """Of an error without a name: what says most about why comes first."""
    tail_bytes: int = 0
    """Of an error without a name: more bytes after it show that the program went on."""


KEYS = frozenset(Meaning.__struct_fields__)
"""Keys of a rule that state its meaning. Sites' rules take theirs from the groups that their ids fall into."""
PACKAGED = "catalogue/"
"""How names of the files begin that ship with Holdfast."""


class Meanings:
    """The meanings that rule files state.

    Args:
        tables: parsed rule files, in order.

    Raises:
        msgspec.ValidationError: a key or value that is not understood.
    """

    def __init__(self, tables: Iterable[Mapping[str, Any]]) -> None:
        self.rules: dict[str, Meaning] = {}
        self.groups: dict[str, Meaning] = {}
        for table in tables:
            for group in table.get("group", ()):
                self.groups[group["prefix"]] = _meaning({k: v for k, v in group.items() if k != "prefix"})
            for name, rule in _rules(table):
                self.rules[name] = _meaning({k: v for k, v in rule.items() if k in KEYS})
        self._by_length = sorted(self.groups, key=len, reverse=True)

    def of(self, rule_id: str) -> Meaning:
        """The rule's own meaning (of `a.b.*` where `a.b.c` is unknown) with those of its groups, the longest first."""
        own = self._own(rule_id)
        groups = [self.groups[prefix] for prefix in self._by_length if rule_id.startswith(prefix)]
        if not groups:
            return own
        weight = next((said.weight for said in (own, *groups) if said.weight is not None), None)
        traits = own.traits.union(*(said.traits for said in groups))
        return msgspec.structs.replace(own, weight=weight, traits=traits)

    def _own(self, rule_id: str) -> Meaning:
        name = rule_id
        while name:
            if (found := self.rules.get(rule_id if name == rule_id else f"{name}.*")) is not None:
                return found
            name = name.rpartition(".")[0]
        return Meaning()


def _meaning(said: Mapping[str, Any]) -> Meaning:
    weight = said.get("weight")
    known = {one.name.lower(): one for one in Weight}
    return msgspec.convert({**said, "weight": known.get(str(weight), weight)}, Meaning)


def _rules(table: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Each rule of a file by its id, those of NVIDIA's codes included."""
    yield from ((rule["id"], rule) for rule in table.get("rule", ()))
    for kind in ("xid", "sxid"):
        yield from ((f"nvidia.{kind}.{rule['code']}", rule) for rule in table.get(kind, ()))


def packaged_sources() -> dict[str, bytes]:
    """The rule files that ship with Holdfast, by name, in a fixed order."""
    folder = resources.files("holdfast.detect") / "catalogue"
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda entry: entry.name)
    return {PACKAGED + entry.name: entry.read_bytes() for entry in files}


@functools.lru_cache(64)
def parsed(data: bytes) -> dict[str, Any]:
    """A rule file's tables, for all who read it at a start.

    Raises:
        UnicodeDecodeError, tomllib.TOMLDecodeError: it is not TOML.
    """
    return tomllib.loads(data.decode())


@functools.cache
def packaged() -> Meanings:
    """What the rules mean that ship with Holdfast. The first call takes 40 ms, or 4 ms once a catalogue was read."""
    made = Meanings(map(parsed, packaged_sources().values()))
    parsed.cache_clear()
    return made


@functools.lru_cache(CACHED_IDS)
def meaning(rule_id: str) -> Meaning:
    """What findings of this rule say."""
    return packaged().of(rule_id)


def has(rule_id: str, *traits: Trait) -> bool:
    """Whether the rule has any of these traits."""
    return not meaning(rule_id).traits.isdisjoint(traits)
