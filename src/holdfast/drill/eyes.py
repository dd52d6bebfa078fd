"""The controller as drills see it, over `holdfast.client`.

Made by `stage` for the controller that it starts and by `site` for one that runs. Time passes in requests only.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from holdfast.client import AsyncClient
from holdfast.errors import LinkError, NotFoundError
from holdfast.model.cluster import JobKey, attempt_name
from holdfast.model.records import JobRecord
from holdfast.model.wire import ADDRESS_SIZE_MAX, ControllerAddress
from holdfast.os.files import read_bounded
from holdfast.os.tls import Trust
from holdfast.os.tokens import token_in

_RETRY_S = 0.1


class ControllerEyes(AsyncClient):
    """A client of the controller, with what drills ask again and again."""

    @classmethod
    def of_folder(cls, cluster_dir: Path, *, pid: int = 0) -> ControllerEyes:
        """The controller whose address stands in a cluster's folder; with `pid`, only that process's.

        Raises:
            LinkError: it has not written its address yet.
        """
        folder = cluster_dir / "controller"
        try:
            text = read_bounded(folder / "controller.json", ADDRESS_SIZE_MAX)
            facts = msgspec.json.decode(text, type=ControllerAddress)
            token = token_in(folder / "token") if (folder / "token").exists() else ""
        except (OSError, msgspec.MsgspecError) as error:
            raise LinkError(
                f"{folder / 'controller.json'} does not say yet where the controller is: {error}"
            ) from error
        if pid and facts.pid not in {0, pid}:
            raise LinkError(f"{folder / 'controller.json'} is of an earlier controller")
        # The stage has started it on this machine, perhaps at an address that its nodes' namespaces reach.
        return cls(facts.url, token, trust=Trust(plain_http=True))

    async def job(self, key: JobKey) -> JobRecord:
        """The job's record. Raises NotFoundError."""
        found = await self.jobs(job=str(key))
        if not found:
            raise NotFoundError(f"the controller knows no job {key}")
        return found[-1]

    async def wait(self, after: int, timeout_s: float) -> int:
        """Wait until an event with a sequence number above `after` is stored, or the time is over; the newest one.

        Away controllers are waited for, not reported: the next look will say so.
        """
        try:
            return (await self.events(after=after, wait_s=timeout_s)).last
        except LinkError:
            await asyncio.sleep(min(_RETRY_S, timeout_s))
            return after

    async def step_times(self, key: JobKey, attempt: int) -> list[float]:
        """Seconds that steps of an attempt took, oldest first; empty when nobody measured any."""
        subject = f"job:{attempt_name(str(key), attempt)}*"
        return [sample.value for sample in await self.samples("step_s", subject)]
