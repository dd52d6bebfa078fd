"""Ids of machines. A scheduler's have a prefix (`k8s:`, `slurm:`), an agent's have none; on the wire both are text.

A machine may be known by one of each. Only ids of one kind can be compared: the others say nothing of each other.
"""

from __future__ import annotations

from typing import Self

from msgspec import Struct


class MachineId(Struct, frozen=True):
    """What a scheduler or an agent calls a machine. False when it is not known."""

    name: str
    prefix: str = ""
    """The kind of scheduler that says so; empty: an agent's own word."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `prefix:name`, or a name without a prefix."""
        prefix, mark, name = text.partition(":")
        return cls(name, prefix) if mark else cls(text)

    def __str__(self) -> str:
        return f"{self.prefix}:{self.name}" if self.prefix else self.name

    def __bool__(self) -> bool:
        return bool(self.name or self.prefix)

    def compares(self, other: Self) -> bool:
        """Are both of one kind, and known?"""
        return bool(self) and bool(other) and bool(self.prefix) == bool(other.prefix)

    def is_other(self, *known: Self) -> bool:
        """Does it surely name another machine than the one known by these ids? What is not known is not another."""
        alike = [one for one in known if self.compares(one)]
        return bool(alike) and self not in alike


def other_machine(instance_id: str, *known: str) -> bool:
    """`MachineId.is_other` on the ids' texts.

    Args:
        instance_id: of an order or an outcome; empty: not known.
        known: all ids that the node's machine is known by.
    """
    return MachineId.parse(instance_id).is_other(*map(MachineId.parse, known))
