"""Names that may go into a command, and what an outcome is called: the same words from every way of repairing.

Used by the other modules of this package. A person reads these words in the incident's story and in the message that
says that a node needs them. No time passes here.
"""

from __future__ import annotations

import re
from enum import StrEnum

from holdfast.errors import PermanentOrderError
from holdfast.model import orders as o

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_WORD = re.compile(r"[A-Za-z0-9:._@/-]{0,128}")
"""PCI addresses, UUIDs, boot ids and machines' ids; nothing that begins an option matters inside a word."""
SAID_MAX = 400


class Outcome(StrEnum):
    """Why a repair did not work, as far as it is of a known kind."""

    NO_CAPACITY = "no capacity"
    LIMIT = "service limit reached"
    PERMISSION = "permission denied"
    TIMED_OUT = "timed out"
    REFUSED = "refused"
    NOT_FOUND = "no such machine"
    AWAY = "not reachable"
    TOO_FAST = "asked too fast"
    FAILED = "failed"


def sentence(outcome: Outcome, what: str) -> str:
    """The outcome and the tool's own words, on one line."""
    return f"{outcome}: {' '.join(what.split())[:SAID_MAX]}"


def node_of(order: o.NodeOrder) -> str:
    """The node's name, fit to be a word of a command.

    Raises:
        PermanentOrderError: it is no name of a machine.
    """
    if not _NODE.fullmatch(order.node):
        raise PermanentOrderError(f"{order.node[:64]!r} is no name of a node, so no command is run with it")
    return order.node


def word(text: str, what: str) -> str:
    """A fact about the node, fit to be a word of a command. Raises PermanentOrderError."""
    if not _WORD.fullmatch(text) or text.startswith("-"):
        raise PermanentOrderError(f"{what} {text[:64]!r} is not fit for a command")
    return text
