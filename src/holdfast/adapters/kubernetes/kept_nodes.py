"""Nodes whose machine is being replaced, kept in the cluster itself: a ConfigMap each, for whoever takes over.

While a machine is replaced its Node may be gone, and the new one's Node knows nothing of our cordon. `node_orders`
keeps the old Node here before it begins, and `client` shows it as being replaced meanwhile; a controller that finds one
of another's goes on from there. Kept beside put-away jobs in Holdfast's own namespace, where nobody else writes, and
seen by the same watch. What is too old is ignored: an order that was withdrawn leaves one behind, which the next one
takes away. Pure but for `KeptNodes`.
"""

from __future__ import annotations

import contextlib
import re
import time

import msgspec
import structlog

from holdfast.adapters.kubernetes.api import ApiError
from holdfast.adapters.kubernetes.asks import HOLDFAST
from holdfast.adapters.kubernetes.looks import Looks
from holdfast.adapters.kubernetes.objects import Json, Node, seconds
from holdfast.adapters.kubernetes.put_away import MANIFEST, collection, record, write
from holdfast.errors import LinkError

KIND = "Node"
SLACK_S = 900.0
"""Beyond the longest repair: clocks of controllers and API server differ by minutes."""
_log = structlog.get_logger("holdfast.kubernetes")


def name_of(node: str) -> str:
    """Its ConfigMap's name."""
    return f"holdfast-node-{re.sub('[^a-z0-9.-]', '-', node.lower())}"[:253]


def kept(node: Node, namespace: str) -> Json:
    """The ConfigMap."""
    return record(name_of(node.metadata.name), namespace, {"kind": KIND}, msgspec.json.encode(node).decode())


def taken_out(config_map: Json) -> Node | None:
    """The node that a ConfigMap keeps; None when it is not a node's record or cannot be read."""
    if (config_map["metadata"].get("annotations") or {}).get(f"{HOLDFAST}/kind") != KIND:
        return None
    try:
        node = msgspec.json.decode((config_map.get("data") or {}).get(MANIFEST, ""), type=Node)
    except msgspec.MsgspecError:
        return None
    return node if config_map["metadata"].get("name") == name_of(node.metadata.name) else None


class KeptNodes:
    """See the module. `limit_s`: how long a replacement may take at most."""

    def __init__(self, looks: Looks, *, limit_s: float) -> None:
        self._looks = looks
        self._limit_s = limit_s

    def all(self) -> dict[str, Node]:
        """Name -> the node as it was when its replacement began."""
        oldest = time.time() - self._limit_s - SLACK_S
        found: dict[str, Node] = {}
        for config_map in self._looks.put_away.items.values():
            node = taken_out(config_map)
            if node is not None and seconds(config_map["metadata"].get("creationTimestamp")) >= oldest:
                found[node.metadata.name] = node
        return found

    async def keep(self, node: Node) -> None:
        """Keep it until `forget`. Raises ApiError, LinkError."""
        body = kept(node, self._looks.namespace)
        known = next((one for one in self._looks.put_away.items.values() if taken_out(one) == node), None)
        if known is not None and node.metadata.name in self.all():
            return
        # One that is left over is replaced as a whole: its age says how long the replacement has taken.
        with contextlib.suppress(ApiError):
            await self._looks.api.delete(f"{collection(self._looks.namespace)}/{body['metadata']['name']}")
        self._looks.put_away.take(await write(self._looks.api, body))

    async def forget(self, name: str) -> None:
        """It is replaced, or will not be."""
        for config_map in list(self._looks.put_away.items.values()):
            node, about = taken_out(config_map), config_map["metadata"]
            if node is None or node.metadata.name != name:
                continue
            try:
                path = f"{collection(self._looks.namespace)}/{about['name']}"
                await self._looks.api.drop(path, uid=about["uid"])
            except (ApiError, LinkError) as error:
                _log.warning("a kept node was left behind", node=name, why=str(error))
