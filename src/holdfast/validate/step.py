"""One step, as a process: `python -m holdfast.validate.step PARENT NAME OPTIONS`. Started by `running`.

It dies with its parent, so that a killed worker leaves nothing. What it finds goes as lines of JSON to the descriptor
that was standard output; libraries that print get standard error instead. Time: the step's own; the parent kills the
whole process group at the limit.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.adapters.local.node_init import die_with_parent
from holdfast.validate.registry import STEPS, Options
from holdfast.validate.results import Item

Tell = Callable[[dict[str, float | str]], None]


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a step: something on the way, or its end."""

    told: dict[str, float | str] = {}
    items: tuple[Item, ...] | None = None
    """At the end."""
    error: str = ""


def main(argv: list[str]) -> int:
    """Run the step and say what it found."""
    parent, name, raw = argv
    die_with_parent(signal.SIGKILL)
    if os.getppid() != int(parent):
        return 1
    fd = os.dup(1)
    os.dup2(2, 1)

    def tell(facts: dict[str, float | str]) -> None:
        os.write(fd, msgspec.json.encode(Told(told=facts)) + b"\n")

    options = msgspec.json.decode(raw, type=Options)
    module, _, function = STEPS[name].call.partition(":")
    call: Callable[..., Any] = getattr(importlib.import_module(f"holdfast.validate.{module}"), function)
    try:
        items = call(options, tell) if getattr(call, "tells", False) else call(options)
    except Exception as error:  # noqa: BLE001 - whatever a driver or library throws is the finding of this step
        end = Told(error=f"{type(error).__name__}: {error}"[:2000])
    else:
        end = Told(items=tuple(items))
    data = msgspec.json.encode(end) + b"\n"
    while data:
        data = data[os.write(fd, data) :]
    sys.stdout.flush()
    # Libraries with threads of their own have been seen to hang at exit; everything is said.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
