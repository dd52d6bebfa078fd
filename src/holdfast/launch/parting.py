"""What a leader that leaves its allocation leaves behind, for whoever requeues the job. Filled by `leader`."""

from __future__ import annotations

from msgspec import Struct


class Parting(Struct):
    """Set while the leader runs, read when it has ended."""

    exclude: tuple[str, ...] = ()
    """Nodes that the job is to be kept off where it runs next."""
    progressed: int = 0
    """How often the job has made progress, by the engine's count."""
    gone: frozenset[str] = frozenset()
    """Nodes that are proven not to run."""
    is_superseded: bool = False
    """Another launcher has taken the job over."""
