"""The node's own share of the `network` suite: interfaces, MTU, speed; a pair with itself over the loopback. A step.

Time: that of one paired test on this machine.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.validate.registry import Options
from holdfast.validate.results import Item, text_of

NET = Path("/sys/class/net")


def look(options: Options) -> list[Item]:
    """The step."""
    del options
    items = []
    for path in sorted(NET.glob("*")):
        state = text_of(path / "operstate")
        if path.name == "lo" or state == "down":
            continue
        mtu = text_of(path / "mtu")
        items.append(Item(name=f"network.mtu.{path.name}", text=mtu, unit="bytes", same=True))
        speed = text_of(path / "speed")
        if speed.isdigit() and (path / "device").exists():
            items.append(Item(name=f"network.speed.{path.name}", value=float(speed), unit="Mb/s", better="higher"))
    return items or [Item(name="network.interfaces", text="none but the loopback")]
