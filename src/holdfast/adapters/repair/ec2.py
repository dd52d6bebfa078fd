"""Nodes that are EC2 instances: rebooted, or terminated and waited for until another one runs in their place.

What has been done is written where it lasts: the old instance carries the tag `holdfast:order`, the new one
`holdfast:replaces`, both with the order's id. A controller that is killed and asks again thus finds its own work, and
one order ends one instance. A name that leads to several instances is refused, never guessed. All nodes that wait share
one look at EC2, calls go through boto3's own adaptive pacing, and reboots that come together are one call.

boto3 blocks, so it runs in threads. Time passes until the replacement runs, at most `wait_s`.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import structlog

from holdfast.adapters.repair.ec2_output import (
    COMING,
    LIVE,
    Instance,
    error_of,
    instances,
    named_instance,
    scaling_trouble,
)
from holdfast.adapters.repair.settings import Ec2Config, Replacing
from holdfast.adapters.repair.words import Outcome, node_of, sentence
from holdfast.errors import PermanentOrderError, TemporaryOrderError, UsageError
from holdfast.model import orders as o

ORDER_TAG = "holdfast:order"
REPLACES_TAG = "holdfast:replaces"
GATHER_S = 0.05
REBOOTS_MAX = 100
"""Instances in one RebootInstances."""
ACTIVITIES_EVERY = 3
"""One look at the group's scaling activities for so many at the instances."""
CLOCKS_S = 1.0
"""EC2 tells whole seconds."""
T = TypeVar("T")
_log = structlog.get_logger("holdfast.repair")


