"""How the checkpointer tells people and Holdfast what it does: one sentence on stderr, and telemetry.

Called by the checkpointer from the training thread and from the writing thread. Telemetry is looked up
when first needed and may be absent; nothing here raises or waits.
"""

import importlib
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

__all__ = ["checkpoint", "evacuation_requested", "phase", "say"]


def say(sentence: str) -> None:
    """One line on stderr, where the user's log and Holdfast's matcher read it."""
    print(f"holdfast.checkpoint: {sentence}", file=sys.stderr, flush=True)  # noqa: T201 - the user's log is the place


def checkpoint(step: int, *, durable: bool) -> None:
    """Report a checkpoint as staged or durable."""
    telemetry = _telemetry()
    if telemetry is not None:
        telemetry.checkpoint(step, durable=durable)


def phase(name: str) -> AbstractContextManager[Any]:
    """The telemetry phase of that name around a block."""
    telemetry = _telemetry()
    return telemetry.phase(name) if telemetry is not None else nullcontext()


def evacuation_requested() -> bool:
    """Whether the launcher asks this rank to save and leave."""
    telemetry = _telemetry()
    return telemetry is not None and bool(telemetry.evacuate_requested())


def _telemetry() -> Any:
    try:
        return importlib.import_module("holdfast.telemetry")
    except ImportError:
        return None
