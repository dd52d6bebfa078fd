"""A journal in which every text that a reporter or a user can set holds a payload: names, reasons, log lines, stories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tests.cli import journal_with_history as history

from holdfast.model.records import Touched

SET_BY_OTHERS = frozenset({
    "comment", "detail", "drain_reason", "drill_by", "failed_check", "name", "partition", "project", "state_text", "story",
    "summary", "text", "user", "who", "why", "topology", "group", "path",
})  # fmt: skip
"""Fields of records. Ids, kinds and states are the controller's own; a node is called as the scheduler has it."""


def poisoned(value: Any, payload: str, field: str = "", *, is_node: bool = False) -> Any:
    """The same builtins with the payload in each text of others."""
    if isinstance(value, dict):
        node = "alive" in value or ("view" in value and "key" not in value)
        return {key: poisoned(one, payload, key, is_node=node) for key, one in value.items()}
    if isinstance(value, list):
        return [poisoned(one, payload, field) for one in value]
    if isinstance(value, str) and field in SET_BY_OTHERS and not (field == "name" and is_node):
        return payload
    return value


def make(path: Path, payload: str) -> Path:
    """The history of the command line's tests, poisoned."""
    records = history.records()
    records.nodes[3].view = msgspec.structs.replace(records.nodes[3].view, failed_check="x", state_text="x")
    plain = msgspec.to_builtins(records)
    return history.make(path, msgspec.convert(poisoned(plain, payload), Touched))
