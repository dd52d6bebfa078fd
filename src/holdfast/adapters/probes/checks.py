"""Every check and every source, by name: the registry that the agent, `holdfast check` and the docs read."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TypeVar

from holdfast.adapters.probes import (
    checks_fabric,
    checks_gpu,
    checks_kernel,
    checks_node,
    checks_tools,
    site_checks,
)
from holdfast.adapters.probes.check import Check, Mode, Source

T = TypeVar("T", Check, Source)
_MODULES = (checks_gpu, checks_kernel, checks_fabric, checks_node, checks_tools, site_checks)


def _declared(module: ModuleType, kind: type[T]) -> Iterator[T]:
    """Those that a module has made, in its order."""
    for one in vars(module).values():
        yield from (each for each in (one if isinstance(one, tuple) else (one,)) if isinstance(each, kind))


CHECKS: dict[str, Check] = {one.name: one for module in _MODULES for one in _declared(module, Check)}
SOURCES: dict[str, Source] = {one.name: one for module in _MODULES for one in _declared(module, Source)}


def of_mode(mode: Mode) -> list[Check]:
    """The checks of a mode, in order."""
    return [check for check in CHECKS.values() if mode in check.modes]