class Ec2Repair:
    """See the module. Fulfils `ports.Repair`.

    Raises:
        UsageError: boto3 is not installed.
    """

    def __init__(self, config: Ec2Config) -> None:
        try:
            import boto3  # noqa: PLC0415 - the extra `aws`
            import botocore.config  # noqa: PLC0415
            import botocore.exceptions as foreign  # noqa: PLC0415
            import botocore.parsers  # noqa: PLC0415
        except ImportError as error:
            raise UsageError("[repair.ec2] needs boto3: pip install 'holdfast[aws]'") from error
        self._config = config
        self._foreign: Any = foreign
        self._garbled: Any = botocore.parsers.ResponseParserError
        self._boto3: Any = boto3
        self._settings: Any = botocore.config.Config(
            retries={"mode": "adaptive", "max_attempts": 5}, connect_timeout=10, read_timeout=60
        )
        self._clients: dict[str, Any] = {}
        self._claims = asyncio.Lock()
        self._look: tuple[float, asyncio.Task[list[Instance]]] | None = None
        self._finding: asyncio.Task[list[Instance]] | None = None
        self._rebooting: tuple[list[str], asyncio.Task[None]] | None = None
        self.calls: dict[str, int] = {}
        """How often each call was made."""

    # --- the way there ---

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._boto3.client(
                service,
                region_name=self._config.region,
                endpoint_url=self._config.endpoint or None,
                config=self._settings,
            )
        return self._clients[service]

    async def _ask(self, service: str, what: str, call: Callable[[Any], T]) -> T:
        """One call in a thread; errors come out as order errors with their names."""
        self.calls[what] = self.calls.get(what, 0) + 1
        try:
            return await asyncio.to_thread(lambda: call(self._client(service)))
        except self._foreign.ClientError as error:
            said = error.response.get("Error", {})
            raise error_of(what, str(said.get("Code", "")), str(said.get("Message", error))) from error
        except (
            self._foreign.NoCredentialsError,
            self._foreign.PartialCredentialsError,
            self._foreign.CredentialRetrievalError,
            self._foreign.NoRegionError,
        ) as error:
            raise PermanentOrderError(sentence(Outcome.PERMISSION, f"EC2 {what}: {error}")) from error
        except (self._foreign.BotoCoreError, self._garbled, OSError) as error:
            raise TemporaryOrderError(sentence(Outcome.AWAY, f"EC2 {what}: {error}"), retry_after_s=10.0) from error

    async def _describe(self, filters: Mapping[str, Sequence[str]], ids: Sequence[str] = ()) -> list[Instance]:
        every = {**self._config.filters, **filters}
        form = [{"Name": name, "Values": list(values)} for name, values in every.items()]

        def pages(client: Any) -> list[Any]:
            more = {"InstanceIds": list(ids)} if ids else {}
            return list(client.get_paginator("describe_instances").paginate(Filters=form, **more))

        return instances(await self._ask("ec2", "DescribeInstances", pages))

    async def _world(self) -> list[Instance]:
        """All instances that the filters let through: one look per `poll_s` for everyone who waits."""
        now = time.monotonic()
        if self._look is None or now - self._look[0] >= self._config.poll_s or _has_failed(self._look[1]):
            self._look = (now, asyncio.ensure_future(self._describe({})))
        return await asyncio.shield(self._look[1])

    async def _tag(self, instance: str, **tags: str) -> None:
        form = [{"Key": name.replace("__", ":"), "Value": value} for name, value in tags.items()]
        await self._ask("ec2", "CreateTags", lambda client: client.create_tags(Resources=[instance], Tags=form))

    # --- the port ---

    def can(self, order: o.AnyOrder) -> bool:
        """Reboots and replacements, as configured."""
        if isinstance(order, o.RebootNode):
            return self._config.reboot
        return isinstance(order, o.ReplaceNode) and self._config.replace is not Replacing.OFF

    async def execute(self, order: o.AnyOrder) -> str:
        """See `ports.Orchestrator.execute`."""
        if isinstance(order, o.RebootNode):
            return await self._reboot(order)
        if isinstance(order, o.ReplaceNode):
            return await self._replace(order)
        raise PermanentOrderError(f"EC2 does not carry out {type(order).__name__}")

    async def _find(self, node: str) -> list[Instance]:
        """Live instances that the node's name leads to."""
        return [one for one in await self._live_now() if self._is_node(one, node)]

    async def _live_now(self) -> list[Instance]:
        """What lives now: one look for all who ask within the same moment."""
        if self._finding is None:
            self._finding = asyncio.ensure_future(self._describe_live())
        return await asyncio.shield(self._finding)

    async def _describe_live(self) -> list[Instance]:
        await asyncio.sleep(GATHER_S)
        self._finding = None  # who asks from here on is told of later things
        return await self._describe({"instance-state-name": sorted(LIVE)})

    def _is_node(self, one: Instance, node: str) -> bool:
        find = self._config.find
        if find == "instance-id":
            return one.id == node
        if find.startswith("tag:"):
            return one.tags.get(find[4:]) == node
        return node in {one.private_dns, one.private_dns.partition(".")[0]}

    async def _one(self, order: o.NodeOrder) -> Instance:
        """The instance that the order is about.

        Raises:
            PermanentOrderError: there is none, or more than one.
        """
        node = node_of(order)
        found = await self._find(node)
        if not found:
            where = f"{self._config.find} in {self._config.region}"
            raise PermanentOrderError(sentence(Outcome.NOT_FOUND, f"EC2 has no live instance for {node} ({where})"))
        if len(found) > 1:
            ids = ", ".join(one.id for one in found[:5])
            raise PermanentOrderError(
                sentence(Outcome.REFUSED, f"{node} leads to {len(found)} instances ({ids}): narrow the filters")
            )
        return found[0]

    # --- reboot ---

    async def _reboot(self, order: o.RebootNode) -> str:
        one = await self._one(order)
        if named_instance(order.instance_id) not in {"", one.id}:
            raise PermanentOrderError(f"{order.node} is another machine now ({one.id})")
        if one.tags.get(ORDER_TAG) == order.id:
            return f"{one.id} was told to reboot already"
        await self._reboot_together(one.id)
        await self._tag(one.id, holdfast__order=order.id)
        return f"{one.id} reboots"

    async def _reboot_together(self, instance: str) -> None:
        """With others that are asked for within the next moment."""
        if self._rebooting is None or len(self._rebooting[0]) >= REBOOTS_MAX:
            ids: list[str] = []
            self._rebooting = (ids, asyncio.ensure_future(self._reboot_now(ids)))
        ids, task = self._rebooting
        ids.append(instance)
        await asyncio.shield(task)

    async def _reboot_now(self, ids: list[str]) -> None:
        await asyncio.sleep(GATHER_S)
        if self._rebooting is not None and self._rebooting[0] is ids:
            self._rebooting = None
        await self._ask("ec2", "RebootInstances", lambda client: client.reboot_instances(InstanceIds=list(ids)))

    # --- replace ---

    async def _replace(self, order: o.ReplaceNode) -> str:
        mine = await self._describe({f"tag:{ORDER_TAG}": [order.id]})
        old = mine[0] if mine else await self._old(order)
        if not mine and named_instance(order.instance_id) not in {"", old.id}:
            return f"{order.node} is another machine already ({old.id})"
        if not mine:
            await self._tag(old.id, holdfast__order=order.id)
        if old.state in LIVE:
            await self._ask(
                "ec2", "TerminateInstances", lambda client: client.terminate_instances(InstanceIds=[old.id])
            )
            _log.info("an instance was terminated", node=order.node, instance=old.id, order=order.id)
            # Its end has a time now, by EC2's clock: what is launched from then on may be its replacement.
            old = next(iter(await self._describe({}, [old.id])), old)
        new = await self._successor(order, old)
        return f"{old.id} was terminated, {new.id} ({new.private_ip or 'no address'}) runs in its place"

    async def _old(self, order: o.ReplaceNode) -> Instance:
        """The instance to be replaced; one that AWS has ended by itself is waited for like one that we end."""
        named = named_instance(order.instance_id)
        if named and not await self._find(node_of(order)):
            known = await self._describe({"instance-id": [named]})
            if known:
                return known[0]
        return await self._one(order)

    async def _successor(self, order: o.ReplaceNode, old: Instance) -> Instance:
        """Wait until the instance that takes the place runs."""
        deadline = time.monotonic() + self._config.wait_s
        trouble: tuple[Outcome, str] | None = None
        looks = 0
        while True:
            new = await self._claim(order, old)
            if new is not None and new.state == "running":
                return new
            if new is None and old.group and looks % ACTIVITIES_EVERY == 0:
                trouble = await self._trouble(old) or trouble
                if trouble is not None and trouble[0] in {Outcome.LIMIT, Outcome.PERMISSION}:
                    raise PermanentOrderError(sentence(trouble[0], f"group {old.group}: {trouble[1]}"))
            looks += 1
            if time.monotonic() >= deadline:
                kind, words = trouble or (Outcome.TIMED_OUT, "EC2 names no reason")
                text = f"nothing took the place of {old.id} within {self._config.wait_s:g} s: {words}"
                raise PermanentOrderError(sentence(kind, text))
            await asyncio.sleep(min(self._config.poll_s, max(0.0, deadline - time.monotonic())))

    async def _trouble(self, old: Instance) -> tuple[Outcome, str] | None:
        answer = await self._ask(
            "autoscaling",
            "DescribeScalingActivities",
            lambda client: client.describe_scaling_activities(AutoScalingGroupName=old.group, MaxRecords=10),
        )
        return scaling_trouble(answer.get("Activities", ()), (old.ended_at or old.launched_at) - CLOCKS_S)

    async def _claim(self, order: o.ReplaceNode, old: Instance) -> Instance | None:
        """The instance that is this order's: the one it took before, one nobody has taken yet, or a new one."""
        async with self._claims:
            world = await self._world()
            taken = [one for one in world if one.tags.get(REPLACES_TAG) == order.id and one.state in COMING]
            if taken:
                return taken[-1]
            fit = [one for one in world if one.state in COMING and self._may_follow(one, old, order.node)]
            if fit:
                tags = {"holdfast__replaces": order.id}
                if self._config.find.startswith("tag:"):
                    tags[self._config.find[4:].replace(":", "__")] = order.node
                await self._tag(fit[0].id, **tags)
                self._look = None  # it is somebody's from now on
                return fit[0]
            if self._config.replace is Replacing.LAUNCH:
                new = await self._launch(order, old)
                self._look = None
                return new
            return None

    def _may_follow(self, one: Instance, old: Instance, node: str) -> bool:
        """Is it a machine that came for this one, as far as EC2 can tell?"""
        since = old.ended_at or old.launched_at + CLOCKS_S
        if one.id == old.id or one.launched_at < since or REPLACES_TAG in one.tags:
            return False
        if old.group:
            return one.group == old.group
        return self._is_node(one, node)

    async def _launch(self, order: o.ReplaceNode, old: Instance) -> Instance:
        """Ask for one from the launch template. The order's id is its client token: asked twice, it is one."""
        tags = {name: value for name, value in old.tags.items() if not name.startswith(("aws:", "holdfast:"))}
        tags[REPLACES_TAG] = order.id
        template = self._config.launch_template
        by = "LaunchTemplateId" if template.startswith("lt-") else "LaunchTemplateName"
        form = {
            "LaunchTemplate": {by: template, "Version": "$Default"},
            "MinCount": 1,
            "MaxCount": 1,
            "ClientToken": hashlib.sha256(f"{order.id}:{old.id}".encode()).hexdigest(),
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
            ],
        }
        if old.subnet:
            form["SubnetId"] = old.subnet
        answer = await self._ask("ec2", "RunInstances", lambda client: client.run_instances(**form))
        return instances([{"Reservations": [answer]}])[0]


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
