"""Is this node cut off? Every Holdfast transport on an embedded node asks here before it sends or receives.

An embedded node shares its machine's network with all others, so a network cut is a file named `cut` in the node's
folder. Agents, launchers and the scheduler honour it. The training's own sockets are not cut: what a cut-off node's
ranks do to their collectives has to be drilled by other means. On real nodes there is no such folder and `check` is
free.

No time passes here; one check costs a `stat` (about a microsecond).
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import LinkError

CUT_NAME = "cut"


class NodeLink:
    """The network of one node, as far as Holdfast's own messages go.

    Args:
        node_dir: the embedded node's folder (`HOLDFAST_NODE_DIR`); None or empty on a real node, which is never cut.
    """

    __slots__ = ("_marker", "_name")

    def __init__(self, node_dir: str | os.PathLike[str] | None) -> None:
        self._marker = os.path.join(node_dir, CUT_NAME) if node_dir else ""  # noqa: PTH118 - a string for `stat`
        self._name = Path(node_dir).name if node_dir else ""

    @property
    def is_cut(self) -> bool:
        """True while the node's network is cut."""
        return bool(self._marker) and os.path.exists(self._marker)  # noqa: PTH110 - hot path, no Path object

    def is_cut_from(self, node: str) -> bool:
        """True while the network of this node or of that one is cut; "": of this one."""
        if self.is_cut or not node or not self._marker:
            return self.is_cut
        beside = os.path.dirname(os.path.dirname(self._marker))  # noqa: PTH120 - as above
        return os.path.exists(os.path.join(beside, node, CUT_NAME))  # noqa: PTH110, PTH118 - as above

    def check(self) -> None:
        """Raise LinkError while the node's network is cut."""
        if self.is_cut:
            raise LinkError(f"{self._name} is cut off from the network (drill)")
