"""What leader, crew and follower need of whoever runs things on a node: ranks (`node`) or a Slurm step (`step_*`)."""

from __future__ import annotations

from typing import Protocol

from holdfast.launch.environment import AttemptSpec
from holdfast.launch.frames import AnyAsk


class Held(Protocol):
    """The newest attempt on this node."""

    @property
    def spec(self) -> AttemptSpec:
        """As the leader laid it out."""

    @property
    def is_ending(self) -> bool:
        """It is being ended by us."""

    @property
    def is_gone(self) -> bool:
        """Nothing of it runs here any more."""


class Runner(Protocol):
    """One node's part. `node.NodeRunner` says what each of these promises."""

    @property
    def local_ranks(self) -> int:
        """Ranks to start here per attempt."""

    @property
    def attempt(self) -> Held | None:
        """The newest attempt, None before the first."""

    def ask_soon(self, ask: AnyAsk) -> None:
        """Carry out in the background; answers come as reports."""

    async def end(self, number: int, grace_s: float, why: str = "") -> None:
        """End the attempt here."""

    def pass_signal(self, signum: int) -> None:
        """Send a signal to all ranks here."""

    async def watch(self) -> None:
        """Look at what runs, until cancelled."""

    async def close(self, grace_s: float) -> None:
        """End everything here."""
