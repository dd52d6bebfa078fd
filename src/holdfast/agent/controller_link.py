"""Where the controller is, and the connection to it.

The embedded cluster's controller may start after the agents, die and come back on another port: `ControllerFile`
follows `controller.json` with inotify, so that a new address is known as soon as it is written. `ControllerLink` is
what the agent needs of `holdfast.client`. While the node is cut off, nothing passes (`CutLink`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import inotify_simple
import msgspec
from inotify_simple import flags as inotify_flags
from msgspec import Struct

from holdfast.adapters.local.link import NodeLink
from holdfast.model.events import AnyEvent
from holdfast.model.wire import Beat, BeatAnswer, IngestAnswer

LOOK_S = 1.0
"""Between two looks while the file's folder cannot be watched."""


class ControllerLink(Protocol):
    """A connection to a controller. Both calls raise LinkError when it cannot be reached."""

    async def ingest(self, source: str, events: Sequence[AnyEvent]) -> IngestAnswer:
        """Have events stored; returns after the commit. Raises WireError when the controller refuses their form."""

    async def beat(self, beat: Beat) -> BeatAnswer:
        """Say that we are alive; the answer holds what the controller wants of us."""

    async def close(self) -> None:
        """Let the connection go."""


class CutLink:
    """A controller link that honours the embedded node's network cut, in both directions."""

    def __init__(self, inner: ControllerLink, node: NodeLink) -> None:
        self._inner = inner
        self._node = node

    async def ingest(self, source: str, events: Sequence[AnyEvent]) -> IngestAnswer:
        """See ControllerLink."""
        self._node.check()
        answer = await self._inner.ingest(source, events)
        self._node.check()  # an answer that would have arrived through a cut is lost
        return answer

    async def beat(self, beat: Beat) -> BeatAnswer:
        """See ControllerLink."""
        self._node.check()
        answer = await self._inner.beat(beat)
        self._node.check()
        return answer

    async def close(self) -> None:
        """See ControllerLink."""
        await self._inner.close()


class Address(Struct, frozen=True):
    """Where a controller listens. `pid` tells two controllers on the same port apart."""

    url: str
    pid: int = 0


class ControllerFile:
    """The address in a `controller.json` that may come, change and go.

    Args:
        path: the file; its folder need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.address: Address | None = None
        self.changed = asyncio.Event()
        """Set at every change; whoever has acted on it clears it."""
        self._inotify: inotify_simple.INotify | None = None
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Read the file now and follow it."""
        self.look()
        if not self._watch():
            self._looking = asyncio.create_task(self._look_again())

    def look(self) -> None:
        """Read the file. A torn or missing one changes nothing: the last address is still the best guess."""
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=Address)
        except (OSError, msgspec.MsgspecError):
            return
        if found != self.address:
            self.address = found
            self.changed.set()

    def _watch(self) -> bool:
        try:
            self._inotify = inotify_simple.INotify(nonblocking=True)
            mask = inotify_flags.MOVED_TO | inotify_flags.CLOSE_WRITE | inotify_flags.ONLYDIR
            self._inotify.add_watch(str(self._path.parent), mask)
        except OSError:
            if self._inotify is not None:
                self._inotify.close()
                self._inotify = None
            return False
        asyncio.get_running_loop().add_reader(self._inotify.fileno(), self._on_event)
        self.look()  # it may have been written between the first look and the watch
        return True

    def _on_event(self) -> None:
        if self._inotify is not None:
            self._inotify.read(timeout=0)
            self.look()

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()
            if self._watch():
                return

    def close(self) -> None:
        """Stop following."""
        if self._looking is not None:
            self._looking.cancel()
        if self._inotify is not None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed already
                asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None


class FixedAddress:
    """The address that a configuration names; it never changes. Has the form of `ControllerFile`."""

    def __init__(self, url: str) -> None:
        self.address: Address | None = Address(url)
        self.changed = asyncio.Event()

    def start(self) -> None:
        """There is nothing to follow."""

    def close(self) -> None:
        """There is nothing to stop."""


AddressSource = ControllerFile | FixedAddress
