"""Every check and every source, by name: the registry that the agent, `holdfast check` and the docs read."""

from __future__ import annotations

from holdfast.adapters.probes import sources_gpu
from holdfast.adapters.probes.check import Check, Mode, Source
from holdfast.adapters.probes.checks_fabric import FABRIC_CHECKS, FABRIC_SOURCES
from holdfast.adapters.probes.checks_gpu import GPU_CHECKS
from holdfast.adapters.probes.checks_kernel import KERNEL_CHECKS, KERNEL_SOURCES
from holdfast.adapters.probes.checks_node import NODE_CHECKS, NODE_SOURCES
from holdfast.adapters.probes.checks_tools import TOOL_CHECKS, TOOL_SOURCES
from holdfast.adapters.probes.site_checks import SITE_CHECKS, SITE_SOURCES

CHECKS: dict[str, Check] = {
    check.name: check
    for check in (*GPU_CHECKS, *KERNEL_CHECKS, *FABRIC_CHECKS, *NODE_CHECKS, *TOOL_CHECKS, *SITE_CHECKS)
}
SOURCES: dict[str, Source] = {
    source.name: source
    for source in (sources_gpu.NVML, *KERNEL_SOURCES, *FABRIC_SOURCES, *NODE_SOURCES, *TOOL_SOURCES, *SITE_SOURCES)
}


def of_mode(mode: Mode) -> list[Check]:
    """The checks of a mode, in order."""
    return [check for check in CHECKS.values() if mode in check.modes]
