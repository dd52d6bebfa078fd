"""Checks of the machine itself: file systems, memory, processors, clock, services, left-over processes, PCI topology.

Judging is pure; the sources read through `Reach`. A file system of another machine is asked in a reading process with a
limit of its own: that it does not answer is what the check is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.adapters.probes import tool_output
from holdfast.adapters.probes.check import Judging, Mode, Problem, Reading, check, problem, source
from holdfast.adapters.probes.facts import MemoryControllerFacts, MountFacts, NodeFacts, PciFacts, ProcessFacts
from holdfast.adapters.probes.reach import READ_LIMIT_S, Reach, files, limit, tool
from holdfast.adapters.probes.sysfs_reading import NETWORK
from holdfast.model.evidence import Place
from holdfast.os.programs import Ran

MOUNT_LIMIT_S = 5.0
"""A file system over the network that needs longer for `statvfs` does not answer."""
WRITE_LIMIT_S = 20.0
TIMED_OUT = "timed out"
NO_SYSTEMD = "not been booted with systemd"
_JOURNALLED = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"})
"""File systems that turn read-only when they are damaged."""
_LOCAL = (*_JOURNALLED, "tmpfs", "zfs", "overlay")


NODE = files("node", "/proc and /sys", "Linux", NodeFacts)
EDAC = files("edac", "/sys/devices/system/edac", "an EDAC driver", tuple[MemoryControllerFacts, ...])


async def _asked(reach: Reach, what: str, limit_s: float, **args: str) -> dict[str, Any]:
    """What the reading process says of one file system; `error` when it does not answer."""
    answer = await reach.files.ask(what, limit(limit_s), **args)
    known: dict[str, Any] = answer.facts if isinstance(answer.facts, dict) else {}
    return known | {"error": TIMED_OUT if answer.hung else known.get("error") or answer.failed}


@source("mounts", "mounted file systems, by statvfs", "Linux", 60.0, 30.0)
async def _mounts(reach: Reach) -> Reading:
    """The mounts; those of other machines are asked one by one, each within MOUNT_LIMIT_S."""
    reading = await reach.read("mounts", tuple[MountFacts, ...], READ_LIMIT_S)
    if reading.facts is None:
        return reading
    asked = [
        replace(one, **await _asked(reach, "statvfs", MOUNT_LIMIT_S, point=one.point))
        if one.kind.startswith(NETWORK)
        else one
        for one in reading.facts
    ]
    return replace(reading, facts=tuple(asked))


class WriteFacts(Struct, frozen=True):
    """How writing in a folder went: empty when well."""

    folder: str
    error: str


@source("write", "a small file, written and read back", "profile.write_probe", 60.0, 60.0)
async def _write(reach: Reach) -> Reading:
    folders = reach.config.profile.write_probe
    if not folders:
        return Reading(absent="no folder is named in profile.write_probe")
    asked = [(folder, await _asked(reach, "write", WRITE_LIMIT_S, folder=folder)) for folder in folders]
    return Reading(facts=tuple(WriteFacts(folder, known["error"]) for folder, known in asked))


@source("services", "systemctl is-active, else processes by name", "profile.services", 15.0, 60.0)
async def _services(reach: Reach) -> Reading:
    names = reach.config.profile.services
    if not names:
        return Reading(absent="no service is named in profile.services")
    ran = await reach.run(("systemctl", "is-active", *names), 10.0)
    if ran.absent if isinstance(ran, Reading) else NO_SYSTEMD in ran.err:
        running = await reach.read("running", list[str], READ_LIMIT_S)
        if running.facts is None:
            return running
        # The kernel keeps fifteen characters of a process's name.
        return Reading(facts={name: "active" if name[:15] in running.facts else "not running" for name in names})
    if isinstance(ran, Reading):
        return ran
    words = tool_output.parse_active(names, ran.out)
    return Reading(facts=words) if words else Reading(failed=f"systemctl: {ran.err.strip()[:200]}")


@tool("chrony", "chronyc tracking", "chrony", lambda _: ("chronyc", "-n", "-c", "tracking"), 5.0, 60.0)
def tracked(ran: Ran) -> Reading:
    """What chrony says of the clock."""
    found = tool_output.parse_tracking(ran.out)
    return Reading(facts=found, failed="" if found else f"chronyc: {(ran.out or ran.err).strip()[:200]}")


PROCESSES = files("processes", "/proc", "root, to see other users' processes", tuple[ProcessFacts, ...])
PCI = files("pci", "/sys/bus/pci", "a PCI bus", tuple[PciFacts, ...], 300.0)

_while_idle = partial(check, modes=(Mode.PERIODIC, Mode.PROLOG, Mode.DEEP))


@check("disk-space", "file systems that are full", "mounts", "check.disk_full", "check.disk_low", emulated_ok=False)
def space(facts: tuple[MountFacts, ...], judging: Judging) -> Iterator[Problem]:
    """File systems of this machine that are full, or nearly."""
    limits = judging.limits
    for mount in facts:
        if mount.kind not in _LOCAL or not mount.total or mount.read_only:
            continue
        percent = 100 * mount.free / mount.total
        full = mount.free < min(limits.disk_free_mib * 2**20, limits.disk_free_percent * mount.total / 100)
        if full or percent < limits.disk_warn_percent:
            rule, word = ("check.disk_full", "full") if full else ("check.disk_low", "nearly full")
            summary = f"the file system of {mount.point} is {word}: {mount.free >> 20} MiB are left ({percent:.1f} %)"
            yield problem(rule, summary, Place(path=mount.point), warning=not full)


@check("disk-read-only", "file systems that have become read-only", "mounts", "check.disk_read_only", emulated_ok=False)
def read_only(facts: tuple[MountFacts, ...], judging: Judging) -> Iterator[Problem]:
    """File systems that are read-only now and were not at the first look: the kernel does that when one is damaged."""
    required = {*judging.profile.mounts, *judging.profile.write_probe}
    for mount in facts:
        if mount.kind not in _JOURNALLED:
            continue
        before = judging.learned.setdefault(f"ro:{mount.point}", "ro" if mount.read_only else "rw")
        if mount.read_only and (before == "rw" or mount.point in required):
            summary = f"the file system of {mount.point} ({mount.device}) has become read-only"
            yield problem("check.disk_read_only", summary, Place(path=mount.point))


@check(
    "mount-stale", "network file systems that do not answer", "mounts", "check.mount_stale", looks=2, emulated_ok=False
)
def stale(facts: tuple[MountFacts, ...], _judging: Judging) -> Iterator[Problem]:
    """File systems of other machines that do not answer, or whose handle is stale."""
    for mount in facts:
        if mount.error and mount.kind.startswith(NETWORK):
            summary = f"{mount.point} ({mount.kind} of {mount.device}) does not answer: {mount.error}"
            yield problem("check.mount_stale", summary, Place(path=mount.point), text=mount.error)


@check("mounts", "mount points of the profile", "mounts", "check.mount_missing", grace_s=120.0, emulated_ok=False)
def required_mounts(facts: tuple[MountFacts, ...], judging: Judging) -> Iterator[Problem]:
    """Mount points of the profile that are not mounted."""
    there = {mount.point for mount in facts}
    for point in judging.profile.mounts:
        if point not in there:
            yield problem("check.mount_missing", f"{point} is not mounted", Place(path=point), text=point)


@check("disk-write", "folders take a file and give it back", "write", "check.disk_write", "check.disk_full", looks=2)
def write(facts: tuple[WriteFacts, ...], _judging: Judging) -> Iterator[Problem]:
    """Folders that do not take a file. A full one is the matter of `disk-space`."""
    for one in facts:
        if one.error:
            rule = "check.disk_full" if "No space left" in one.error else "check.disk_write"
            summary = f"{one.folder} cannot be written: {one.error}"
            yield problem(rule, summary, Place(path=one.folder), text=one.error)


@_while_idle(
    "memory",
    "memory: how much, how much is left",
    "node",
    "check.memory_missing",
    "check.memory_low",
    emulated_ok=False,
)
def memory(facts: NodeFacts, judging: Judging) -> Iterator[Problem]:
    """Memory that is missing, or nearly used up."""
    least = judging.profile.memory_gib
    if least is not None and facts.memory_total < least * 2**30:
        yield problem("check.memory_missing", f"{facts.memory_total / 2**30:.1f} GiB of memory, not {least:g}")
    percent = 100 * facts.memory_available / facts.memory_total if facts.memory_total else 100.0
    if percent < judging.limits.memory_free_percent:
        summary = f"{facts.memory_available >> 20} MiB of memory are left ({percent:.1f} %)"
        yield problem("check.memory_low", summary, warning=True)


@_while_idle(
    "edac",
    "errors of the node's memory",
    "edac",
    "check.edac_uncorrected",
    "check.edac_corrected",
    "check.edac_trend",
    emulated_ok=False,
)
def edac(facts: tuple[MemoryControllerFacts, ...], judging: Judging) -> Iterator[Problem]:
    """Memory errors that came since the last look, and corrected ones by their rate."""
    for one in facts:
        where = Place(path=one.name)
        if rise := judging.rise(f"edac:{one.name}:ue", one.uncorrected):
            summary = f"{rise} uncorrectable errors of the node's memory ({one.name})"
            yield problem("check.edac_uncorrected", summary, where, happened=True)
        least = judging.limits.edac_corrected_per_h
        per_h, grows = judging.hourly(f"edac:{one.name}:ce", one.corrected, least)
        if grows:
            summary = f"corrected errors of the node's memory come ever faster: {per_h} in an hour ({one.name})"
            yield problem("check.edac_trend", summary, where, predicts=True)
        elif per_h >= least:
            summary = f"{per_h} corrected errors of the node's memory in an hour ({one.name})"
            yield problem("check.edac_corrected", summary, where, warning=True)


@_while_idle("cpu", "processors and NUMA nodes of the profile", "node", "check.cpu_count")
def cpu(facts: NodeFacts, judging: Judging) -> Iterator[Problem]:
    """Processors and NUMA nodes against the profile."""
    for what, found, expected in (
        ("processors", facts.cpus, judging.profile.cpus),
        ("NUMA nodes", facts.numa_nodes, judging.profile.numa_nodes),
    ):
        if expected is not None and found < expected:
            yield problem("check.cpu_count", f"{found} of {expected} {what} are there")


@_while_idle("clock", "the clock: set by hand, not disciplined", "node", "check.clock_stepped", "check.clock_unsynced")
def clock(facts: NodeFacts, judging: Judging) -> Iterator[Problem]:
    """A clock that nothing disciplines, where something did; a clock that jumped."""
    # Seconds of the wall clock less seconds that never go back: constant, unless somebody sets the clock.
    offset = judging.now - judging.at
    before = float(judging.learned.get("clock:offset", offset))
    judging.learned["clock:offset"] = repr(offset)
    if abs(offset - before) > judging.limits.clock_step_s:
        summary = f"the clock was set {'forward' if offset > before else 'back'} by {abs(offset - before):.1f} s"
        yield problem("check.clock_stepped", summary, warning=True, happened=True)
    if facts.clock_synced:
        judging.learned["clock:synced"] = "yes"
    elif facts.clock_synced is False and judging.learned.get("clock:synced"):
        yield problem("check.clock_unsynced", "nothing disciplines the clock any more (NTP)", warning=True)


@_while_idle(
    "chrony",
    "the clock, as chrony sees it",
    "chrony",
    "check.clock_unsynced",
    "check.clock_offset",
    grace_s=120.0,
    looks=3,
    emulated_ok=False,
)
def chrony(facts: tool_output.Tracking, judging: Judging) -> Iterator[Problem]:
    """What chrony says."""
    if facts.leap.lower().startswith("not sync"):
        yield problem("check.clock_unsynced", "chrony is not synchronised", warning=True)
    elif abs(facts.offset_s) > judging.limits.clock_offset_s:
        summary = f"the clock is off by {facts.offset_s:.3f} s from {facts.source}"
        yield problem("check.clock_offset", summary, warning=True)


@check(
    "left-over",
    "processes that old jobs left",
    "processes",
    "check.left_over",
    modes=(Mode.PROLOG, Mode.EPILOG, Mode.DEEP),
    emulated_ok=False,
)
def left_over(facts: tuple[ProcessFacts, ...], _judging: Judging) -> Iterator[Problem]:
    """Processes that an old job left."""
    if facts:
        words = ", ".join(f"{one.name} ({one.pid}{f', job {one.job}' if one.job else ''})" for one in facts[:5])
        summary = f"{len(facts)} process{'' if len(facts) == 1 else 'es'} left over: {words}"
        yield problem("check.left_over", summary, text=words)


@check(
    "services", "services of the profile", "services", "check.service_down", grace_s=300.0, looks=2, emulated_ok=False
)
def services(facts: dict[str, str], _judging: Judging) -> Iterator[Problem]:
    """Units of the profile that are not active. One that is being started or reloaded is given its time."""
    for name, word in facts.items():
        if word not in {"active", "activating", "reloading"}:
            yield problem("check.service_down", f"the service {name} is {word}", Place(path=name), text=word)


@_while_idle(
    "topology", "PCI devices: NUMA node, lanes, speed, against the profile", "pci", "check.topology", emulated_ok=False
)
def topology(facts: tuple[PciFacts, ...], judging: Judging) -> Iterator[Problem]:
    """PCI devices against the profile; without one, lanes against what the device can."""
    by_address = {one.address: one for one in facts}
    for address, expected in judging.profile.pci.items():
        one = by_address.get(address)
        found = describe(one) if one is not None else "gone"
        there, wanted = (dict(part.split("=", 1) for part in text.split() if "=" in part) for text in (found, expected))
        wrong = [
            f"{name} {there.get(name, 'gone')}, not {value}"
            for name, value in wanted.items()
            if there.get(name) != value
        ]
        if wrong:
            summary = f"PCI device {address}: {'; '.join(wrong)}"
            yield problem("check.topology", summary, Place(gpu_id=address), text=found)
    for one in facts:
        if one.address not in judging.profile.pci and one.width and one.width_max and one.width < one.width_max:
            summary = f"{one.kind} {one.address} runs on {one.width} of {one.width_max} PCIe lanes"
            yield problem("check.topology", summary, Place(gpu_id=one.address), warning=True)


def describe(device: PciFacts) -> str:
    """A device in the form of `profile.pci`."""
    parts = {"kind": device.kind, "numa": device.numa, "width": device.width, "speed": device.speed_max}
    return " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in parts.items()
        if value is not None
    )
