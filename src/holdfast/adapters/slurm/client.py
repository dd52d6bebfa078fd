"""A Slurm cluster as an orchestrator: looks, waits for changes, hands orders to those who carry them out.

`holdfast controller --cluster slurm:[SLURM_CONF]` runs it, as SlurmUser or root. Fulfils `ports.Orchestrator`; the
orders themselves are in `job_orders.py` and `node_orders.py`. How time passes: while something is in motion the cheap
look is taken several times a second, at rest once in a while, and never so often that it costs more than a tenth of
the time; a push (`push.py`) brings the next look at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import structlog
from msgspec.structs import replace

from holdfast.adapters.slurm import daemons
from holdfast.adapters.slurm.job_orders import JobOrders
from holdfast.adapters.slurm.looks import Looks, Reading
from holdfast.adapters.slurm.memory import Memory
from holdfast.adapters.slurm.node_orders import NodeOrders
from holdfast.adapters.slurm.output import NO_REQUEUE, NO_SHRINK, SlurmJob
from holdfast.adapters.slurm.push import PushPort
from holdfast.adapters.slurm.rest import Rest
from holdfast.adapters.slurm.settings import SlurmConfig
from holdfast.adapters.slurm.starts import Starts
from holdfast.adapters.slurm.tool import Tool
from holdfast.adapters.slurm.views import busy_nodes, job_view, node_view, out_of_reach
from holdfast.errors import LinkError, PermanentOrderError, TemporaryOrderError
from holdfast.model import orders as o
from holdfast.model.cluster import NODE_KIND, JobKey, JobView, SchedulerState, Unseen, WorldView

LOAD_SHARE = 0.1
"""At most this part of the time goes into looking."""
QUICK_S = 0.15
SLOW_S = 1.0
MOTION_S = 10.0
"""After a change or an order, changes are expected for this long."""
SAME_FOR_S = 10.0
"""While the cheap look shows no change, a full look is believed for this long, or fifty times what it cost."""

_log = structlog.get_logger("holdfast.slurm")


class SlurmOrchestrator:
    """See the module.

    Args:
        config: what the site says about its Slurm.
        conf: slurm.conf, where it is not the one that Slurm's tools find.
        folder: where the adapter keeps what it must remember, and listens for pushes.
        pull_in_s: a released job may start so many seconds from now; 0 invites the credential race and is for tests.
    """

    name = "slurm"

    def __init__(
        self, config: SlurmConfig, *, conf: Path | None = None, folder: Path | None = None, pull_in_s: int = 1
    ) -> None:
        self.tool = Tool(conf)
        self.memory = Memory(folder)
        token_file = Path(config.rest_token_file) if config.rest_token_file else None
        self.rest = Rest(config.rest, token_file) if config.rest else None
        self.looks = Looks(self.tool, self.memory, self.rest)
        self.push = PushPort(folder)
        self.starts = Starts(self.tool, self.looks, self.memory, on_change=self._stir)
        self.jobs = JobOrders(
            self.tool,
            self.looks,
            self.memory,
            find=self._find,
            released=self.starts.released,
            pull_in_s=pull_in_s,
        )
        self.nodes = NodeOrders(self.tool, self.looks, self.memory, config, until_killed=self.jobs.until_killed)
        self._pulse = b""
        self._world: WorldView | None = None
        self._world_at = 0.0
        self._moved_at = time.monotonic()

    # --- looking ---

    async def observe(self) -> WorldView:
        """See ports.Orchestrator."""
        self.push.start()
        pulse = await self.looks.pulse()
        now = time.monotonic()
        if pulse != self._pulse:
            self._moved_at = now
        known = self._world
        same_for_s = max(SAME_FOR_S, 50 * self.looks.cost_s) if self.looks.cost_s > QUICK_S else 0.0
        if known is not None and pulse == self._pulse and now - self._world_at < same_for_s:
            return replace(known, at=time.time())
        reading = await self.looks.fresh()
        self._pulse = pulse
        self._world, self._world_at = self._view(reading), now
        return self._world

    def _view(self, reading: Reading) -> WorldView:
        cluster = self.looks.facts.name
        busy = busy_nodes(reading.jobs.values())
        away = out_of_reach(reading.nodes.values(), self.looks.facts.slurmd_timeout_s / 2)
        why = f"slurmctld does not reach {len(away)} of its {len(reading.nodes)} nodes and has set them down"
        self.starts.look(reading)
        return WorldView(
            cluster=cluster,
            at=reading.at,
            jobs=tuple(self._job(job) for job in reading.jobs.values()),
            nodes=tuple(
                node_view(
                    node,
                    jobs=tuple(sorted(busy.get(node.name, ()))),
                    machine=self.nodes.machine_of(node),
                    boot=self.nodes.boot_of(node),
                    answered_at=self.memory.node(node.name).answered_at,
                    is_out_of_reach=node.name in away,
                )
                for node in reading.nodes.values()
            ),
            complete=reading.complete,
            unseen=(Unseen(NODE_KIND, why),) if away else (),
        )

    def _job(self, job: SlurmJob) -> JobView:
        view = job_view(job, self.key_of(job))
        if view.recovery is not None and view.want_nodes > 1 and not self.looks.facts.may_shrink:
            view = replace(view, warnings=(*view.warnings, NO_SHRINK))
        if view.recovery is not None and view.recovery.enabled and not job.requeue:
            view = replace(view, warnings=(*view.warnings, NO_REQUEUE))
        if self.starts.is_mending(job):
            # Slurm refused the start, or forgot our release: it is being asked again.
            return replace(view, state=SchedulerState.PENDING, nodes=(), exit_code=None, signal=None, ended_at=0.0)
        return view

    def key_of(self, job: SlurmJob) -> JobKey:
        """The job's key, with its generation."""
        return JobKey(self.looks.facts.name, job.id, self.memory.seen(job).generation)

    async def wait_change(self, timeout_s: float) -> bool:
        """See ports.Orchestrator."""
        self.push.start()
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            pushed = await self.push.wait(min(left_s, self._pause_s()))
            if pushed:
                self._moved_at = time.monotonic()
                return True
            try:
                if await self.looks.pulse() != self._pulse:
                    return True
            except LinkError:
                await asyncio.sleep(min(0.5, max(0.0, left_s)))
                return True
        return False

    def _pause_s(self) -> float:
        moving = time.monotonic() - self._moved_at < MOTION_S
        return max(QUICK_S if moving else SLOW_S, self.looks.pulse_s / LOAD_SHARE)

    def _stir(self) -> None:
        self._moved_at = time.monotonic()
        self.push.ring()

    async def why_gone(self, node: str, *, claimed: bool = False) -> str:
        """See ports.Witness: its slurmd is asked, and that of other nodes."""
        return await daemons.why_gone(node, self.looks.nodes, self.looks.facts.slurmd_port, claimed=claimed)

    @property
    def cluster_name(self) -> str:
        """See api.exchange.Directory."""
        return self.looks.facts.name

    def node_address(self, node: str) -> str:
        """See api.exchange.Directory: NodeAddr as last seen."""
        known = self.looks.nodes.get(node)
        return known.address if known is not None else ""

    # --- orders ---

    def can(self, order: o.AnyOrder) -> bool:
        """See ports.Orchestrator."""
        return self.jobs.can(order) or self.nodes.can(order)

    async def execute(self, order: o.AnyOrder) -> str:
        """See ports.Orchestrator."""
        self._stir()
        try:
            if isinstance(order, o.JobOrder) and self.jobs.can(order):
                return await self.jobs.execute(order)
            if isinstance(order, o.NodeOrder) and self.nodes.can(order):
                return await self.nodes.execute(order)
        except LinkError as error:
            raise TemporaryOrderError(str(error)) from error
        finally:
            if isinstance(order, o.NodeOrder):
                # Which machine and which boot is behind a name is our own knowledge: Slurm's states may look as before.
                self._world = None
            self._stir()
        raise PermanentOrderError(f"Slurm does not carry out {type(order).__name__}")

    def _find(self, reading: Reading, key: JobKey) -> SlurmJob | None:
        job = reading.jobs.get(key.id)
        if job is None or self.memory.seen(job).generation != key.generation:
            return None
        return job

    async def close(self) -> None:
        """Stop listening, and end what is under way."""
        self.push.close()
        with contextlib.suppress(asyncio.CancelledError):
            await self.starts.close()
        await self.nodes.close()
        await self.looks.close()
        if self.rest is not None:
            await self.rest.close()
