"""The controller as drills see it, over `holdfast.client`.

Made by `stage` for the controller that it starts and by `site` for one that runs. Time passes in requests only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.client import AsyncClient
from holdfast.errors import LinkError, NotFoundError
from holdfast.model.cluster import JobKey, attempt_name
from holdfast.model.events import AnyEvent
from holdfast.model.records import IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.model.wire import ControllerAddress

_RETRY_S = 0.1


class ControllerEyes:
    """What the controller knows. Every call but `wait` raises LinkError when it cannot be reached."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    @classmethod
    def of_folder(cls, cluster_dir: Path, *, pid: int = 0) -> ControllerEyes:
        """The controller whose address stands in a cluster's folder; with `pid`, only that process's.

        Raises:
            LinkError: it has not written its address yet.
        """
        folder = cluster_dir / "controller"
        try:
            facts = msgspec.json.decode((folder / "controller.json").read_bytes(), type=ControllerAddress)
            token = (folder / "token").read_text(encoding="ascii").strip() if (folder / "token").exists() else ""
        except (OSError, msgspec.MsgspecError) as error:
            raise LinkError(
                f"{folder / 'controller.json'} does not say yet where the controller is: {error}"
            ) from error
        if pid and facts.pid not in {0, pid}:
            raise LinkError(f"{folder / 'controller.json'} is of an earlier controller")
        return cls(AsyncClient(facts.url, token))

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()

    async def is_ready(self) -> bool:
        """Has it replayed its journal, and does it see the cluster?"""
        return await self.client.healthy()

    async def job(self, key: JobKey) -> JobRecord:
        """The job's record. Raises NotFoundError."""
        found = await self.client.jobs(job=str(key))
        if not found:
            raise NotFoundError(f"the controller knows no job {key}")
        return found[-1]

    async def nodes(self) -> list[NodeRecord]:
        """All nodes."""
        return await self.client.nodes()

    async def incidents(self) -> list[IncidentRecord]:
        """All incidents, newest first."""
        return await self.client.incidents(limit=200)

    async def orders(self) -> list[OrderRecord]:
        """Orders, newest first, bounded."""
        return await self.client.orders(limit=500)

    async def wait(self, after: int, timeout_s: float) -> int:
        """Wait until an event with a sequence number above `after` is stored, or the time is over; the newest one.

        Away controllers are waited for, not reported: the next look will say so.
        """
        try:
            return (await self.client.events(after=after, wait_s=timeout_s)).last
        except LinkError:
            await asyncio.sleep(min(_RETRY_S, timeout_s))
            return after

    async def tell(self, events: Sequence[AnyEvent]) -> None:
        """Hand events of one source, one at least, to the controller (the true time of a fault)."""
        await self.client.ingest(events[0].source, events)

    async def step_times(self, key: JobKey, attempt: int) -> list[float]:
        """Seconds that steps of an attempt took, oldest first; empty when nobody measured any."""
        subject = f"job:{attempt_name(str(key), attempt)}*"
        return [sample.value for sample in await self.client.samples("step_s", subject)]
